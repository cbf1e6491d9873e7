"""Tables that move: a part of them made anew is the same as all of them made anew."""

from hypothesis import given
from hypothesis import strategies as st

from registry.core.node import Health, Node
from routing.core.matching import RouteTable
from routing.core.tables import Tables, said_of
from tests.factories import a_node, an_offer, tables

NAMES = ("alpha/n1", "alpha/n2", "beta/n1", "gamma/n1")
CAPABILITIES = ("summary", "search", "translate")
KNOWN = (*CAPABILITIES, "idle")
AUTO = (None, frozenset())

a_state = st.one_of(
    st.none(),
    st.tuples(
        st.sampled_from([Health.READY, Health.NOT_READY, Health.SUSPECT]),
        st.sets(st.sampled_from(CAPABILITIES)),
        st.sampled_from(["", "Makes it short"]),
    ),
)
"""Of one node: gone, or its health with what it offers and what it says of that."""
steps = st.lists(st.dictionaries(st.sampled_from(NAMES), a_state, min_size=1), min_size=1, max_size=6)


def node_in(name: str, state: tuple[Health, set[str], str]) -> Node:
    health, offered, said = state
    offers = [an_offer(capability, description=said) for capability in sorted(offered)] or [an_offer("idle")]
    return a_node(name, *offers, health=health)


def seen(found: Tables) -> dict[str, object]:
    """All that calls can see of tables, in an order of its own."""
    pools = {
        name: sorted(
            (group.schema.digest, candidate.node.key, candidate.refusal)
            for group in found.pool(name, *AUTO).groups
            for candidate in group.candidates
        )
        for name in CAPABILITIES
    }
    return {
        "nodes": {key: id(node) for key, node in found.nodes.items()},
        "services": found.services,
        "providers": {name: {id(node) for node, _offer in rows} for name, rows in found.providers.items()},
        "pools": [(name, [(str(d), k, r) for d, k, r in rows]) for name, rows in pools.items()],
        "words": {word: sorted(names) for word, names in found.vocabulary.names_of.items()},
    }


@given(steps)
def test_any_changes_come_to_the_same_as_a_fresh_start(history: list[dict[str, object]]) -> None:
    held, living = tables(known=KNOWN), dict[str, Node]()
    for version, step in enumerate(history, 2):
        _ = seen(held)  # what calls have asked for is remembered, and must not outlive the change
        changed = [node_in(name, state) for name, state in step.items() if state is not None]
        gone = {node.key for name, node in living.items() if name in step and step[name] is None}
        for name, state in step.items():
            living.pop(name, None)
            if state is not None:
                living[name] = next(node for node in changed if "/".join(node.key) == name)
        held = held.moved(version, changed=changed, gone=gone)
        assert seen(held) == seen(tables(*living.values(), known=KNOWN))
        assert held.version == version


def test_what_a_change_does_not_touch_is_shared() -> None:
    before = tables(a_node("alpha/n1", an_offer("summary")), a_node("beta/n1", an_offer("search")))
    kept, dropped = before.pool("search", *AUTO), before.pool("summary", *AUTO)
    after = before.moved(2, changed=[a_node("alpha/n1", an_offer("summary"), health=Health.NOT_READY)])
    assert after.pool("search", *AUTO) is kept
    assert after.pool("summary", *AUTO) is not dropped
    assert after.nodes["beta", "n1"] is before.nodes["beta", "n1"]
    assert before.nodes["alpha", "n1"].health is Health.READY, "calls under way keep what they were decided by"


def test_other_routes_make_other_pools() -> None:
    before = tables(a_node("alpha/n1", an_offer("summary")))
    known = before.pool("summary", *AUTO)
    routes = RouteTable(2, (), {"summary": ()})
    assert before.moved(2, routes=before.routes).pool("summary", *AUTO) is known
    after = before.moved(2, routes=routes)
    assert (after.revision, after.pool("summary", *AUTO) is known) == (2, False)


def test_secrets_are_added_to_those_known() -> None:
    before = tables().moved(2, secrets={"alpha": b"a"})
    assert before.moved(3, secrets={"beta": b"b"}).secrets == {"alpha": b"a", "beta": b"b"}


def test_a_capability_says_what_all_declare_in_whatever_order_they_came() -> None:
    nodes = [a_node(f"alpha/n{n}", an_offer("summary", description=f"{n}", tags=frozenset("ba"))) for n in (1, 2)]
    for order in (nodes, nodes[::-1]):
        assert said_of(tables(*order).providers["summary"]) == "1 a b 2 a b"
    assert said_of(()) == ""
