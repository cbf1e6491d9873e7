"""Calls with their receipts as a timeline, for people. Nothing is counted: there may be many millions of rows."""

import json
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from django.contrib import admin, messages
from django.db.models import F, Func, Q, QuerySet, TextField
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.decorators import action, display
from unfold.paginator import InfinitePaginator

from receipts.callbacks import callback_document, callbacks_of
from receipts.cancelling import cancel_call
from receipts.core.lifecycle import OPEN, TERMINAL, CallStatus, Kind
from receipts.core.trace_context import valid_trace_id
from receipts.errors import CallEnded, CallNotFound, NotAgain
from receipts.models import Call, Receipt
from receipts.partitions import lowest_id
from receipts.redispatching import done_again, redispatch_call
from receipts.statistics import UNSUCCESSFUL
from receipts.wording import (
    ADVICE,
    ADVICE_NOT_REPEATED,
    CALL_STATUS,
    CALLBACK,
    NOBODY_CHOSEN,
    NODE_NOT_TOLD,
    PROBLEM,
    RECEIPT,
    STRATEGY,
    WAITS,
)
from registry.admin import AUDIT_ROWS_SHOWN, ServiceFilter, SinceFilter, audit_rows
from registry.console import (
    BAD,
    BUSY,
    GOOD,
    IDLE,
    NOTHING,
    WARN,
    ChoiceFilter,
    Empty,
    LinkFilter,
    ReadOnlyAdmin,
    actor,
    back_to,
    badge,
    between,
    duration,
    exactly,
    facts,
    moment,
    pretty,
    unbroken,
    yes,
)
from registry.core.sensitive import HIDDEN, masked, masked_error
from registry.masking import Masks, masks_of
from registry.models import AuditEvent, Capability, Node
from registry.wording import label, said

TONE = {
    CallStatus.ACCEPTED: BUSY,
    CallStatus.RUNNING: BUSY,
    CallStatus.SUCCEEDED: GOOD,
    CallStatus.FAILED: BAD,
    CallStatus.TIMED_OUT: BAD,
    CallStatus.CANCELLED: IDLE,
    CallStatus.REJECTED: WARN,
}
ICON = {
    Kind.ACCEPTED: ("inbox", BUSY),
    Kind.ROUTED: ("alt_route", BUSY),
    Kind.FORWARDED: ("send", BUSY),
    Kind.ACKNOWLEDGED: ("done", BUSY),
    Kind.RUNNING: ("autorenew", BUSY),
    Kind.ATTEMPT_FAILED: ("error", WARN),
    Kind.RETRY_SCHEDULED: ("replay", WARN),
    Kind.FALLBACK: ("call_split", WARN),
    Kind.SUCCEEDED: ("check_circle", GOOD),
    Kind.FAILED: ("cancel", BAD),
    Kind.TIMED_OUT: ("timer_off", BAD),
    Kind.CANCELLED: ("block", IDLE),
    Kind.REJECTED: ("do_not_disturb_on", BAD),
    Kind.LATE_RESULT: ("schedule", IDLE),
    Kind.RECOVERED: ("health_and_safety", WARN),
}
NODES_TOLD = 5
"""Of those that could not take a failed call, beside its failure; the others stand in its course."""
RECEIPTS_SHOWN = 500
TRACE_CALLS_SHOWN = 200
NO_MASKS = Masks()
HEAVY = ("request", "output", "labels", "watchers")
LIGHT = (
    "id", "trace_id", "parent_call_id", "caller", "capability", "status", "service_id", "node_id", "accepted_at",
    "ended_at", "error",
)  # fmt: skip


def status_badge(call: Call) -> str:
    return badge(label(CALL_STATUS, call.status), TONE.get(CallStatus(call.status), IDLE))


def loaded(text: str | None) -> Any:
    """Stored JSON; None where nothing is stored."""
    return None if text is None else msgspec.json.decode(text)


def took_ms(call: Call) -> float | None:
    return between(call.accepted_at, call.ended_at)


def node_name(row: Call | Receipt) -> str:
    return f"{row.service_id}/{row.node_id}" if row.service_id and row.node_id else NOTHING


