"""Tables, changes and impacts as pages show them: plain data, in the reader's language. Nothing is decided here."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from registry.console import BAD, BUSY, GOOD, IDLE, NOTHING, WARN, badge, duration, exactly, moment
from registry.models import AuditEvent
from registry.wording import AUDIT_ACTION, LEVEL, label
from routing.core.edits import RULES, Document, Place, difference
from routing.core.matching import Route as Rule
from routing.core.ordering import in_order
from routing.core.review import Move, Status
from routing.core.watch import WatchStatus
from routing.models import RouteChange, Watch
from routing.review_wording import PLACE_STATE, WATCH, review_words
from routing.route_text import yaml_of
from routing.rules import Mistakes, parse_document, read_fallback_rules
from routing.serializers import ImpactDocument
from routing.wording import CHANGE_STATUS, extra_words, match_words, rule_words, strategy_words

TONE = {
    Status.DRAFT: IDLE,
    Status.IN_REVIEW: BUSY,
    Status.APPROVED: WARN,
    Status.PUBLISHED: GOOD,
    Status.REJECTED: BAD,
    Status.WITHDRAWN: IDLE,
}
WATCH_TONE = {
    WatchStatus.WATCHING: BUSY,
    WatchStatus.FINE: GOOD,
    WatchStatus.UNTRIED: IDLE,
    WatchStatus.WORSE: BAD,
    WatchStatus.REVERTED: BAD,
    WatchStatus.SUPERSEDED: IDLE,
}
PLACE_TONE = {"theirs": IDLE, "mine": BUSY, "same": GOOD, "conflict": BAD}
DIFFS_SHOWN = 200
FLOWS_DRAWN = 14
BARS_DRAWN = 20
ROWS_SHOWN = 50
SAMPLES_SHOWN = 12


def change_badge(change: RouteChange) -> str:
    return badge(label(CHANGE_STATUS, change.status), TONE[Status(change.status)])


# --- Tables ----------------------------------------------------------------------------------------------------------


def rules_in_order(document: Document) -> list[Rule]:
    """A table's routes as they are tried."""
    routes, _fallback_rules = parse_document(document, max_routes=settings.REACH_MAX_ROUTES)
    return list(in_order(routes))


def rule_shown(position: int, rule: Rule, document: dict[str, Any]) -> dict[str, Any]:
    """A route in words."""
    return {
        "position": position,
        "id": rule.id,
        "description": rule.description,
        "enabled": rule.enabled,
        "priority": rule.priority,
        "match": match_words(rule) or [_("every call")],
        "strategy": strategy_words(rule),
        "extra": extra_words(rule, document),
    }


def shown_table(document: Document) -> list[dict[str, Any]]:
    """All routes of a table in words, in the order in which they are tried."""
    written = {route["id"]: route for route in document["routes"]}
    return [rule_shown(n, rule, written[rule.id]) for n, rule in enumerate(rules_in_order(document), start=1)]


# --- Differences -----------------------------------------------------------------------------------------------------


def diff_shown(before: Document, after: Document) -> list[dict[str, Any]]:
    """What differs between two tables, a route each: in words, and as text with signs."""
    found = difference(before, after)
    old, new = ({row["id"]: row for row in shown_table(table)} for table in (before, after))
    parts = [
        part(_("changed"), WARN, edit["id"], edit["before"], edit["after"], old[edit["id"]], new[edit["id"]])
        for edit in found["changed"]
    ]
    parts += [part(_("new"), GOOD, r["id"], None, r, None, new[r["id"]]) for r in found["added"]]
    parts += [part(_("removed"), BAD, r["id"], r, None, old[r["id"]], None) for r in found["removed"]]
    if rules := found.get(RULES):
        parts.append(
            {
                "what": _("changed"),
                "tone": WARN,
                "id": RULES,
                "rows": [
                    (_("When a route has no rules of its own"), *map(rules_words, (rules["before"], rules["after"])))
                ],
                "lines": lines_of(rules["before"], rules["after"]),
            }
        )
    return parts[:DIFFS_SHOWN]


def part(
    what: str,
    tone: str,
    route_id: str,
    before: Document | None,
    after: Document | None,
    old: dict[str, Any] | None,
    new: dict[str, Any] | None,
) -> dict[str, Any]:
    told = [facet_words(old), facet_words(new)]
    names = list(dict.fromkeys([*told[0], *told[1]]))
    rows = [(name, told[0].get(name, []), told[1].get(name, [])) for name in names]
    return {
        "what": what,
        "tone": tone,
        "id": route_id,
        "rows": [row for row in rows if row[1] != row[2]],
        "lines": lines_of(before, after),
    }


