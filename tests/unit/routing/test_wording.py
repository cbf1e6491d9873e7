"""Stored reasons are found again among the sentences that pages can translate."""

import pytest

from receipts.core.journey import Ended
from registry.core.node import Health
from registry.wording import recognised
from routing import wording
from routing.core.plan import Attempt, Policy, next_step
from routing.core.pool import WHY_SPARED
from routing.core.tables import CANARY_ONLY, MIRROR_ONLY
from tests.factories import NOW, KnownLoad, a_journey, a_node, an_attempt, an_envelope, chances, tables
from tests.unit.routing.builders import a_rule, a_table


def noted(envelope_facts, *tried, **route):
    nodes = a_node("old/1"), a_node("new/1", health=route.pop("health", Health.READY))
    found = tables(*nodes, routes=a_table(a_rule("r", **route)))
    journey = a_journey(an_envelope(**envelope_facts), *tried, waited=len(tried))
    step = next_step(journey, found, KnownLoad(), Policy(), now_millis=NOW, chance=chances([0.5]))
    assert isinstance(step, Attempt)
    return step.why.notes


CANARY = {"canary": {"service": "new", "percent": 99.5, "sticky_by": "caller"}}
NO_KEY = {"canary": {"service": "new", "percent": 5, "sticky_by": "labels.x"}}


@pytest.mark.parametrize(
    ("facts", "tried", "route"),
    [
        ({}, [], CANARY),
        ({}, [], NO_KEY),
        ({}, [], {**CANARY, "health": Health.NOT_READY}),
        ({}, [an_attempt(Ended.NOT_STARTED, "new/1", route_id="r")], CANARY),
        ({}, [], {"strategy": {"type": "sticky", "key": "session_id"}}),
        ({}, [], {"strategy": {"type": "sticky", "key": "caller"}}),
        ({}, [], {"strategy": {"type": "weighted_random", "weights": {"old": 1, "new": 1}}}),
        ({}, [], {"strategy": {"type": "latency_aware"}}),
        ({}, [], {"strategy": {"type": "least_loaded"}}),
    ],
)
def test_every_note_is_one_that_can_be_translated(facts, tried, route):
    (note,) = noted(facts, *tried, **route)
    assert recognised(note)[0] in wording.NOTES


def test_where_one_alone_is_able_nothing_is_said_of_a_choice():
    assert noted({}, health=Health.NOT_READY, strategy={"type": "least_loaded"}) == ()


@pytest.mark.parametrize("reason", [*WHY_SPARED, CANARY_ONLY, MIRROR_ONLY, "at its max_concurrency (32)"])
def test_every_reason_for_passing_a_node_over_can_be_translated(reason):
    assert recognised(reason)[0] in wording.REFUSALS