class StatusFilter(LinkFilter):
    title = gettext_lazy("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(CALL_STATUS.items())

    def narrowed(self, queryset: Any, value: str) -> Any:
        found = super().narrowed(queryset, value)
        return found.filter(ended_at=None) if value in OPEN else found  # an index knows the open ones


class CodeFilter(ChoiceFilter):
    title = gettext_lazy("problem code")
    parameter_name = "code"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(code, code) for code in ADVICE]

    def narrowed(self, queryset: Any, value: str) -> Any:
        """Only what did not succeed has a code; an index knows those, the newest first."""
        said_by_the_row = Func(F("error"), template="(%(expressions)s::json->>'code')", output_field=TextField())
        return queryset.filter(status__in=UNSUCCESSFUL).alias(code=said_by_the_row).filter(code=value)


class WithinFilter(SinceFilter):
    HOURS = {"0.25": 0.25, "1": 1, "24": 24, "168": 168}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("0.25", gettext_lazy("Last 15 minutes")), *super().lookups(request, model_admin)]

    def since(self, queryset: Any, moment: Any) -> Any:
        return queryset.filter(pk__gte=lowest_id(moment))  # the time is in the id, so its index answers


class CapabilityFilter(ChoiceFilter):
    title = gettext_lazy("capability")
    parameter_name = "capability"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in Capability.objects.order_by("pk").values_list("pk", flat=True)]


@admin.register(Call)
class CallAdmin(ReadOnlyAdmin):
    list_display = ("state", "when", "what", "caller", "who", "took", "tries", "problem")
    list_display_links = ("state", "when")
    list_filter = (StatusFilter, WithinFilter, CodeFilter, CapabilityFilter, ServiceFilter)
    search_fields = ("pk",)  # `get_search_results` looks for exact ids
    search_help_text = gettext_lazy("An exact call id, trace id, idempotency key, session, or a label as name:value")
    ordering = ("-pk",)
    sortable_by = ()
    list_per_page = 50  # to lay out a row takes a millisecond
    paginator = InfinitePaginator
    show_full_result_count = False
    actions = ("cancel", "redispatch")
    detail_template = "admin/receipts/call.html"
    empty = Empty(
        gettext_lazy("No call yet"),
        gettext_lazy("Name a capability, never an address; the call and every step of it will be found here."),
        """curl $REACH_API/api/v1/dispatch \\
  -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\
  -d '{"capability": "file_summary", "payload": {"file_path": "/reports/q3.pdf"}}'""",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Call]:
        calls = super().get_queryset(request)
        return calls if is_detail(request) else calls.defer(*HEAVY)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Call], search_term: str
    ) -> tuple[QuerySet[Call], bool]:
        term = search_term.strip().replace("\x00", "")
        return (queryset.filter(known_as(term)) if term else queryset), False

    @display(description=gettext_lazy("status"))
    def state(self, call: Call) -> str:
        return status_badge(call)

    @display(description=gettext_lazy("accepted"))
    def when(self, call: Call) -> str:
        return moment(call.accepted_at)

    @display(description=gettext_lazy("capability"))
    def what(self, call: Call) -> str:
        return call.capability

    @display(description=gettext_lazy("node"))
    def who(self, call: Call) -> str:
        return node_name(call)

    @display(description=gettext_lazy("duration"))
    def took(self, call: Call) -> str:
        return unbroken(duration(took_ms(call)) if call.ended_at else _("open"))

    @display(description=gettext_lazy("attempts"))
    def tries(self, call: Call) -> str:
        return str(call.attempts)

    @display(description=gettext_lazy("error"))
    def problem(self, call: Call) -> str:
        if call.error is None:
            return NOTHING
        code = loaded(call.error)["code"]
        return format_html('<span class="reach-mono" title="{}">{}</span>', label(PROBLEM, code), code)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("receipts.change_call")

    @action(description=gettext_lazy("Cancel: end what is still open"), permissions=["cancel"])
    def cancel(self, request: HttpRequest, calls: QuerySet[Call]) -> HttpResponse | None:
        ended = 0
        for call_id in calls.values_list("pk", flat=True):
            with suppress(CallNotFound, CallEnded):
                cancel_call(call_id, by=actor(request), audited=True)
                ended += 1
        if ended:
            told = ngettext("%(n)s call is cancelled.", "%(n)s calls are cancelled.", ended) % {"n": ended}
            self.message_user(request, told, messages.SUCCESS)
        else:
            self.message_user(request, _("Nothing to cancel: it has ended already."), messages.WARNING)
        return back_to(request)

    def has_redispatch_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("receipts.change_call")

    @action(description=gettext_lazy("Do again: what has failed, as a new call"), permissions=["redispatch"])
    def redispatch(self, request: HttpRequest, calls: QuerySet[Call]) -> HttpResponse | None:
        made, refused = [], ""
        for call_id in calls.order_by("pk").values_list("pk", flat=True):
            try:
                made.append(redispatch_call(call_id, by=actor(request)))
            except (CallNotFound, NotAgain) as exc:
                refused = str(exc)
        if made:
            told = ngettext("%(n)s call is done again.", "%(n)s calls are done again.", len(made)) % {"n": len(made)}
            self.message_user(request, told, messages.SUCCESS)
        if refused:
            told = _("Not done again: %(reason)s") % {"reason": said(refused)}
            self.message_user(request, told, messages.WARNING)
        return back_to(request)

    def verbs(self, request: HttpRequest, call: Call) -> list[tuple[str, str]]:
        """The buttons of a call's page."""
        if call.ended_at is None:
            return [("cancel", _("Cancel"))] if self.has_cancel_permission(request) else []
        may_again = call.status != CallStatus.SUCCEEDED and call.mirror_of is None
        return [("redispatch", _("Do again"))] if may_again and self.has_redispatch_permission(request) else []

    def details(self, request: HttpRequest, obj: Call) -> dict[str, Any]:
        calls = Call.objects.filter(trace_id=obj.trace_id).order_by("pk").only(*LIGHT)[:TRACE_CALLS_SHOWN]
        return {
            "title": obj.capability,
            "trace": tree_rows(calls),
            "trace_url": reverse("trace", args=[obj.trace_id]) + f"?call={obj.pk}",
            "buttons": self.verbs(request, obj),
            **shown(obj),
        }