def facet_words(row: dict[str, Any] | None) -> dict[str, list[str]]:
    """What a route says, by what it says it of."""
    if row is None:
        return {}
    told = {
        _("For which calls"): row["match"],
        _("Who gets the call"): [row["strategy"]],
        _("Priority"): [str(row["priority"])],
        _("Tried as number"): [str(row["position"])],
        _("What else"): row["extra"],
        _("State"): [] if row["enabled"] else [_("switched off")],
        _("Description"): [row["description"]] if row["description"] else [],
    }
    return {name: words for name, words in told.items() if words}


def rules_words(rules: list[Any]) -> list[str]:
    return [rule_words(rule) for rule in read_fallback_rules(rules, "", Mistakes())]


def lines_of(before: Any, after: Any) -> list[tuple[str, str]]:
    """Two documents as lines of YAML, each with `+`, `-` or a space."""
    old, new = text_of(before), text_of(after)
    return [(line[0], line[2:]) for line in difflib.ndiff(old, new) if line[0] != "?"]


def text_of(document: Any) -> Sequence[str]:
    return [] if document is None else yaml_of(document).splitlines()


def sides_shown(places: Iterable[Place]) -> list[dict[str, Any]]:
    """A route at the base, in the live table and as proposed, side by side."""
    return [
        {
            "route": place.route,
            "state": badge(label(PLACE_STATE, place.state), PLACE_TONE[place.state]),
            "is_conflict": place.state == "conflict",
            "sides": [
                (name, None if side is None else yaml_of(side))
                for name, side in (
                    (_("Base"), place.base),
                    (_("Live, by others"), place.theirs),
                    (_("This change"), place.mine),
                )
            ],
        }
        for place in places
    ]


# --- Impact ----------------------------------------------------------------------------------------------------------


def impact_shown(found: ImpactDocument) -> dict[str, Any]:
    """What a change would do, drawn and in numbers."""
    moved = found.moved
    flows = moved.get("flows") or []
    services = [row for row in found.services if row["before"] != row["after"]]
    alike = sum(row["before"] == row["after"] for row in found.services)
    return {
        "ready": found.status == "ready",
        "percent": round(100 * found.progress),
        "sampled": found.sampled_calls,
        "total": number(moved["total"]),
        "share": percent(moved["total"], found.sampled_calls),
        "left_out": found.left_out_calls,
        "stands_for": number(found.stands_for) if found.stands_for > 1 else "",
        "computed": moment(found.computed_at),
        "base_moved": found.base_moved,
        "shadowed": [shadow_shown(row) for row in found.shadowed_routes],
        "warnings": [*warnings_of(found)],
        "flows": [flow_row(flow) for flow in flows[:ROWS_SHOWN]],
        "services": [load_row(row["service"] or nobody(), row) for row in services[:ROWS_SHOWN]],
        "alike": ngettext("%(n)s service gets as many as before.", "%(n)s services get as many as before.", alike)
        % {"n": alike}
        if alike
        else "",
        "routes": [load_row(route_name(row["route"]), row) for row in found.routes[:ROWS_SHOWN]],
        "costs": [
            load_row(label(LEVEL, level), {side: found.cost_shift[side].get(level, 0) for side in ("before", "after")})
            for level in ("low", "medium", "high")
            if any(level in found.cost_shift[side] for side in ("before", "after"))
        ],
        "samples": [sample_shown(sample) for sample in found.samples[:SAMPLES_SHOWN]],
        "flow_chart": flow_chart(flows) if flows else None,
        "flow_rows": min(len(flows), FLOWS_DRAWN + 1),
        "load_chart": load_chart(services[:BARS_DRAWN]) if services else None,
        "load_rows": min(len(services), BARS_DRAWN),
    }


def number(calls: float) -> str:
    return f"{calls:,.0f}" if calls == round(calls) else f"{calls:,.1f}"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else NOTHING


def nobody() -> str:
    return pgettext("who gets a call", "nobody")


def route_name(route: str) -> str:
    return _("no route (auto)") if route == "auto" else route


def end_name(end: Mapping[str, Any]) -> str:
    """Route and service of one end of a flow."""
    return f"{route_name(end['route'])} → {end['service'] or nobody()}"


