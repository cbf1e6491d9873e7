"""Dead letters: why calls have failed for good, how many of each cause, and many of them done again by one order."""

import json
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, connection, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.registry_pages import may_see_calls
from dashboard.topology import choices
from dashboard.trace import call_url
from receipts import dead_letters
from receipts.admin import TONE
from receipts.core.lifecycle import CallStatus
from receipts.dead_letters import Cause, Dead
from receipts.models import BulkRedispatch
from receipts.wording import CALL_STATUS, PROBLEM
from registry.console import BAD, BUSY, GOOD, IDLE, actor, badge, moment
from registry.wording import label

SPANS = {
    "1": gettext_lazy("Last hour"),
    "24": gettext_lazy("Last 24 hours"),
    "168": gettext_lazy("Last 7 days"),
}
USUAL_SPAN = "24"
CAUSES_SHOWN = 100
CALLS_LISTED = 15
ORDERS_SHOWN = 10
PATIENCE = "4s"
"""A choice among so many failures that it takes longer is given up: a shorter time has fewer."""

HELP = {
    "upstream_error": gettext_lazy("See what the node said; do them again once it is mended."),
    "deadline_exceeded": gettext_lazy("See whether the nodes are slow, or the time asked for is too short."),
    "no_available_node": gettext_lazy("See why its nodes are not ready; do them again when they are."),
    "circuit_open": gettext_lazy("Its breaker was open: do them again when it has closed."),
    "rate_limited": gettext_lazy("Add nodes or raise limits; doing many again at once meets the same limit."),
    "invalid_payload": gettext_lazy(
        "Doing it again does not help: the payload fits no schema. Mend the caller, or the schema."
    ),
    "unknown_capability": gettext_lazy("Nobody has declared it: a typing error, or an agent that never registered."),
    "forbidden": gettext_lazy("The caller is not among those allowed; doing it again does not help."),
    "loop_detected": gettext_lazy("The chain runs in a circle; doing it again does not help."),
    "invalid_output": gettext_lazy("The node answers what its own schema does not allow: mend the node first."),
}


def allowed(request: HttpRequest) -> None:
    if not may_see_calls(request):
        raise PermissionDenied


def may_redispatch(request: HttpRequest) -> bool:
    return request.user.has_perm("receipts.change_call")


def span_of(request: HttpRequest) -> str:
    asked = request.POST.get("span") or request.GET.get("span", "")
    return asked if asked in SPANS else USUAL_SPAN


def overview(request: HttpRequest) -> HttpResponse:
    """Every cause of the span, the most frequent first."""
    allowed(request)
    span, now = span_of(request), timezone.now()
    found = dead_letters.causes(now - timedelta(hours=int(span)), now)
    total = sum(failures.calls for failures in found.values())
    orders = list(BulkRedispatch.objects.defer("calls").order_by("-pk")[:ORDERS_SHOWN])
    return page(
        request,
        "dashboard/dead_letters.html",
        _("Dead letters"),
        span=span,
        spans=choices(SPANS, span),
        causes=[cause_row(cause, failures, span) for cause, failures in list(found.items())[:CAUSES_SHOWN]],
        left_out=max(0, len(found) - CAUSES_SHOWN),
        total=ngettext("%(n)s failed call", "%(n)s failed calls", total) % {"n": f"{total:,}"},
        may_redispatch=may_redispatch(request),
        orders=[order_row(one) for one in orders],
    )


