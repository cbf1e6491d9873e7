"""Route changes for people: the list, the inbox, the editor, and the page where a change is judged and moved.

Who may do what is asked of `core/review.py`, by way of `review.moves_for`; what is done, `routing/review.py` does.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.decorators import display

from receipts.wording import STRATEGY
from registry import changes as snapshot_changes
from registry.console import NOTHING, WARN, Empty, LinkFilter, ReadOnlyAdmin, badge, exactly, facts, moment
from registry.errors import Forbidden, InvalidRequest, ReachError
from routing import editor, impact, review
from routing.change_forms import ChangeForm
from routing.core.edits import EMPTY, Document, difference
from routing.core.review import Move, Status
from routing.models import Impact, RouteChange, TableRevision, Watch
from routing.querysets import live_number, table_of, undone_by
from routing.review_wording import mistake_words, refusal_words, review_words
from routing.route_text import dump_text
from routing.rules import STRATEGY_KEYS
from routing.serializers import impact_document
from routing.shown import change_badge, diff_shown, impact_shown, number, sides_shown, step_shown, watch_shown
from routing.wording import ACTION, CHANGE_STATUS, CONDITION, OPERATOR

PROPOSE_COMMAND = """curl $REACH_API/api/v1/route-changes \\
  -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\
  -d '{"title": "Reports to the summarizer", "base_revision": 0, "routes": [
       {"id": "reports", "match": {"capability": "file_summary"},
        "strategy": {"type": "exact", "service": "doc-summarizer"}}]}'"""
TITLE_SHOWN = 80
INBOX_SHOWN = 50
STEPS = (Status.DRAFT, Status.IN_REVIEW, Status.APPROVED, Status.PUBLISHED)


