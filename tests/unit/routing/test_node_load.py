"""What a process remembers of its nodes."""

import pytest

from registry.core.node import Health
from routing.health import NodeLoad
from tests.factories import a_node, tables

KEY = ("summarizer", "n1")


@pytest.fixture
def load() -> NodeLoad:
    return NodeLoad(decay_s=10, suspicion_s=60)


def test_others_hear_of_a_suspicion_once(load):
    assert load.suspect(KEY)
    assert not load.suspect(KEY)
    assert KEY in load.suspects()


def test_a_suspicion_fades(load):
    load.suspicion_s = 0
    load.suspect(KEY)
    assert KEY not in load.suspects()


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.NOT_READY, Health.STARTING])
def test_what_the_tables_know_is_theirs_to_end(load, health):
    load.suspect(KEY)
    load.heed(tables(a_node(health=health)))
    assert KEY not in load.suspects()
    assert not load.suspect(KEY), "and still nobody is told twice"


def test_tables_that_do_not_know_of_it_yet_change_nothing(load):
    load.suspect(KEY)
    load.heed(tables(a_node(health=Health.READY)))
    assert KEY in load.suspects()


def test_nodes_that_are_gone_are_forgotten(load):
    load.observe(KEY, 0.1)
    load.suspect(KEY)
    load.heed(tables())
    assert not load.latencies and not load.told and KEY not in load.suspects()
