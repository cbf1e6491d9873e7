"""What becomes of calls when nodes go in or out."""

from registry.core.takeover import After, Provider, joined_by, without

PROVIDERS = [
    Provider("a/1", "sum", True),
    Provider("a/2", "sum", True),
    Provider("b/1", "sum", False),
    Provider("a/1", "only", True),
    Provider("b/1", "other", True),
]


def test_what_is_lost_comes_first():
    assert without({"a/1"}, PROVIDERS) == [After("only", 1, ()), After("sum", 2, ("a/2",))]
    assert without({"a/1"}, PROVIDERS)[0].is_lost


def test_nothing_is_lost_that_was_not_there():
    [after] = without({"b/1"}, [Provider("b/1", "other", False)])
    assert not after.is_lost and after.left == ()


def test_who_shares_with_a_node_that_joins():
    assert joined_by({"b/1"}, PROVIDERS) == [After("other", 0, ()), After("sum", 2, ("a/1", "a/2"))]
