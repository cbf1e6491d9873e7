"""Is it all right, and what is not: what the overview says before it shows a number. Pure but for the words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlencode

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.overview import OPEN_COUNTED, Near, Overview, Shut
from receipts.statistics import Cause
from receipts.wording import CALL_STATUS, PROBLEM
from registry.console import exactly
from registry.wording import NODE_STATUS, label
from routing.core.review import Status

SWEEP_LATE_S = 10.0
OUT = ("not_ready", "expired", "suspect")
"""Statuses of nodes that nobody has wished for."""
NAMED = 3


class Level(StrEnum):
    """How much a finding matters."""

    BAD = "bad"
    WARN = "warn"
    TODO = "todo"
    """Nothing is wrong: a person is waited for."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to look at: what, what to do, and where."""

    level: Level
    what: str
    do: str
    links: Sequence[tuple[str, str]] = ()
    """Label and address."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence over all findings."""

    tone: str
    text: str


def verdict(found: Sequence[Finding], *, is_empty: bool) -> Verdict:
    levels = [finding.level for finding in found]
    if Level.BAD in levels:
        return Verdict("bad", _("Something is wrong"))
    if wary := levels.count(Level.WARN):
        text = ngettext("It works, and %(n)s thing needs attention", "It works, and %(n)s things need attention", wary)
        return Verdict("warn", text % {"n": wary})
    if is_empty:
        return Verdict("idle", _("It works, and nothing is registered yet"))
    return Verdict("good", _("All is well"))


def findings(seen: Overview) -> list[Finding]:
    """What is not as it should be, the worst first."""
    found = [
        *about_processes(seen),
        *about_failures(seen),
        *about_nodes(seen),
        *about_limits(seen),
        *about_shares(seen),
        *about_people(seen),
    ]
    return sorted(found, key=lambda finding: list(Level).index(finding.level))


def about_processes(seen: Overview) -> Iterator[Finding]:
    now = seen.processes
    if not now.dispatchers:
        what = _("No dispatcher is alive: nobody takes calls.")
        if now.gone_at is not None:
            told = {"name": now.last_dispatcher, "at": exactly(now.gone_at)}
            what += " " + _("The last one, %(name)s, was heard of until %(at)s.") % told
        do = _(
            "Start one: `make run`, or `manage.py reach_serve` with REACH_ROLE=dispatcher; its log says why it "
            "stopped. What is shown here is what was stored before."
        )
        yield Finding(Level.BAD, what, do, [(_("Health of the installation"), reverse("installation"))])
    if now.swept_s is None or now.swept_s > SWEEP_LATE_S or not now.engines:
        yield Finding(
            Level.WARN,
            _("No worker sweeps: nodes are not probed, and asynchronous calls wait."),
            _("Start worker and beat; in the all-in-one, start it again. Their logs say why they stopped."),
            [(_("Health of the installation"), reverse("installation"))],
        )


def about_failures(seen: Overview) -> Iterator[Finding]:
    recent = seen.recent
    if recent is None or recent.total.calls < settings.REACH_OVERVIEW_LEAST_CALLS:
        return
    share, limit = recent.failed_share, settings.REACH_OVERVIEW_FAILED_SHARE
    if share <= limit:
        return
    what = _("%(percent)s %% of the calls of the last 15 minutes did not succeed: %(failed)s of %(calls)s.") % {
        "percent": f"{share * 100:.0f}",
        "failed": recent.total.failures,
        "calls": recent.total.calls,
    }
    links: list[tuple[str, str]] = []
    do = _("See the causes below.")
    if seen.causes:
        first = seen.causes[0]
        do = _("Most of them: %(cause)s") % {"cause": cause_words(first)}
        links = [(_("The last one"), trace_url(first)), (_("All of these"), calls_url(first, seen.span.name))]
    yield Finding(Level.BAD if share > 4 * limit else Level.WARN, what, do, links)


def about_nodes(seen: Overview) -> Iterator[Finding]:
    total = seen.nodes.total()
    nodes = reverse("admin:registry_node_changelist")
    out = {status: seen.nodes[status] for status in OUT if seen.nodes[status]}
    if out:
        counted = ", ".join(f"{n} × {label(NODE_STATUS, status)}" for status, n in out.items())
        what = ngettext(
            "%(n)s of %(total)s nodes cannot take calls: %(counted)s.",
            "%(n)s of %(total)s nodes cannot take calls: %(counted)s.",
            sum(out.values()),
        ) % {"n": sum(out.values()), "total": total, "counted": counted}
        level = Level.WARN if seen.nodes["ready"] else Level.BAD
        links = [(label(NODE_STATUS, status), f"{nodes}?status={status}") for status in out]
        yield Finding(level, what, _("Each says why; probe it from its page once it is mended."), links)
    if seen.breakers:
        named = ", ".join(shut_words(shut) for shut in seen.breakers[:NAMED])
        what = ngettext("%(n)s breaker is open: %(named)s.", "%(n)s breakers are open: %(named)s.", len(seen.breakers))
        yield Finding(
            Level.WARN,
            what % {"n": len(seen.breakers), "named": named},
            _("Nothing is sent there until then; after it one call tries, and closes it when it succeeds."),
            [(shut.name, shut_url(shut)) for shut in seen.breakers[:NAMED]],
        )
    if seen.unprovided:
        what = ngettext("No ready node offers %(names)s.", "No ready node offers %(names)s.", len(seen.unprovided)) % {
            "names": ", ".join(seen.unprovided[:NAMED])
        }
        pages = [(name, reverse("admin:registry_capability_change", args=[name])) for name in seen.unprovided[:NAMED]]
        yield Finding(Level.WARN, what, _("Mend or start a node that declares it."), pages)