class ChangeStatusFilter(LinkFilter):
    title = gettext_lazy("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(CHANGE_STATUS.items())


class Button(NamedTuple):
    """One move that this person may make now, with a word if they like."""

    move: Move
    text: Promise
    tone: str = ""


BUTTONS = (
    Button(Move.APPROVE, gettext_lazy("Approve"), "primary"),
    Button(Move.SUBMIT, gettext_lazy("Submit for review"), "primary"),
    Button(Move.PUBLISH, gettext_lazy("Publish"), "primary"),
    Button(Move.REJECT, gettext_lazy("Reject"), "danger"),
    Button(Move.WITHDRAW, gettext_lazy("Withdraw")),
    Button(Move.COMMENT, gettext_lazy("Comment only")),
)
"""Those that share one text field; a rebase, a revert and a publication without approval have forms of their own."""


def done_words(move: Move, change: RouteChange) -> str:
    """What has been done."""
    match move:
        case Move.SUBMIT:
            return _("It is in review now.")
        case Move.APPROVE:
            standing, needed = review.approval_state(change)
            if change.status == Status.APPROVED:
                return _("Approved. Its author may publish it.")
            return _("Your approval stands: %(standing)s of %(needed)s.") % {"standing": standing, "needed": needed}
        case Move.REJECT:
            return _("Rejected.")
        case Move.WITHDRAW:
            return _("Withdrawn.")
        case Move.PUBLISH | Move.BREAK_GLASS:
            return _("Published as revision %(revision)s: every dispatcher uses it within two seconds.") % {
                "revision": change.published_revision_id
            }
        case Move.REBASE:
            return _("It is made for the live revision now. Approvals were dropped: look at its impact again.")
        case Move.REVERT:
            return _("This change undoes the other one. It is in review: somebody else has to approve it.")
        case _:
            return _("Your comment stands below.")


@admin.register(RouteChange)
class RouteChangeAdmin(ReadOnlyAdmin):
    list_display = ("id_of_change", "headline", "state", "author", "base_revision", "became", "touched")
    list_display_links = ("id_of_change", "headline")
    list_filter = (ChangeStatusFilter,)
    search_fields = ("title", "author__username")
    search_help_text = gettext_lazy("Part of a title or of the author's name")
    ordering = ("-pk",)
    list_select_related = ("author", "published_revision")
    detail_template = "admin/routing/change.html"
    empty = Empty(
        gettext_lazy("No route change yet"),
        gettext_lazy(
            "Routes are changed only through review: one person proposes, another approves. Draft one with the button "
            "above, or send it:"
        ),
        PROPOSE_COMMAND,
    )

    def get_urls(self) -> list[URLPattern]:
        def page(address: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
            return path(address, self.admin_site.admin_view(view), name=f"routing_routechange_{name}")

        return [
            page("inbox/", self.inbox_view, "inbox"),
            page("check/", self.check_view, "check"),
            page("<int:change_id>/edit/", self.edit_view, "edit"),
            page("<int:change_id>/move/", self.move_view, "move"),
            *super().get_urls(),
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[RouteChange]:
        match = request.resolver_match
        changes = super().get_queryset(request)
        return changes if match and "object_id" in match.kwargs else changes.defer("document", "operations")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("routing.add_routechange")

    # --- The list ----------------------------------------------------------------------------------------------------

    @display(description="#", ordering="pk")
    def id_of_change(self, change: RouteChange) -> str:
        return str(change.pk)

    @display(description=gettext_lazy("title"))
    def headline(self, change: RouteChange) -> str:
        title = title_words(change)
        return title if len(title) <= TITLE_SHOWN else title[: TITLE_SHOWN - 1] + "…"

    @display(description=gettext_lazy("status"))
    def state(self, change: RouteChange) -> str:
        if change.broke_glass:
            return format_html("{} {}", change_badge(change), badge(_("without approval"), WARN))
        return change_badge(change)

    @display(description=gettext_lazy("published as"))
    def became(self, change: RouteChange) -> str:
        return str(change.published_revision_id or NOTHING)

    @display(description=gettext_lazy("last touched"), ordering="updated_at")
    def touched(self, change: RouteChange) -> str:
        return moment(change.updated_at)

    # --- The inbox ---------------------------------------------------------------------------------------------------

    def inbox_view(self, request: HttpRequest) -> HttpResponse:
        """What waits for this person."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        user = acting(request)
        groups = [
            (title, text, [inbox_row(change) for change in waiting.select_related("author", "impact")[:INBOX_SHOWN]])
            for title, text, waiting in (
                (
                    _("To be judged by you"),
                    _("Look at what each would do, then approve or reject it."),
                    review.waiting_for(user),
                ),
                (_("Yours, approved"), _("Somebody has agreed: publish them."), review.ready_to_publish(user)),
                (_("Yours, not submitted yet"), _("Nobody sees them as work to do."), review.drafts_of(user)),
            )
        ]
        return self.page(
            request,
            "admin/routing/inbox.html",
            _("Waiting for you"),
            groups=[group for group in groups if group[2]],
            may_author=self.has_add_permission(request),
        )

    # --- The editor --------------------------------------------------------------------------------------------------

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        live = live_number()
        begin = {"base_revision": live, "text": dump_text(table_of(live))}
        return self.editor(request, None, begin)

    def edit_view(self, request: HttpRequest, change_id: int) -> HttpResponse:
        change = RouteChange.objects.select_related("author").filter(pk=change_id).first()
        if change is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, str(change_id))
        if review.moves_for(change, acting(request)).get(Move.EDIT, "") is not None:
            raise PermissionDenied
        begin = {
            "title": change.title,
            "description": change.description,
            "auto_revert": change.auto_revert,
            "base_revision": change.base_revision,
            "digest": change.content_digest,
            "text": dump_text(change.document),
        }
        return self.editor(request, change, begin)

    def editor(self, request: HttpRequest, change: RouteChange | None, begin: dict[str, Any]) -> HttpResponse:
        """The form of a draft; what was typed is shown again with whatever is wrong with it."""
        form = ChangeForm(request.POST if request.method == "POST" else None, initial=begin)
        typed = form["text"].value() or ""
        base = base_of(form["base_revision"].value())
        found = editor.checked_text(typed, base)
        if request.method == "POST" and form.is_valid() and found.is_valid and found.document is not None:
            try:
                saved = self.saved(request, change, form.cleaned_data, found.document)
            except ReachError as exc:
                form.add_error(None, refusal_words(exc))
            else:
                return HttpResponseRedirect(reverse("admin:routing_routechange_change", args=[saved.pk]))
        title = _("Edit route change %(id)s") % {"id": change.pk} if change else _("Draft a route change")
        refused = request.method == "POST"
        return self.page(
            request,
            "admin/routing/editor.html",
            title,
            original=change,
            form=form,
            found=checked_shown(found),
            refused=refused and not found.is_valid,
            suggestions=editor.suggestions(),
            strategies=[(kind, STRATEGY[kind]) for kind in STRATEGY_KEYS],
            operators=list(OPERATOR.items()),
            conditions=list(CONDITION.items()),
            actions=list(ACTION.items()),
            keys=["trace_id", "session_id", "caller", "input.", "labels."],
            base_revision=form["base_revision"].value(),
        )

    @transaction.atomic
    def saved(
        self, request: HttpRequest, change: RouteChange | None, given: dict[str, Any], document: Document
    ) -> RouteChange:
        """The draft as it is now written; submitted, where that button was pressed."""
        by = acting(request)
        content = {name: given[name] for name in ("title", "description", "auto_revert", "base_revision")}
        if change is None:
            change = review.propose(author=by, **content, **document)
        else:
            same_table = not any(difference(change.document, document).values())
            table = {} if same_table and content["base_revision"] == change.base_revision else document
            if not table:
                content.pop("base_revision")
            change = review.edit(change.pk, by=by, digest=given["digest"] or None, **content, **table)
        if "submit" in request.POST:
            change = review.submit(change.pk, by=by)
            self.message_user(request, done_words(Move.SUBMIT, change), messages.SUCCESS)
        else:
            self.message_user(request, _("Saved as a draft. Submit it when it is ready."), messages.SUCCESS)
        return change

    def check_view(self, request: HttpRequest) -> HttpResponse:
        """A table in one form, for the other form and what is wrong with it. Nothing is stored."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            asked = json.loads(request.body)
            base = base_of(asked["base_revision"])
            if "text" in asked:
                found = editor.checked_text(str(asked["text"]), base)
            else:
                found = editor.checked_document(asked["document"], base)
        except (ValueError, KeyError, TypeError, RecursionError):
            return JsonResponse({"error": "send a text or a document, and its base_revision"}, status=400)
        return JsonResponse(checked_shown(found))

    # --- One change --------------------------------------------------------------------------------------------------

    def details(self, request: HttpRequest, obj: RouteChange) -> dict[str, Any]:
        return self.judged(request, obj)

    def judged(
        self, request: HttpRequest, change: RouteChange, *, refused: str = "", typed: str = "", move: str = ""
    ) -> dict[str, Any]:
        """Everything that the page of a change shows. `refused`: why a move was not made, with what was `typed`."""
        moves = review.moves_for(change, acting(request))
        live = live_number()
        is_stale = change.published_revision_id is None and change.base_revision != live
        is_open = Move.EDIT in moves
        found = impact_shown(impact_document(change, impact.latest(change)))
        known = Impact.objects.filter(change=change, covers=change.content_digest).first()
        standing, needed = review.approval_state(change)
        watch = Watch.objects.filter(change=change).first()
        sides = review.sides_of(change) if is_open else ()
        may = {move.value for move, why in moves.items() if why is None}
        if is_stale:
            may.discard(Move.PUBLISH)
        else:
            may.discard(Move.REBASE)
        if undone := undone_by(change):
            may.discard(Move.REVERT)
        return {
            "title": title_words(change),
            "status": change_badge(change),
            "steps": steps_of(change),
            "is_open": is_open,
            "is_stale": is_stale and is_open,
            "live": live,
            "may": may,
            "buttons": [button for button in BUTTONS if button.move in may],
            "why_not": [refusal_words(why) for move, why in moves.items() if why is not None and move in SAID_WHY_NOT],
            "digest": change.content_digest,
            "diff": diff_shown(table_of(change.base_revision), change.document),
            "impact": found,
            "large_because": review_words(large) if (large := review.large_because(known)) and is_open else "",
            "standing": standing,
            "needed": needed,
            "approvals": [
                {
                    "by": approval.approver,
                    "at": moment(approval.approved_at),
                    "comment": approval.comment,
                    "withdrawn": approval.withdrawn_at is not None,
                }
                for approval in change.approvals.select_related("approver").order_by("pk")
            ],
            "sides": sides_shown(sides),
            "conflicts": [place.route for place in sides if place.state == "conflict"],
            "may_take": change.author_id == request.user.pk,
            "watch": watch_shown(watch) if watch is not None else None,
            "history": [step_shown(event) for event in review.history(change)],
            "undone_by": undone,
            "refused": refused,
            "typed": typed,
            "tried_move": move,
            "facts": facts(
                {
                    _("Author"): change.author,
                    _("Base revision"): str(change.base_revision),
                    _("Published as"): revision_link(change.published_revision_id),
                    _("Reverts"): change_link(change.reverts_id),
                    _("Taken back by"): change_link(undone),
                    _("Takes itself back"): _("yes, if its calls fare worse") if change.auto_revert else None,
                    _("Proposed"): exactly(change.created_at),
                    _("Last touched"): exactly(change.updated_at),
                }
            ),
        }

    def move_view(self, request: HttpRequest, change_id: int) -> HttpResponse:
        """Make one move; where it is refused, the page says why and keeps what was typed."""
        if request.method != "POST" or not self.has_view_permission(request):
            raise PermissionDenied
        change = RouteChange.objects.select_related("author").filter(pk=change_id).first()
        move, comment = request.POST.get("move", ""), request.POST.get("comment", "").strip()
        if change is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, str(change_id))
        try:
            shown = moved(change_id, Move(move), by=acting(request), comment=comment, given=request.POST)
        except (ReachError, ValueError) as exc:
            refused = refusal_words(exc) if isinstance(exc, ReachError) else _("There is no such move.")
            status_code = 403 if isinstance(exc, Forbidden) else 400 if isinstance(exc, InvalidRequest) else 409
            context = self.judged(request, change, refused=refused, typed=comment, move=move)
            return self.page(
                request, self.detail_template, context.pop("title"), original=change, status_code=status_code, **context
            )
        self.message_user(request, done_words(Move(move), shown), messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:routing_routechange_change", args=[shown.pk]))


SAID_WHY_NOT = (Move.APPROVE, Move.PUBLISH)
"""Moves whose absence puzzles people, so that the page says why they may not."""


def acting(request: HttpRequest) -> User:
    assert isinstance(request.user, User), "the admin lets nobody else in"
    return request.user


def moved(change_id: int, move: Move, *, by: User, comment: str, given: Mapping[str, str]) -> RouteChange:
    """Make the move, and wait until this process's dispatchers follow it; the change to show then."""
    match move:
        case Move.SUBMIT:
            return review.submit(change_id, by=by, comment=comment)
        case Move.APPROVE:
            acknowledge, digest = "acknowledge" in given, given.get("digest") or None
            return review.approve(change_id, by=by, comment=comment, acknowledge=acknowledge, digest=digest)
        case Move.REJECT:
            return review.reject(change_id, by=by, comment=comment)
        case Move.WITHDRAW:
            return review.withdraw(change_id, by=by, comment=comment)
        case Move.COMMENT:
            return review.comment_on(change_id, by=by, comment=comment)
        case Move.REBASE:
            take = {name.removeprefix("take:"): side for name, side in given.items() if name.startswith("take:")}
            return review.rebase(change_id, by=by, comment=comment, take=take)
        case Move.REVERT:
            return review.revert_in_review(change_id, by=by, comment=comment)
        case Move.PUBLISH | Move.BREAK_GLASS:
            if move is Move.PUBLISH:
                published = review.publish(change_id, by=by, comment=comment)
            else:
                published = review.break_glass(change_id, by=by, reason=comment)
            snapshot_changes.wait_until_followed(published.version)
            return published.change
    raise ValueError(f"{move} is not made here")


def base_of(number: Any) -> Document:
    """The table that an edit began with; one that is not there is as good as none: saving will say so."""
    try:
        return table_of(int(number))
    except (TableRevision.DoesNotExist, TypeError, ValueError):
        return EMPTY


def checked_shown(found: editor.Checked) -> dict[str, Any]:
    """A checked table for the page's scripts, its mistakes in the reader's language."""

    def remarks(given: Any) -> list[dict[str, Any]]:
        return [
            {"path": one.path, "line": one.line, "route": one.route, "message": mistake_words(one.message)}
            for one in given
        ]

    return {
        "text": found.text,
        "document": found.document,
        "mistakes": remarks(found.mistakes),
        "warnings": remarks(found.warnings),
        "order": list(found.order),
        "edits": found.edits,
        "lines": found.lines,
    }


def title_words(change: RouteChange) -> str:
    """Titles are what people wrote, or what the reach has written for them."""
    return review_words(change.title)


def steps_of(change: RouteChange) -> list[dict[str, Any]]:
    """The way of a change, with where it stands."""
    status = Status(change.status)
    way = STEPS if status in STEPS else (Status.DRAFT, Status.IN_REVIEW, status)
    at = way.index(status)
    return [
        {"text": CHANGE_STATUS[step], "state": "now" if n == at else "done" if n < at else "ahead"}
        for n, step in enumerate(way)
    ]


def revision_link(number: int | None) -> str:
    if number is None:
        return NOTHING
    return format_html('<a href="{}">{}</a>', reverse("admin:routing_tablerevision_change", args=[number]), number)


def change_link(change_id: int | None) -> str:
    if change_id is None:
        return NOTHING
    told = _("route change %(id)s") % {"id": change_id}
    return format_html('<a href="{}">{}</a>', reverse("admin:routing_routechange_change", args=[change_id]), told)


def inbox_row(change: RouteChange) -> dict[str, Any]:
    """A change as the inbox tells of it: what it is, what it would do, how far it is."""
    edit = difference(table_of(change.base_revision), change.document)
    touched = [*edit["changed"], *edit["added"], *edit["removed"]]
    known: Impact | None = getattr(change, "impact", None)
    report = known.report if known is not None and impact.is_current(known, change) else None
    standing, needed = review.approval_state(change)
    told = ngettext("%(n)s route", "%(n)s routes", len(touched)) % {"n": len(touched)}
    return {
        "id": change.pk,
        "url": reverse("admin:routing_routechange_change", args=[change.pk]),
        "title": title_words(change),
        "author": change.author,
        "at": moment(change.updated_at),
        "status": change_badge(change),
        "touched": told,
        "standing": standing,
        "needed": needed,
        "is_stale": change.base_revision != live_number(),
        "known": report is not None,
        "moved": number(report["moved"]["total"]) if report else "",
        "sampled": report["sampled_calls"] if report else 0,
        "shadowed": len(report["shadowed_routes"]) if report else 0,
    }
