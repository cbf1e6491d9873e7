"""What an engine makes of calls that it has come to hold twice."""

from uuid import UUID

from tests.simulation.model import Change
from tests.simulation.world import Scenario, World


def test_a_call_claimed_anew_while_the_first_claims_answer_was_on_its_way():
    """Whoever is in doubt whether a claim was done asks for what is his, while another claim is being answered."""
    world = World(Scenario(3, calls=300, lasts_s=80.0, engines=1, faults_per_min=0.0, async_share=1.0))
    told = world.database.tables.changed

    def changed(change: Change) -> None:
        told(change)
        if change.statement == "take":
            world.scheduler.after(0.0, claim_again, UUID(change.call.row.owner))

    def claim_again(owner: UUID) -> None:
        engine = world.by_owner[str(owner)].engine
        assert engine is not None
        engine.keep(engine.remember_forgotten())

    world.database.tables.changed = changed
    world.run()  # every rule holds: each call ends once, and every place is given back
    assert world.watch.counts["taken over"] > 30, "it was held twice, and not only once"
    print(world.watch.endings, world.watch.counts, world.callers.told_codes, world.watch.kinds)
    assert world.watch.endings["succeeded"] > 250
    print(world.watch.endings, world.watch.counts, world.callers.told_codes)
