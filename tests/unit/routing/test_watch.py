import pytest

from routing.core.watch import NONE, Fared, Thresholds, judge, low_bound

FINE = Fared(1000, 10, 100.0)
THRESHOLDS = Thresholds(min_calls=20, worse_by=0.05, slower_by=2.0, slower_ms=200.0)


def verdict(before, after, *, services_before=None, services_after=None):
    return judge(before, after, THRESHOLDS, services_before=services_before or {}, services_after=services_after or {})


@pytest.mark.parametrize(
    ("after", "worse"),
    [
        pytest.param(Fared(19, 19), False, id="too few calls"),
        pytest.param(Fared(40, 12), True, id="thirty of a hundred fail"),
        pytest.param(Fared(20, 2), False, id="two of twenty may be chance"),
        pytest.param(Fared(1000, 60), False, id="five points more, just"),
        pytest.param(Fared(1000, 100), True, id="ten of a hundred, for certain"),
        pytest.param(Fared(1000, 0, 400.0), True, id="four times as slow"),
        pytest.param(Fared(1000, 0, 190.0), False, id="less than twice as slow"),
        pytest.param(Fared(19, 0, 900.0), False, id="a few slow calls"),
    ],
)
def test_worse(after, worse):
    assert bool(verdict(FINE, after).why) is worse


def test_slower_by_little_is_nothing():
    assert not verdict(Fared(100, 0, 1.0), Fared(100, 0, 50.0)).why


def test_trouble_before_is_no_news():
    assert not verdict(Fared(100, 40), Fared(100, 42)).why


def test_a_service_with_a_small_part_of_the_calls_is_seen():
    """A breaker has kept the rest away from it."""
    found = verdict(FINE, Fared(2000, 12), services_after={"bad": Fared(12, 12), "good": Fared(1988, 0)})
    assert found.why == "100% of 12 calls at bad fail or need a retry, before 1%"


def test_a_service_whose_breaker_opened_after_five_failures_is_seen():
    assert verdict(FINE, Fared(500, 5), services_after={"bad": Fared(5, 5)}).why
    assert not verdict(FINE, Fared(500, 1), services_after={"bad": Fared(5, 1)}).why


def test_a_service_is_held_against_itself():
    own = {"bad": Fared(50, 50)}
    assert not verdict(FINE, Fared(2000, 12), services_before=own, services_after={"bad": Fared(12, 12)}).why


def test_without_calls_there_is_nothing_to_say():
    assert verdict(NONE, NONE) == verdict(FINE, Fared(3, 0))
    assert not verdict(FINE, Fared(3, 0)).enough
    assert verdict(FINE, Fared(30, 0)).enough


def test_the_least_share():
    assert low_bound(0, 0) == 0
    assert low_bound(10, 10) == pytest.approx(0.480, abs=1e-3)
    assert low_bound(0, 50) == pytest.approx(0, abs=1e-9)
