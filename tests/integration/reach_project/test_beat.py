"""Beat as a process of its own."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery.beat import Scheduler, Service

from reach_project.celery import app


class Deaf(Scheduler):
    """Each of its turns is interrupted by SIGTERM, and makes nothing of it."""

    turns = 0

    def tick(self, *_given: Any, **_named: Any) -> float:
        self.turns += 1
        assert self.turns < 3, "it goes on"
        with suppress(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
        return 0.0


@pytest.fixture
def handlers_restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_ends_it_even_where_its_exception_is_lost(settings: Any, handlers_restored: None) -> None:
    settings.DATABASE_URL, settings.REDIS_URL = "postgresql://somewhere/reach", "redis://somewhere/0"
    beat = Service(app, scheduler_cls=Deaf)
    beat.start()
    assert beat.scheduler.turns == 1
