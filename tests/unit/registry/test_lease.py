from datetime import UTC, datetime, timedelta

import pytest

from registry.core.lease import absence, lease_terms

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("last_sweep_s_ago", "extended_s"),
    [
        pytest.param(None, 0, id="never swept"),
        pytest.param(1, 0, id="as usual"),
        pytest.param(3, 0, id="a slow sweep"),
        pytest.param(300, 300, id="away for five minutes"),
    ],
)
def test_leases_are_extended_by_the_reachs_own_absence(last_sweep_s_ago, extended_s):
    last = None if last_sweep_s_ago is None else NOW - timedelta(seconds=last_sweep_s_ago)
    assert absence(last, NOW) == timedelta(seconds=extended_s)


def test_a_sweeper_that_works_alone_counts_every_second_as_absence():
    assert absence(NOW - timedelta(seconds=1), NOW, heard=False) == timedelta(seconds=1)
    assert absence(NOW + timedelta(seconds=1), NOW, heard=False) == timedelta()


@pytest.mark.parametrize(
    ("declared", "terms"),
    [
        pytest.param((None, None), (45, 15), id="defaults"),
        pytest.param((9, None), (9, 3), id="a short lease shortens the heartbeat"),
        pytest.param((3600, None), (3600, 15), id="a long lease keeps the heartbeat"),
        pytest.param((None, 60), (180, 60), id="a slow heartbeat lengthens the lease"),
        pytest.param((None, 1), (45, 1), id="a quick heartbeat keeps the lease"),
        pytest.param((30, 5), (30, 5), id="as declared"),
    ],
)
def test_what_is_not_declared_follows_from_what_is(declared, terms):
    assert lease_terms(*declared) == terms