def about_limits(seen: Overview) -> Iterator[Finding]:
    if seen.near_limits:
        what = ngettext(
            "%(n)s limit is nearly reached: %(named)s.", "%(n)s limits are nearly reached: %(named)s.",
            len(seen.near_limits),
        )  # fmt: skip
        named = ", ".join(near_words(near) for near in seen.near_limits[:NAMED])
        yield Finding(
            Level.WARN,
            what % {"n": len(seen.near_limits), "named": named},
            _("Add nodes, or raise the limit where they can bear more; beyond it callers are told 429."),
            [(near.node, node_url(near.node_pk)) for near in seen.near_limits[:NAMED]],
        )
    for code, count in seen.refusals:
        if code in ("overloaded", "unavailable"):
            told = {"n": count, "why": label(PROBLEM, code)}
            what = ngettext(
                "%(n)s request was refused without a call: %(why)s",
                "%(n)s requests were refused without a call: %(why)s",
                count,
            )
            yield Finding(Level.WARN, what % told, _("Add dispatchers, or see what holds the database up."))
    if seen.open_calls >= OPEN_COUNTED:
        yield Finding(
            Level.WARN,
            _("%(n)s calls or more are under way.") % {"n": OPEN_COUNTED},
            _("If that is not usual, look which capability they wait for."),
            [(_("Open calls"), reverse("admin:receipts_call_changelist") + "?status=running")],
        )


def about_shares(seen: Overview) -> Iterator[Finding]:
    if seen.traffic is None or seen.traffic.total.calls < settings.REACH_OVERVIEW_LEAST_CALLS or len(seen.busiest) < 2:
        return
    for busy in seen.busiest:
        if busy.takes_most:
            yield Finding(
                Level.WARN,
                _("%(service)s takes %(percent)s %% of all calls.")
                % {"service": busy.service_id, "percent": f"{busy.share * 100:.0f}"},
                _(
                    "When it fails, nearly everything does: see whether that is meant, and whether others could take"
                    " some."
                ),
                [(busy.service_id, reverse("admin:registry_service_change", args=[busy.service_id]))],
            )


def about_people(seen: Overview) -> Iterator[Finding]:
    changes = reverse("admin:routing_routechange_changelist")
    in_review = sum(change.status == Status.IN_REVIEW for change in seen.changes)
    if in_review:
        what = ngettext("%(n)s route change waits for review.", "%(n)s route changes wait for review.", in_review) % {
            "n": in_review
        }
        yield Finding(
            Level.TODO,
            what,
            _("Whoever did not write it may approve it."),
            [(_("Review"), reverse("admin:routing_routechange_inbox"))],
        )
    if approved := len(seen.changes) - in_review:
        what = ngettext(
            "%(n)s approved route change is not published yet.", "%(n)s approved route changes are not published yet.",
            approved,
        ) % {"n": approved}  # fmt: skip
        yield Finding(Level.TODO, what, _("Its author may publish it."), [(_("Publish"), f"{changes}?status=approved")])
    if seen.advisories:
        what = ngettext("%(n)s advisory stands.", "%(n)s advisories stand.", len(seen.advisories))
        yield Finding(
            Level.TODO,
            what % {"n": len(seen.advisories)},
            _("Each says what was noticed and what to do."),
            [(_("Read"), reverse("admin:routing_advisory_changelist") + "?state=stands")],
        )


# --- Words and addresses ---------------------------------------------------------------------------------------------


def cause_words(cause: Cause) -> str:
    """Why and where, in one sentence."""
    return _("%(why)s (%(where)s)") % {"why": why_words(cause), "where": cause.service_id or cause.capability}


def why_words(cause: Cause) -> str:
    return label(PROBLEM, cause.code) if cause.code else label(CALL_STATUS, cause.status)


def calls_url(cause: Cause, span: str) -> str:
    """The list of the calls with this cause."""
    asked = {
        "status": cause.status,
        "code": cause.code,
        "service_id": cause.service_id or "",
        "capability": cause.capability,
        "within": WITHIN[span],
    }
    named = {name: value for name, value in asked.items() if value}
    return f"{reverse('admin:receipts_call_changelist')}?{urlencode(named)}"


WITHIN = {"15m": "0.25", "1h": "1", "24h": "24", "7d": "168"}
"""How the list of calls names the spans."""


def trace_url(cause: Cause) -> str:
    """The last call with this cause, within its trace."""
    return reverse("trace", args=[cause.last_trace_id]) + f"?call={cause.last_call_id}"


def node_url(node_pk: int) -> str:
    return reverse("admin:registry_node_change", args=[node_pk])


def shut_url(shut: Shut) -> str:
    if shut.node_pk is None:
        return reverse("admin:registry_service_change", args=[shut.service_id])
    return node_url(shut.node_pk)


def shut_words(shut: Shut) -> str:
    return _("%(name)s until %(at)s") % {"name": shut.name, "at": f"{shut.until:%H:%M:%S} UTC"}


def near_words(near: Near) -> str:
    percent = f"{near.share * 100:.0f}"
    if not near.capability:
        return _("%(node)s at %(percent)s %% of its max_concurrency") % {"node": near.node, "percent": percent}
    told = {"node": near.node, "percent": percent, "capability": near.capability}
    return _("%(node)s at %(percent)s %% of its rate for %(capability)s") % told
