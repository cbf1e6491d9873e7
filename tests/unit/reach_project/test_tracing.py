"""What is done about traces when nobody wants them, and about a collector that does not take them."""

import logging
import subprocess
import sys
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from reach_project.otlp import PatientExporter


class Refusing(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE


def test_failures_are_one_warning_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    exporter = PatientExporter(Refusing(), "collector")
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            assert exporter.export([ReadableSpan("a"), ReadableSpan("b")]) is SpanExportResult.FAILURE
    assert [record.getMessage() for record in caplog.records] == [
        "2 spans were lost: the collector at collector does not take them"
    ]


def test_no_exporter_is_loaded_where_nobody_wants_traces() -> None:
    script = (
        "import sys, reach_project.asgi; from reach_project import tracing; tracing.start('all');"
        "assert tracing.current is None; assert 'reach_project.otlp' not in sys.modules;"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.exporter')]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