def shadow_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    words = (
        ngettext(
            "%(route)s loses all of its calls to %(by)s: %(n)s call of the sample.",
            "%(route)s loses all of its calls to %(by)s: %(n)s calls of the sample.",
            round(row["calls"]),
        )
        if row["whole"]
        else ngettext(
            "%(route)s loses some of its calls to %(by)s: %(n)s call of the sample.",
            "%(route)s loses some of its calls to %(by)s: %(n)s calls of the sample.",
            round(row["calls"]),
        )
    )
    return {"whole": row["whole"], "words": words % {"route": row["route"], "by": row["by"], "n": number(row["calls"])}}


def warnings_of(found: ImpactDocument) -> Iterable[str]:
    """What should be looked at twice, a sentence each."""
    for name in found.unprovided_capabilities:
        yield _("%(capability)s would be left without a provider.") % {"capability": name}
    for row in found.lost_calls:
        lost = {"n": number(row["calls"]), "capability": row["capability"], "code": row["code"]}
        yield _("%(n)s calls of %(capability)s found somebody, and would end with %(code)s.") % lost
    for row in found.dominant_services:
        yield _("%(service)s would take %(after)s of the calls of %(capability)s; it takes %(before)s today.") % {
            "service": row["service"],
            "capability": row["capability"],
            "after": percent(row["share_after"], 1),
            "before": percent(row["share_before"], 1),
        }
    for row in found.rate_limit_risks:
        yield _(
            "%(service)s would get %(capability)s at %(rate)s calls a second in the busiest minute; it takes %(limit)s."
        ) % {
            "service": row["service"],
            "capability": row["capability"],
            "rate": f"{row['after_per_s']:g}",
            "limit": f"{row['limit_per_s']:g}",
        }
    if calls := found.unknown["calls"]:
        places = sorted({f"{row['route']}: {row['condition']}" for row in found.unknown["conditions"]})
        told = ngettext(
            "The way of %(n)s call cannot be told, for it depends on values that are masked (%(places)s).",
            "The way of %(n)s calls cannot be told, for it depends on values that are masked (%(places)s).",
            calls,
        )
        yield told % {"n": calls, "places": ", ".join(places)}


def flow_row(flow: Mapping[str, Any]) -> dict[str, str]:
    return {"from": end_name(flow["from"]), "to": end_name(flow["to"]), "calls": number(flow["calls"])}


def load_row(name: str, row: Mapping[str, float]) -> dict[str, Any]:
    change = row["after"] - row["before"]
    return {
        "name": name,
        "before": number(row["before"]),
        "after": number(row["after"]),
        "change": f"{'+' if change > 0 else '−'}{number(abs(change))}" if change else "0",
        "tone": "" if not change else "more" if change > 0 else "less",
    }


def sample_shown(sample: Mapping[str, Any]) -> dict[str, str]:
    return {
        "id": sample["call_id"],
        "url": reverse("admin:receipts_call_change", args=[sample["call_id"]]),
        "capability": sample["capability"],
        "before": verdict_words(sample["before"]),
        "after": verdict_words(sample["after"]),
    }


def verdict_words(verdict: Mapping[str, Any]) -> str:
    takers = sorted(verdict["services"].items(), key=lambda item: -item[1])
    named = ", ".join(service if share > 0.999 else f"{service} {100 * share:.0f}\u00a0%" for service, share in takers)
    return f"{route_name(verdict['route'])} → {named or verdict.get('code') or nobody()}"


