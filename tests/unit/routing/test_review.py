import pytest

from routing.core.review import MOVES, WHO, Move, Person, Status, after, check_may, check_may_propose
from routing.errors import IllegalMove, NotAllowed, OwnChange

AUTHOR = Person(1, may_author=True, may_approve=True)
COLLEAGUE = Person(2, may_author=True, may_approve=False)
APPROVER = Person(3, may_author=False, may_approve=True)
VIEWER = Person(4, may_author=False, may_approve=False)


def may(move, by):
    try:
        check_may(move, by, author_id=AUTHOR.user_id)
    except NotAllowed:
        return False
    return True


def test_the_way_to_published():
    status = Status.DRAFT
    for move in (Move.SUBMIT, Move.APPROVE, Move.PUBLISH):
        status = after(status, move)
    assert status is Status.PUBLISHED


@pytest.mark.parametrize("status", [Status.PUBLISHED, Status.REJECTED, Status.WITHDRAWN])
@pytest.mark.parametrize("move", Move)
def test_what_is_final_stays(status, move):
    with pytest.raises(IllegalMove) as caught:
        after(status, move)
    assert (caught.value.status, caught.value.move) == (status, move)


def test_only_what_was_approved_is_published():
    assert [status for status in Status if Move.PUBLISH in MOVES[status]] == [Status.APPROVED]


@pytest.mark.parametrize("status", [Status.DRAFT, Status.IN_REVIEW, Status.APPROVED])
def test_an_edit_makes_a_draft(status):
    assert after(status, Move.EDIT) is Status.DRAFT


def test_every_status_and_move_has_its_rule():
    assert set(MOVES) == set(Status)
    assert set(WHO) == set(Move)


@pytest.mark.parametrize(
    ("move", "allowed"),
    [
        (Move.EDIT, {AUTHOR}),
        (Move.SUBMIT, {AUTHOR}),
        (Move.WITHDRAW, {AUTHOR}),
        (Move.APPROVE, {APPROVER}),
        (Move.REJECT, {AUTHOR, APPROVER}),
        (Move.PUBLISH, {AUTHOR, COLLEAGUE}),
    ],
)
def test_who_may(move, allowed):
    assert {by for by in (AUTHOR, COLLEAGUE, APPROVER, VIEWER) if may(move, by)} == allowed


def test_nobody_approves_their_own():
    with pytest.raises(OwnChange, match="second person"):
        check_may(Move.APPROVE, AUTHOR, author_id=AUTHOR.user_id)


def test_proposing_needs_the_permission():
    check_may_propose(AUTHOR)
    with pytest.raises(NotAllowed, match="permission routing"):
        check_may_propose(VIEWER)
