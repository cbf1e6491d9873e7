"""Processes whose clock is wrong."""

from importlib.util import find_spec
from pathlib import Path


def shifted(by_s: int) -> dict[str, str]:
    """The environment of a process whose clock is that far ahead (or behind, below 0); it runs no faster."""
    spec = find_spec("libfaketime")
    assert spec is not None and spec.origin is not None, "the package libfaketime is not installed"
    library = Path(spec.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{by_s:+d}",
        # A monotonic clock has no right time. Moving it, or the waits that go by it, breaks timeouts: Python's threads
        # hand over to each other late, by the second.
        "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }
