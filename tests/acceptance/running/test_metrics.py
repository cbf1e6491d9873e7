"""What `/metrics` of a running reach tells of calls that were made."""

from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.agents import NewAgent, dispatch, key_of
from tests.acceptance.instance import Instance
from tests.fakes import fails


def metrics(reach: Instance, key: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = reach.request("GET", "/metrics", key=key)
    assert answer.status == 200, answer.body
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def test_calls_attempts_and_how_the_process_stands(reach: Instance, new_agent: NewAgent) -> None:
    agent, broken = new_agent(), new_agent(fails(500, retryable=False))
    prometheus = key_of(reach, "prometheus", "observe")
    before = metrics(reach, prometheus)
    assert [agent.call().status for _ in range(3)] == [200] * 3
    assert broken.call().status == 502
    assert dispatch(reach, "never_declared").status == 404
    assert dispatch(reach, "never_declared", key="nobody-knows-this").status == 401
    told = metrics(reach, prometheus)

    def value(name: str, **labels: str) -> float | None:
        return told.get((name, frozenset(labels.items())))

    def more(name: str, **labels: str) -> float:
        """By how much it has grown: other tests call this reach, too."""
        return (value(name, **labels) or 0) - before.get((name, frozenset(labels.items())), 0)

    assert value("reach_calls_total", capability=agent.capability, status="succeeded", code="none") == 3
    assert value("reach_calls_total", capability=broken.capability, status="failed", code="upstream_error") == 1
    assert more("reach_calls_total", capability="other", status="rejected", code="unknown_capability") == 1
    assert value("reach_attempts_total", service_id=agent.service_id, ended="succeeded") == 3
    assert value("reach_attempts_total", service_id=broken.service_id, ended="failed") == 1
    assert value("reach_call_duration_seconds_count", capability=agent.capability) == 3
    assert value("reach_attempt_duration_seconds_count", service_id=agent.service_id) == 3
    assert value("reach_capability_ready_nodes", capability=agent.capability) == 1
    assert more("reach_refusals_total", code="unauthenticated") == 1
    assert more("reach_journal_commit_rows_sum", lane="accept") >= 5
    assert value("reach_journal_commit_age_seconds", lane="move") == 0
    assert value("reach_calls_in_flight") == 0
    assert value("reach_part_working", part="database") == 1
    assert (value("reach_nodes", status="ready") or 0) >= 2
    assert 0 <= (value("reach_snapshot_age_seconds") or 0) < 10
    assert not any("127.0.0.1" in label for _name, labels in told for _key, label in labels)
