import pytest

from routing.core.review import (
    MOVES,
    OPEN_STATUSES,
    WHO,
    ApprovalRules,
    Move,
    Person,
    Status,
    after,
    after_approval,
    approvals_needed,
    check_may,
    check_may_propose,
    moves_of,
    why_large,
)
from routing.errors import IllegalMove, NotAllowed, OwnChange

AUTHOR = Person(1, may_author=True, may_approve=True)
COLLEAGUE = Person(2, may_author=True, may_approve=False)
APPROVER = Person(3, may_author=False, may_approve=True)
VIEWER = Person(4, may_author=False, may_approve=False)
FIREMAN = Person(5, may_author=False, may_approve=False, may_break_glass=True)
REACH = Person(6, may_author=False, may_approve=False, is_reach=True)
EVERYBODY = (AUTHOR, COLLEAGUE, APPROVER, VIEWER, FIREMAN, REACH)


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
    """It can be talked about, and undone by another change."""
    if move is Move.COMMENT or (status is Status.PUBLISHED and move is Move.REVERT):
        assert after(status, move) is status
        return
    with pytest.raises(IllegalMove) as caught:
        after(status, move)
    assert (caught.value.status, caught.value.move) == (status, move)


def test_only_what_was_approved_is_published():
    assert [status for status in Status if Move.PUBLISH in MOVES[status]] == [Status.APPROVED]


def test_glass_is_broken_wherever_a_change_is_open():
    assert [status for status in Status if Move.BREAK_GLASS in MOVES[status]] == list(OPEN_STATUSES)


@pytest.mark.parametrize("status", OPEN_STATUSES)
def test_an_edit_makes_a_draft(status):
    assert after(status, Move.EDIT) is Status.DRAFT


@pytest.mark.parametrize(
    ("status", "reached"),
    [
        (Status.DRAFT, Status.DRAFT),
        (Status.IN_REVIEW, Status.IN_REVIEW),
        (Status.APPROVED, Status.IN_REVIEW),
    ],
)
def test_a_rebase_is_to_be_approved_again(status, reached):
    assert after(status, Move.REBASE) is reached


def test_every_status_and_move_has_its_rule():
    assert set(MOVES) == set(Status)
    assert set(WHO) == set(Move)


@pytest.mark.parametrize(
    ("move", "allowed"),
    [
        (Move.EDIT, {AUTHOR}),
        (Move.SUBMIT, {AUTHOR}),
        (Move.WITHDRAW, {AUTHOR}),
        (Move.REBASE, {AUTHOR, COLLEAGUE}),
        (Move.APPROVE, {APPROVER}),
        (Move.REJECT, {AUTHOR, APPROVER}),
        (Move.PUBLISH, {AUTHOR, COLLEAGUE}),
        (Move.BREAK_GLASS, {FIREMAN}),
        (Move.REVERT, {AUTHOR, COLLEAGUE}),
        (Move.RESTORE, {REACH}),
        (Move.COMMENT, {AUTHOR, COLLEAGUE, APPROVER}),
    ],
)
def test_who_may(move, allowed):
    assert {by for by in EVERYBODY if may(move, by)} == allowed


def test_nobody_approves_their_own():
    with pytest.raises(OwnChange, match="second person"):
        check_may(Move.APPROVE, AUTHOR, author_id=AUTHOR.user_id)


def test_proposing_needs_the_permission():
    check_may_propose(AUTHOR)
    with pytest.raises(NotAllowed, match="permission routing"):
        check_may_propose(VIEWER)


def test_a_page_learns_what_may_be_done_and_why_not():
    by_author = moves_of(Status.IN_REVIEW, AUTHOR, author_id=AUTHOR.user_id)
    assert by_author.keys() == MOVES[Status.IN_REVIEW].keys()
    assert by_author[Move.EDIT] is None
    assert "their own" in by_author[Move.APPROVE]
    assert "permission" in moves_of(Status.IN_REVIEW, VIEWER, author_id=1)[Move.REJECT]


# --- How many --------------------------------------------------------------------------------------------------------

RULES = ApprovalRules(approvals=1, approvals_when_large=3, large_share=0.5, large_calls=100)


@pytest.mark.parametrize(
    ("moved", "sampled", "unprovided", "large"),
    [
        pytest.param(99, 100, 0, False, id="a share of a few calls says nothing"),
        pytest.param(100, 200, 0, True, id="half of them"),
        pytest.param(100, 201, 0, False, id="less than half"),
        pytest.param(0, 0, 1, True, id="a capability without a provider"),
        pytest.param(0, 0, 0, False, id="nothing"),
    ],
)
def test_what_is_large(moved, sampled, unprovided, large):
    assert (why_large(RULES, moved=moved, sampled=sampled, unprovided=unprovided) is not None) is large


def test_more_people_approve_what_is_large():
    assert approvals_needed(RULES, large=False) == 1
    assert approvals_needed(RULES, large=True) == 3


def test_never_fewer_than_one():
    assert approvals_needed(ApprovalRules(approvals=0, approvals_when_large=0), large=True) == 1


def test_the_last_approval_approves():
    assert after_approval(Status.IN_REVIEW, standing=1, needed=2) is Status.IN_REVIEW
    assert after_approval(Status.IN_REVIEW, standing=2, needed=2) is Status.APPROVED
    with pytest.raises(IllegalMove):
        after_approval(Status.DRAFT, standing=1, needed=1)
