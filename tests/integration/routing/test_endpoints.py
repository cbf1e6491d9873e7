import pytest

from registry import changes, services
from tests.integration.routing.people import Api, a_rule, analysed, api_of, published


def a_proposal(**more):
    return {"title": "t", "description": "d", "base_revision": 0, "routes": [a_rule("a")], **more}


def test_the_empty_table_is_revision_0(viewer):
    api = Api(services.create_user_key(viewer, ("observe",), by="tests").text)
    assert api.get("routes") == (200, {"revision": 0, "routes": [], "fallback_rules": []})
    assert api.get("route-revisions") == (200, {"results": [], "next_cursor": None})
    status, problem = api.get("route-revisions/1")
    assert (status, problem["code"]) == (404, "not_found")


def test_a_change_from_draft_to_published(author, approver):
    by_author, by_approver = api_of(author), api_of(approver)
    status, change = by_author.post("route-changes", a_proposal())
    assert status == 201
    assert (change["status"], change["author"], change["base_revision"]) == ("draft", "author", 0)
    assert change["diff"] == {"added": [a_rule("a")], "removed": [], "changed": []}
    here = f"route-changes/{change['id']}"

    assert by_author.post(f"{here}/submit")[1]["status"] == "in_review"
    status, problem = by_author.post(f"{here}/approve")
    assert (status, problem["code"]) == (403, "forbidden")
    status, problem = by_author.post(f"{here}/publish")
    assert (status, problem["code"]) == (409, "conflict")
    analysed(change["id"])
    status, change = by_approver.post(f"{here}/approve", {"comment": "seen"})
    assert (status, change["status"]) == (200, "approved")
    (approval,) = change["approvals"]
    assert (approval["approver"], approval["comment"], approval["standing"]) == ("approver", "seen", True)
    assert approval["digest"] == change["digest"]

    status, change = by_author.post(f"{here}/publish")
    assert (status, change["status"], change["published_revision"]) == (200, "published", 1)
    assert [(e["action"], e["comment"]) for e in change["history"]] == [
        ("propose", ""),
        ("submit", ""),
        ("approve", "seen"),
        ("publish", ""),
    ]
    assert by_author.get("routes")[1] == {"revision": 1, "routes": [a_rule("a")], "fallback_rules": []}
    status, revision = by_author.get("route-revisions/1")
    assert (revision["published_by"], revision["change_id"], revision["routes"]) == (
        "author",
        change["id"],
        [a_rule("a")],
    )
    (listed,) = by_author.get("route-revisions")[1]["results"]
    assert (listed["revision"], listed["note"]) == (1, "t")


def test_publishing_waits_until_this_process_follows(author, approver, monkeypatch):
    followed = []
    monkeypatch.setattr(changes, "followers", [lambda version, _timeout_s: followed.append(version) or True])
    api = api_of(author)
    _, change = api.post("route-changes", a_proposal())
    api.post(f"route-changes/{change['id']}/submit")
    analysed(change["id"])
    api_of(approver).post(f"route-changes/{change['id']}/approve")
    assert followed == []
    api.post(f"route-changes/{change['id']}/publish")
    assert len(followed) == 1


def test_a_moved_base_is_409(author, approver):
    api = api_of(author)
    _, change = api.post("route-changes", a_proposal())
    api.post(f"route-changes/{change['id']}/submit")
    analysed(change["id"])
    api_of(approver).post(f"route-changes/{change['id']}/approve")
    published(author, approver, base_revision=0, routes=[a_rule("b")])
    status, problem = api.post(f"route-changes/{change['id']}/publish")
    assert (status, problem["code"]) == (409, "conflict")
    assert "base moved" in problem["detail"]


def test_an_edit_is_the_authors(author, colleague, approver):
    api = api_of(author)
    _, change = api.post("route-changes", a_proposal())
    here = f"route-changes/{change['id']}"
    api.post(f"{here}/submit")
    analysed(change["id"])
    api_of(approver).post(f"{here}/approve")
    assert api_of(colleague).patch(here, {"title": "x"})[0] == 403
    status, edited = api.patch(here, {"routes": [a_rule("b")], "title": "better"})
    assert (status, edited["status"], edited["title"], edited["description"]) == (200, "draft", "better", "d")
    assert [approval["standing"] for approval in edited["approvals"]] == [False]
    assert edited["diff"]["added"] == [a_rule("b")]


def test_a_diff_shows_before_and_after(author, approver):
    published(author, approver, base_revision=0, routes=[a_rule("a"), a_rule("b")])
    operations = [{"op": "delete", "id": "b"}, {"op": "put", **a_rule("a", priority=3)}]
    status, change = api_of(author).post("route-changes", {"title": "t", "base_revision": 1, "operations": operations})
    assert status == 201
    assert change["diff"] == {
        "added": [],
        "removed": [a_rule("b")],
        "changed": [{"id": "a", "before": a_rule("a"), "after": a_rule("a", priority=3)}],
    }
    assert change["operations"] == operations