def shown(call: Call) -> dict[str, Any]:
    """All that pages tell of one call; what its providers' schemas mark is hidden."""
    receipts = list(Receipt.objects.filter(call_id=call.pk).order_by("seq")[:RECEIPTS_SHOWN])
    request = loaded(call.request) or {}
    masks = masks_of({call.capability, asked_for(receipts) or call.capability})
    payload = masked(request.get("payload"), masks.payload)
    error = loaded(call.error)
    if error is not None:
        error = masked_error(masked_error(error, masks.payload, root="/payload"), masks.output, root="/output")
    timeline = [step_of(receipt, call.accepted_at, masks) for receipt in receipts]
    return {
        "status": status_badge(call),
        "took": duration(took_ms(call)) if call.ended_at else None,
        "node": node_name(call) if call.node_id else None,
        "node_url": node_url(call),
        "error": error_shown(error, nobody_able(timeline)),
        "advice": advice(call, error["code"]) if error else [],
        "facts": call_facts(call, request),
        "payload": pretty(payload),
        "output": None if call.output is None else pretty(masked(loaded(call.output), masks.output)),
        "context": pretty(request["context"]) if request.get("context") else "",
        "curl": as_curl(call, request, payload),
        "is_masked": HIDDEN in json.dumps(payload, ensure_ascii=False),
        "timeline": timeline,
        "more_receipts": call.seq - len(receipts),
        "history": audit_rows(AuditEvent.objects.filter(target=str(call.pk)).order_by("-pk")[:AUDIT_ROWS_SHOWN]),
        "callback": callback_shown(call),
        "again": [(one, status_badge(one)) for one in done_again(call).only(*LIGHT)[:TRACE_CALLS_SHOWN]],
    }


def advice(call: Call, code: str) -> list[str]:
    """What to try after such an end."""
    sentences = list(ADVICE.get(code, ()))
    if code == "upstream_error" and not call.idempotent:
        sentences.append(ADVICE_NOT_REPEATED)
    return [str(sentence) for sentence in sentences]