def flow_chart(flows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """From where to where calls move, as a sankey diagram (ECharts' options); small flows are one."""
    links = [
        link(end_name(f["from"]), end_name(f["to"]), f["calls"], goes=f["from"]["service"] != f["to"]["service"])
        for f in flows[:FLOWS_DRAWN]
    ]
    if rest := sum(flow["calls"] for flow in flows[FLOWS_DRAWN:]):
        links.append(link(_("others"), _("others"), rest, goes=True))
    ends = dict.fromkeys(drawn[side] for drawn in links for side in ("source", "target"))
    return {
        "tooltip": {"trigger": "item"},
        "series": [
            {
                "type": "sankey",
                "left": 4,
                "right": 4,
                "top": 12,
                "bottom": 12,
                "nodeGap": 14,
                "nodeWidth": 10,
                "draggable": False,
                "emphasis": {"focus": "adjacency"},
                "data": [
                    {
                        "name": end,
                        "depth": int(end[0]),
                        "itemStyle": {"color": "--r-soft" if end[0] == "0" else "--r-accent", "borderWidth": 0},
                        "label": {
                            "formatter": end[2:],
                            "position": "right" if end[0] == "0" else "left",
                            "overflow": "truncate",
                            "width": "--half",
                        },
                    }
                    for end in ends
                ],
                "links": links,
            }
        ],
    }


def link(before: str, after: str, calls: float, *, goes: bool) -> dict[str, Any]:
    """One flow of the diagram; those that go to another service stand out from those that only change their route."""
    colour, opacity = ("--r-accent", 0.45) if goes else ("--r-soft", 0.25)
    return {
        "source": f"0 {before}",
        "target": f"1 {after}",
        "value": calls,
        "lineStyle": {"color": colour, "opacity": opacity},
    }


def load_chart(services: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The calls of each service before and after, as bars (ECharts' options)."""
    sides = ((_("before"), "before", "--r-soft"), (_("after"), "after", "--r-accent"))
    return {
        "legend": {"top": 0, "left": 0, "itemWidth": 12, "itemHeight": 12},
        "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
        "grid": {"left": 12, "right": 28, "top": 32, "bottom": 4, "containLabel": True},
        "xAxis": {"type": "value", "minInterval": 1, "splitNumber": 4},
        "yAxis": {
            "type": "category",
            "inverse": True,
            "data": [row["service"] or nobody() for row in services],
            "axisTick": {"show": False},
            "axisLabel": {"width": 130, "overflow": "truncate"},
        },
        "series": [
            {
                "type": "bar",
                "name": name,
                "data": [row[side] for row in services],
                "itemStyle": {"color": colour, "borderRadius": [0, 2, 2, 0]},
                "barMaxWidth": 12,
                "barGap": "20%",
            }
            for name, side, colour in sides
        ],
    }


# --- After publishing ------------------------------------------------------------------------------------------------


def watch_shown(watch: Watch) -> dict[str, Any]:
    """How the calls fare that a published change moves."""
    before, after = watch.before or {}, watch.after or {}
    names = sorted({*before, *after} - {""})
    return {
        "state": watch.status,
        "status": badge(label(WATCH, watch.status), WATCH_TONE[WatchStatus(watch.status)]),
        "goes_on": watch.status == WatchStatus.WATCHING,
        "is_bad": watch.status in (WatchStatus.WORSE, WatchStatus.REVERTED),
        "told": review_words(watch.told),
        "alerted": moment(watch.alerted_at),
        "ends": exactly(watch.ends_at),
        "rows": [
            (name or _("all together"), fared_words(before.get(name)), fared_words(after.get(name)))
            for name in ("", *names)
        ],
    }


def fared_words(fared: Mapping[str, Any] | None) -> str:
    if not fared or not fared["calls"]:
        return NOTHING
    share = percent(fared["troubled"], fared["calls"])
    told = ngettext(
        "%(n)s call, %(share)s in trouble, %(median)s in the median",
        "%(n)s calls, %(share)s in trouble, %(median)s in the median",
        fared["calls"],
    )
    return told % {"n": number(fared["calls"]), "share": share, "median": duration(fared["median_ms"])}


# --- What was done ---------------------------------------------------------------------------------------------------

ICON = {
    "propose": ("edit_note", IDLE),
    Move.EDIT: ("edit", IDLE),
    Move.SUBMIT: ("send", BUSY),
    Move.REBASE: ("merge", BUSY),
    Move.APPROVE: ("check_circle", GOOD),
    Move.REJECT: ("cancel", BAD),
    Move.WITHDRAW: ("undo", IDLE),
    Move.PUBLISH: ("rocket_launch", GOOD),
    Move.BREAK_GLASS: ("local_fire_department", BAD),
    Move.RESTORE: ("settings_backup_restore", WARN),
    Move.COMMENT: ("chat", BUSY),
    "alert": ("warning", BAD),
}


def step_shown(event: AuditEvent) -> dict[str, Any]:
    """One thing that was done to a change."""
    icon, tone = ICON.get(event.action.removeprefix("route_change."), ("circle", IDLE))
    said = event.detail.get("comment") or event.detail.get("reason") or ""
    acknowledged = event.detail.get("acknowledged") or []
    return {
        "icon": icon,
        "tone": tone,
        "who": event.actor.removeprefix("user:"),
        "words": label(AUDIT_ACTION, event.action),
        "at": moment(event.at),
        "said": review_words(said),
        "acknowledged": ", ".join(acknowledged),
    }
