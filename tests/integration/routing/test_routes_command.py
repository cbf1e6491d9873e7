"""`manage.py routes`: the table as code."""

import threading
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from routing import review
from routing.core.review import Status
from routing.models import RouteChange
from routing.querysets import live_number, table_of
from tests.integration.dashboard.sample import a_node as registered_node
from tests.integration.routing.people import a_rule, analysed, published
from tests.integration.routing.traffic import stored

pytestmark = pytest.mark.django_db(transaction=True)
TABLE = """\
routes:
  - id: mine
    match: {capability: file_summary}
    strategy: {type: exact, service: two}
"""


def routes(*arguments):
    out, err = StringIO(), StringIO()
    code = 0
    try:
        call_command("routes", *map(str, arguments), stdout=out, stderr=err)
    except SystemExit as exc:
        code = exc.code
    return code, out.getvalue(), err.getvalue()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "routes.yaml"
    path.write_text(TABLE)
    return path


def test_a_plan_after_an_export_shows_nothing(author, approver, tmp_path):
    rule = {"condition": "no_available_node", "action": "return_503", "wait_before_retry_ms": 500}
    tricky = a_rule("b", match={"input.x": ["yes", "1e5", True, None, 5, 5.0], "labels.when": "2026-01-01"})
    published(author, approver, base_revision=0, routes=[a_rule("a", priority=5), tricky], fallback_rules=[rule])
    for output in (tmp_path / "out.yaml",):
        assert routes("export", "--output", output)[0] == 0
        code, out, _err = routes("plan", output)
        assert (code, out) == (0, "nothing would change: revision 1 reads like the file\n")
    assert routes("export")[1] == (tmp_path / "out.yaml").read_text()
    assert routes("export", "--revision", 0)[1] == "# revision 0\nroutes: []\n"
    with pytest.raises(CommandError, match="no revision 7"):
        routes("export", "--revision", 7)


def test_a_plan_shows_the_difference_and_the_impact(author, approver, file):
    published(author, approver, base_revision=0, routes=[a_rule("a")])
    registered_node("one", "n1")
    stored(3, caller="scheduler", payload={"file_path": "/a"})
    with pytest.raises(CommandError, match=r"^routes.yaml:4: route mine: no service 'two' is registered"):
        routes("plan", file)
    code, out, err = routes("plan", file, "--services-to-come")
    assert code == 2
    assert "+ route mine" in out and "- route a" in out
    assert "impact: 3 of 3 sampled calls of the last day would move" in out
    assert "auto -> mine: 3" in out
    assert "UNPROVIDED: file_summary would be left without a provider" in out
    assert "routes.yaml:4: warning: route mine: no service 'two' is registered" in err
    assert (live_number(), RouteChange.objects.count()) == (1, 1), "nothing is written"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("routes: [", "routes.yaml, line 1"),
        (TABLE.replace("capability", "capabilty"), "routes.yaml:3: route mine: match/capabilty: unknown key"),
        (
            TABLE.replace("file_summary", '"file_[ab"'),
            "routes.yaml:3: route mine: match/capability: 'file_[ab' is not a",
        ),
        (TABLE + TABLE[8:], "routes.yaml:5: route mine: id: 'mine' is the id of an earlier route"),
        (
            TABLE.replace("{capability: file_summary}", "{input.x: {gte: 5, lt: 5}}"),
            "routes.yaml:3: route mine: match/input.x: can match nothing: gte 5 and lt 5 never hold together",
        ),
    ],
)
def test_mistakes_have_file_line_and_route(file, text, complaint):
    file.write_text(text)
    with pytest.raises(CommandError) as caught:
        routes("plan", file)
    assert str(caught.value).startswith(complaint)
    assert caught.value.returncode == 1


def test_a_submitted_file_is_a_change_in_review(author, file):
    code, out, _err = routes(
        "submit", file, "--services-to-come", "--author", "author", "--title", "from code", "--auto-revert"
    )
    change = RouteChange.objects.get()
    assert (code, change.status, change.author, change.title) == (0, Status.IN_REVIEW, author, "from code")
    assert change.auto_revert and change.document["routes"][0]["id"] == "mine"
    assert f"route change {change.pk} is in review" in out


def test_only_people_who_may_author_submit(viewer, file):
    with pytest.raises(CommandError, match="permission routing"):
        routes("submit", file, "--services-to-come", "--author", "viewer")
    with pytest.raises(CommandError, match="no user nobody"):
        routes("submit", file, "--services-to-come", "--author", "nobody")
    assert not RouteChange.objects.exists()


def test_watching_follows_a_change_to_its_publication(author, approver, file):
    def others():
        try:
            while (change := RouteChange.objects.filter(status=Status.IN_REVIEW).first()) is None:
                pass
            analysed(change.pk)
            review.approve(change.pk, by=approver, comment="fine")
            review.publish(change.pk, by=author)
        finally:
            connection.close()

    thread = threading.Thread(target=others)
    thread.start()
    code, out, _err = routes("submit", file, "--services-to-come", "--author", "author", "--watch", "--timeout", 60)
    thread.join()
    assert code == 0
    told = ["impact: ", "user:approver approve fine", "user:author publish", "is revision 1"]
    assert [out.index(words) for words in told] == sorted(out.index(words) for words in told)
    assert table_of(1)["routes"][0]["id"] == "mine"


def test_watching_ends_with_a_change_that_is_refused(author, approver, file):
    with pytest.raises(CommandError, match="still in_review"):
        routes("submit", file, "--services-to-come", "--author", "author", "--watch", "--timeout", 0.1)