def asked_for(receipts: Iterable[Receipt]) -> str | None:
    """The capability that the caller named: a fallback rule may have handed the call to another."""
    first = next((receipt for receipt in receipts if receipt.kind == Kind.ACCEPTED), None)
    told = loaded(first.detail) if first is not None else None
    return told.get("capability") if isinstance(told, dict) else None


ASKED = ("tags", "urgency", "timeout_ms", "context", "max_retries", "retry_base_delay_ms")
"""Of a stored request, what a caller may say anew."""


def as_curl(call: Call, request: dict[str, Any], payload: Any) -> str:
    """The same request for a shell, as a new call; address and key are the shell's variables."""
    body: dict[str, Any] = {"capability": call.capability, "payload": payload}
    if request.get("intent"):
        body["intent"] = request["intent"]
        del body["capability"]
    body |= {name: request[name] for name in ASKED if request.get(name) not in (None, [], {}, "normal")}
    if call.labels:
        body["labels"] = call.labels
    if call.session_id:
        body["session_id"] = call.session_id
    if call.async_rank is not None:
        body["mode"] = "async"
    return "\n".join(
        [
            'curl "$REACH_API/api/v1/dispatch" \\',
            '  -H "Authorization: Bearer $KEY" -H "Content-Type: application/json" \\',
            f"  -d {shlex.quote(json.dumps(body, ensure_ascii=False))}",
        ]
    )


def callback_shown(call: Call) -> dict[str, Any] | None:
    """Where the end is told, and how that went."""
    if call.callback_url is None:
        return None
    known = callback_document(call.callback_url, callbacks_of([call.pk]).get(call.pk))
    tone = {"delivered": GOOD, "gave_up": BAD, "gone": WARN}.get(known["status"], BUSY)
    return {
        "url": call.callback_url,
        "status": badge(label(CALLBACK, known["status"]), tone),
        "next": moment(known["next_try_at"]) if known["next_try_at"] else "",
        "tries": [
            {
                "at": parse_datetime(one["at"]),
                "took": duration(one["took_ms"]),
                "status": one.get("status"),
                "error": said(one.get("error", "")),
            }
            for one in reversed(known["log"])
        ],
        "untold": known["tries"] - len(known["log"]),
    }


def is_detail(request: HttpRequest) -> bool:
    match = request.resolver_match
    return match is not None and "object_id" in match.kwargs


def known_as(term: str) -> Q:
    """Calls that an id somebody has pasted may mean; each alternative has an index of its own."""
    found = Q(idempotency_key=term) | Q(session_id=term)
    if valid_trace_id(term.lower()):
        found |= Q(trace_id=term.lower())
    if re.fullmatch(r"[0-9a-fA-F-]{32,36}", term):
        with suppress(ValueError):
            found |= Q(pk=UUID(term))
    name, colon, value = term.partition(":")
    if colon:
        found |= Q(labels__contains={name.strip(): value.strip()})
    return found


def node_url(call: Call) -> str:
    return reverse("admin:registry_node_changelist") + f"?q={call.node_id}" if call.node_id else ""