def page(request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
    return render(request, template, {**admin.site.each_context(request), "title": title, **context})


def cause_row(cause: Cause, failures: dead_letters.Failures, span: str) -> dict[str, Any]:
    return {
        "key": key_of(cause),
        "code": cause.code,
        "words": words_of(cause.code),
        "help": HELP.get(cause.code, ""),
        "capability": cause.capability,
        "service": cause.service_id,
        "calls": f"{failures.calls:,}",
        "newest": moment(failures.newest),
        "url": f"{reverse('dead-letters-again')}?{urlencode({'cause': key_of(cause), 'span': span})}",
    }


def words_of(code: str) -> str:
    return label(CALL_STATUS, code) if code in CALL_STATUS else label(PROBLEM, code)


def key_of(cause: Cause) -> str:
    return json.dumps(cause.parts, ensure_ascii=False)


def causes_asked(keys: Sequence[str]) -> list[Cause]:
    """The causes that a form names; what is no cause is passed over."""
    found = []
    for key in keys[:CAUSES_SHOWN]:
        try:
            found.append(Cause.of_list(json.loads(key)))
        except (ValueError, TypeError):
            continue
    return list(dict.fromkeys(found))


# --- Doing them again ------------------------------------------------------------------------------------------------


@require_http_methods(["GET", "POST"])
def again(request: HttpRequest) -> HttpResponse:
    """GET: the calls of the causes, and what doing them again would mean. POST: the order."""
    allowed(request)
    if request.method == "POST" and not may_redispatch(request):
        raise PermissionDenied
    span, now = span_of(request), timezone.now()
    asked = request.POST if request.method == "POST" else request.GET
    causes = causes_asked(asked.getlist("cause"))
    back = f"{reverse('dead-letters')}?span={span}"
    if not causes:
        messages.warning(request, _("Choose at least one cause."))
        return HttpResponseRedirect(back)
    calls = calls_of(causes, now - timedelta(hours=int(span)))
    if calls is None:
        messages.warning(
            request, _("There are too many failed calls in this time to look them up: choose a shorter one.")
        )
        return HttpResponseRedirect(back)
    parted = Parted(calls)
    if request.method == "POST":
        chosen = parted.chosen(risky="risky" in request.POST)
        if not chosen:
            messages.warning(request, _("Nothing was left to be done again."))
            return HttpResponseRedirect(back)
        made = dead_letters.order(causes, chosen, by=actor(request))
        return HttpResponseRedirect(reverse("dead-letters-order", args=[made.pk]))
    return page(
        request,
        "dashboard/dead_letters_again.html",
        _("Do failed calls again"),
        back=back,
        span=span,
        span_words=SPANS[span],
        causes=[{"key": key_of(cause), "cause": cause, "words": words_of(cause.code)} for cause in causes],
        help=next((HELP[cause.code] for cause in causes if cause.code in HELP), ""),
        parted=parted,
        newest=[listed_call(call) for call in reversed(calls[-CALLS_LISTED:])],
        is_full=len(calls) >= settings.REACH_REDISPATCH_MOST,
        most=settings.REACH_REDISPATCH_MOST,
        pace=settings.REACH_REDISPATCH_PER_S,
        may_redispatch=may_redispatch(request),
    )


def calls_of(causes: list[Cause], since: Any) -> list[Dead] | None:
    """The calls, or None where it takes too long to find them."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('statement_timeout')")
            [usual] = cursor.fetchone()
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [PATIENCE])
            found = dead_letters.chosen(causes, since)
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [usual])
            return found
    except OperationalError:
        return None


class Parted:
    """Failed calls by what doing them again risks."""

    def __init__(self, calls: Iterable[Dead]):
        calls = list(calls)
        left = [call for call in calls if not call.again]
        self.all = len(calls)
        self.again = len(calls) - len(left)
        self.safe = [call for call in left if not call.may_run_twice]
        self.risky = [call for call in left if call.may_run_twice]
        self.unstarted = sum(call.attempts == 0 for call in self.safe)
        self.idempotent = len(self.safe) - self.unstarted
        self.tells = sum(call.tells for call in left)

    def chosen(self, *, risky: bool) -> list[Dead]:
        """The safe ones, and where that is wanted the others too; oldest first."""
        return sorted([*self.safe, *(self.risky if risky else [])], key=lambda call: call.id)


def listed_call(call: Dead) -> dict[str, Any]:
    if call.again:
        state = badge(_("done again already"), IDLE)
    else:
        state = badge(_("may run twice"), BAD) if call.may_run_twice else badge(_("safe"), GOOD)
    return {
        "url": call_url(call.trace_id, call.id),
        "id": call.id,
        "at": moment(call.accepted_at),
        "caller": call.caller,
        "attempts": call.attempts,
        "state": state,
    }


# --- Orders ----------------------------------------------------------------------------------------------------------


def order(request: HttpRequest, order_id: int) -> HttpResponse:
    """How far an order is, and how its new calls fare."""
    allowed(request)
    one = BulkRedispatch.objects.filter(pk=order_id).first()
    if one is None:
        raise Http404
    standing = dead_letters.standing([one])[one.pk]
    newest = [(call_id, reverse("admin:receipts_call_change", args=[call_id])) for call_id in one.made[-5:][::-1]]
    return page(
        request,
        "dashboard/dead_letters_order.html",
        _("Order %(n)s: failed calls again") % {"n": one.pk},
        order=one,
        total=len(one.calls),
        state=order_badge(one),
        is_over=one.finished_at is not None and not open_ones(standing),
        standing=[
            (badge(label(CALL_STATUS, status), TONE[CallStatus(status)]), count)
            for status, count in sorted(standing.items())
        ],
        causes=[(code, words_of(code), capability, service) for code, capability, service in one.causes],
        newest=newest,
        made=len(one.made),
        may_stop=may_redispatch(request) and one.finished_at is None,
        ordered=moment(one.made_at),
        finished=moment(one.finished_at) if one.finished_at else "",
    )


def open_ones(standing: dict[str, int]) -> int:
    return sum(count for status, count in standing.items() if status in ("accepted", "running"))


@require_POST
def stop(request: HttpRequest, order_id: int) -> HttpResponse:
    """Let an order be."""
    allowed(request)
    if not may_redispatch(request):
        raise PermissionDenied
    if dead_letters.stop(order_id, by=actor(request)):
        messages.success(request, _("Stopped. What was done again already goes on."))
    else:
        messages.warning(request, _("It was over already."))
    return HttpResponseRedirect(reverse("dead-letters-order", args=[order_id]))


def order_row(one: BulkRedispatch) -> dict[str, Any]:
    return {
        "url": reverse("dead-letters-order", args=[one.pk]),
        "id": one.pk,
        "by": one.by,
        "at": moment(one.made_at),
        "state": order_badge(one),
        "made": len(one.made),
    }


def order_badge(one: BulkRedispatch) -> str:
    if one.finished_at is None:
        return badge(_("at work"), BUSY)
    return badge(_("stopped"), IDLE) if one.stopped_by else badge(_("done"), GOOD)