def test_reject_and_withdraw(author, approver):
    api = api_of(author)
    for verb, by in (("reject", api_of(approver)), ("withdraw", api)):
        _, change = api.post("route-changes", a_proposal())
        api.post(f"route-changes/{change['id']}/submit")
        status, ended = by.post(f"route-changes/{change['id']}/{verb}", {"comment": "no"})
        assert (status, ended["status"]) == (200, f"{verb.removesuffix('ed')}{'n' if verb == 'withdraw' else 'ed'}")
        assert by.post(f"route-changes/{change['id']}/submit")[0] in (403, 409)


def test_revert_makes_a_new_draft(author, approver):
    first = published(author, approver, base_revision=0, routes=[a_rule("a")])
    published(author, approver, base_revision=1, operations=[{"op": "put", **a_rule("later")}])
    api = api_of(author)
    status, change = api.post(f"route-changes/{first}/revert")
    assert (status, change["status"], change["reverts"], change["base_revision"]) == (201, "draft", first, 2)
    assert change["diff"] == {"added": [], "removed": [a_rule("a")], "changed": []}
    published(author, approver, base_revision=2, operations=[{"op": "put", **a_rule("a", priority=1)}])
    status, problem = api.post(f"route-changes/{first}/revert")
    assert (status, problem["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "/title"),
        ({"title": 5}, "/title"),
        ({"title": ""}, "/title"),
        ({"base_revision": "0"}, "/base_revision"),
        ({"base_revision": True}, "/base_revision"),
        ({"base_revision": 7}, "/base_revision"),
        ({"routes": {}}, "/routes"),
        ({"routes": None}, "/routes"),
        ({"routes": [a_rule("a", strategy={"type": "sticky"})]}, "/routes/0/strategy/key"),
        ({"routes": [a_rule("a", match={"input.x": {"gte": "5"}})]}, "/routes/0/match/input.x/gte"),
    ],
)
def test_a_malformed_change_is_400_with_the_place(author, body, path):
    status, problem = api_of(author).post("route-changes", a_proposal(**body) if body else {"base_revision": 0})
    assert (status, problem["code"]) == (400, "invalid_request")
    assert [error["path"] for error in problem["errors"]] == [path]


def test_an_unknown_field_is_400(author):
    status, problem = api_of(author).post("route-changes", a_proposal(routs=[]))
    assert (status, problem["code"]) == (400, "invalid_request")
    assert "routs" in problem["detail"]


def test_changes_are_listed_newest_first_by_pages(author, approver):
    api = api_of(author)
    for number in range(3):
        api.post("route-changes", a_proposal(title=f"t{number}"))
    api.post(f"route-changes/{api.get('route-changes')[1]['results'][0]['id']}/submit")
    _, first = api.get("route-changes?limit=2")
    assert [change["title"] for change in first["results"]] == ["t2", "t1"]
    _, second = api.get(f"route-changes?limit=2&cursor={first['next_cursor']}")
    assert [change["title"] for change in second["results"]] == ["t0"]
    assert second["next_cursor"] is None
    assert [c["title"] for c in api.get("route-changes?status=in_review")[1]["results"]] == ["t2"]
    assert api.get("route-changes?status=nonsense")[0] == 400


def test_services_do_not_move_changes():
    key = services.create_service_key("agent", ("observe", "operate"), by="tests").text
    status, problem = Api(key).post("route-changes", a_proposal())
    assert (status, problem["code"]) == (403, "forbidden")


def test_keys_and_scopes(author):
    assert Api("").get("routes")[0] == 401
    observer = Api(services.create_service_key("agent", ("observe",), by="tests").text)
    assert observer.get("routes")[0] == 200
    assert observer.post("route-changes", a_proposal())[0] == 403
    dispatcher = Api(services.create_service_key("agent", ("dispatch",), by="tests").text)
    assert dispatcher.get("routes")[0] == 403


def test_permissions_of_people(viewer, colleague, author):
    assert api_of(viewer).post("route-changes", a_proposal())[0] == 403
    _, change = api_of(author).post("route-changes", a_proposal())
    api_of(author).post(f"route-changes/{change['id']}/submit")
    assert api_of(colleague).post(f"route-changes/{change['id']}/approve")[0] == 403


@pytest.mark.parametrize("path", ["route-changes/999", "route-changes/99999999999999999999999", "route-revisions/7"])
def test_what_is_not_there_is_404(author, path):
    status, problem = api_of(author).get(path)
    assert (status, problem["code"]) == (404, "not_found")


@pytest.mark.parametrize("verb", ["analyse", "explode"])
def test_moves_that_do_not_exist_are_404(author, verb):
    api = api_of(author)
    _, change = api.post("route-changes", a_proposal())
    assert api.post(f"route-changes/{change['id']}/{verb}")[0] == 404


def test_a_wrong_method_is_405(author):
    assert api_of(author).post("routes")[0] == 405