def nobody_able(timeline: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Each node and why it could not take the call, where the last choice found none."""
    last = next((step["why"] for step in reversed(timeline) if step["why"]), None)
    if last is None or last["has_chosen"]:
        return []
    left_out = last["candidates"][:NODES_TOLD]
    names = [one["node"].split("/") for one in left_out]
    among = Node.objects.filter(service_id__in=[name[0] for name in names], node_id__in=[name[1] for name in names])
    pks = {
        f"{service_id}/{node_id}": pk for pk, service_id, node_id in among.values_list("pk", "service_id", "node_id")
    }
    return [
        {
            "node": one["node"],
            "url": reverse("admin:registry_node_change", args=[pks[one["node"]]]) if one["node"] in pks else "",
            "why": "; ".join(one["reasons"]),
        }
        for one in left_out
    ]


def error_shown(error: dict[str, Any] | None, nobody: list[dict[str, str]]) -> dict[str, Any] | None:
    """Why a call failed: the code in words, the sentence, who could not take it, and what the node itself said."""
    if error is None:
        return None
    return {
        "code": error["code"],
        "words": label(PROBLEM, error["code"]),
        "detail": said(error.get("detail", "")),
        "unknown": error.get("outcome_unknown", False),
        "errors": error.get("errors", []),
        "nobody": nobody,
        "upstream": pretty(error["upstream"]) if error.get("upstream") else "",
        "retry_after": duration(error["retry_after_ms"]) if error.get("retry_after_ms") else "",
    }


def call_link(call_id: UUID) -> str:
    return format_html('<a href="{}">{}</a>', reverse("admin:receipts_call_change", args=[call_id]), call_id)


def call_facts(call: Call, asked: dict[str, Any]) -> list[tuple[str, Any]]:
    labels = call.labels or {}
    return facts(
        {
            _("Call id"): call.pk,
            _("Trace id"): call.trace_id,
            _("Copy of"): call.mirror_of,
            _("Does again"): call_link(call.redispatch_of) if call.redispatch_of else None,
            _("Mode"): _("sync: its caller waits") if call.async_rank is None else _("async: nobody waits"),
            _("Called on behalf of"): call.origin_caller if call.origin_caller != call.caller else "",
            _("Accepted at"): exactly(call.accepted_at),
            _("Ended at"): exactly(call.ended_at),
            _("Deadline"): exactly(call.deadline),
            _("Route"): _("none matched (auto)") if call.route_id == "auto" else call.route_id,
            _("Table revision"): call.table_revision,
            _("Attempts"): call.attempts,
            _("Idempotent"): yes(call.idempotent),
            _("Idempotency key"): call.idempotency_key,
            _("Session"): call.session_id,
            _("Urgency"): asked.get("urgency"),
            _("Tags"): ", ".join(asked.get("tags") or []),
            _("Labels"): ", ".join(f"{name}:{value}" for name, value in labels.items()),
            _("Timeout asked for"): duration(asked["timeout_ms"]) if asked.get("timeout_ms") else None,
        }
    )


# --- Timeline --------------------------------------------------------------------------------------------------------


def step_of(receipt: Receipt, accepted_at: datetime, masks: Masks = NO_MASKS) -> dict[str, Any]:
    """One receipt, ready to be read."""
    detail = loaded(receipt.detail) or {}
    if isinstance(detail, dict):
        detail = masked_error(masked_error(detail, masks.payload, root="/payload"), masks.output, root="/output")
    icon, tone = ICON.get(Kind(receipt.kind), ("circle", IDLE))
    words = label(RECEIPT, receipt.kind)
    if receipt.kind == Kind.ROUTED and not detail.get("chosen"):
        words, tone = str(NOBODY_CHOSEN), WARN
    if receipt.kind == Kind.LATE_RESULT and "node_told" in detail:
        words, tone = str(NODE_NOT_TOLD), WARN
    if receipt.kind == Kind.RETRY_SCHEDULED and "refused" in detail:
        words = str(WAITS)
    elapsed_ms = between(accepted_at, receipt.at) or 0.0
    return {
        "seq": receipt.seq,
        "kind": receipt.kind,
        "words": words,
        "icon": icon,
        "tone": tone,
        "elapsed": "+" + duration(max(0.0, elapsed_ms)),
        "at": exactly(receipt.at),
        "attempt": receipt.attempt,
        "node": node_name(receipt) if receipt.node_id else "",
        "why": why_of(detail) if receipt.kind == Kind.ROUTED else None,
        "told": told_by(receipt.kind, detail),
    }


def why_of(detail: dict[str, Any]) -> dict[str, Any]:
    """Why this node: the route, and each candidate with its share or the reason why it was left out."""
    chosen, left_out = detail.get("chosen") or {}, detail.get("left_out") or {}
    listed = sum(not candidate["eligible"] for candidate in detail.get("candidates") or [])
    return {
        "route": detail.get("route_id"),
        "is_auto": detail.get("route_id") == "auto",
        "strategy": label(STRATEGY, detail.get("strategy") or ""),
        "revision": detail.get("table_revision"),
        "candidates": [
            {
                "node": f"{candidate['service_id']}/{candidate['node_id']}",
                "eligible": candidate["eligible"],
                "percent": round(candidate["share"] * 100, 1),
                "reasons": [said(reason) for reason in candidate["reasons"]],
                "likeness": candidate.get("likeness"),
                "chosen": all(candidate[name] == chosen.get(name) for name in ("service_id", "node_id")),
            }
            for candidate in detail.get("candidates") or []
        ],
        "reading": detail.get("intent"),
        "notes": [said(note) for note in detail.get("notes") or []],
        "has_chosen": bool(chosen),
        "beyond": [(said(reason), count) for reason, count in left_out.items()]
        if sum(left_out.values()) > listed
        else [],
    }


def told_by(kind: str, detail: Any) -> list[tuple[str, Any]]:
    """What else a receipt tells, as name and value."""
    if not isinstance(detail, dict):
        return facts({_("detail"): detail})
    match kind:
        case Kind.ACCEPTED | Kind.ROUTED | Kind.SUCCEEDED:  # the page says it elsewhere
            return []
        case Kind.FORWARDED:
            return facts({_("address"): detail.get("address")})
        case Kind.RUNNING:
            progress = detail.get("progress")
            percent = None if progress is None else f"{progress * 100:.0f} %"
            return facts({_("progress"): percent, _("message"): detail.get("message")})
        case Kind.RETRY_SCHEDULED:
            reason = said(detail["reason"]) if detail.get("reason") else None
            return facts({_("waits"): duration(detail.get("wait_ms")), _("reason"): reason})
        case Kind.ATTEMPT_FAILED:
            upstream = detail.get("upstream")
            return facts(
                {
                    _("reason"): said(detail.get("reason", "")),
                    _("the node says"): compact(upstream) if upstream else "",
                    _("errors"): compact(detail["errors"]) if detail.get("errors") else "",
                }
            )
        case Kind.FALLBACK:
            return facts(
                {
                    _("route"): detail.get("route_id"),
                    _("condition"): detail.get("condition"),
                    _("action"): detail.get("action"),
                    _("handed to"): detail.get("service") or detail.get("capability"),
                    _("waits"): duration(detail["wait_ms"]) if detail.get("wait_ms") else None,
                }
            )
        case Kind.LATE_RESULT if "node_told" in detail:
            return facts({_("reason"): said(detail.get("reason", ""))})
        case kind if kind in set(TERMINAL):
            return facts({_("code"): detail.get("code"), _("detail"): said(detail.get("detail") or "")})
        case _:
            return facts({name: compact(value) for name, value in detail.items()})


def compact(value: Any, shown: int = 500) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= shown else text[: shown - 1] + "…"


# --- Trace -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Branch:
    """One call of a trace, where it stands in the tree."""

    call: Call
    depth: int
    status: str
    took: str
    offset: float
    """Percent of the trace's span that had passed when it was accepted."""
    width: float
    """Percent of the trace's span that it took."""


def tree_rows(calls: Iterable[Call]) -> list[Branch]:
    """The calls of a trace, each below the one that made it, with where it lies in the trace's time."""
    calls = list(calls)
    if not calls:
        return []
    known = {call.pk for call in calls}
    below: dict[UUID | None, list[Call]] = {}
    for call in calls:
        below.setdefault(call.parent_call_id if call.parent_call_id in known else None, []).append(call)
    start = min(call.accepted_at for call in calls)
    end = max(call.ended_at or timezone.now() for call in calls)
    span_ms = max(between(start, end) or 0.0, 1.0)
    rows: list[Branch] = []
    open_calls = [(call, 0) for call in reversed(below.get(None, []))]
    while open_calls:
        call, depth = open_calls.pop()
        offset_ms = between(start, call.accepted_at) or 0.0
        took = between(call.accepted_at, call.ended_at or timezone.now()) or 0.0
        rows.append(
            Branch(
                call,
                depth,
                status_badge(call),
                duration(took),
                round(100 * offset_ms / span_ms, 2),
                round(max(100 * took / span_ms, 0.5), 2),
            )
        )
        open_calls += [(child, depth + 1) for child in reversed(below.get(call.pk, []))]
    return rows
