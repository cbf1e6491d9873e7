import pytest

from registry.core.rates import parse_rate


@pytest.mark.parametrize(
    ("written", "per_second"),
    [
        (None, None),
        (10, 10.0),
        (0.5, 0.5),
        ("600/min", 10.0),
        ("5/s", 5.0),
        ("5/sec", 5.0),
        ("60/m", 1.0),
        ("3600/h", 1.0),
        ("1800/hour", 0.5),
        ("86400/d", 1.0),
        ("1/day", 1 / 86_400),
        (" 1.5 / s ", 1.5),
    ],
)
def test_reads_rates_as_calls_per_second(written, per_second):
    assert parse_rate(written) == pytest.approx(per_second)


@pytest.mark.parametrize("written", [0, -1, float("nan"), float("inf"), "0/s", "ten/s", "10", "10/week", "", "10/S x"])
def test_refuses_what_is_no_rate(written):
    with pytest.raises(ValueError, match="must be"):
        parse_rate(written)
