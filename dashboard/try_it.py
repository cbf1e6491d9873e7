"""Try a capability: a form made of its schema, and a real call, made by the person who has filled it in."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from dashboard.trace import call_url
from receipts.core.envelope import CallEnvelope, parse_envelope
from receipts.recovery import is_any_engine_alive
from registry.admin import schema_shown
from registry.clock import now_millis
from registry.console import actor, duration, page_url
from registry.core.node import Tier
from registry.core.schema_form import Field, Mistake, Widget, filled_in, first_payload, form_of, parse_json, payload_of
from registry.core.schema_reading import read_schema
from registry.errors import InvalidRequest
from registry.models import Capability, Declaration
from registry.schema_words import limit_words, type_words
from registry.schemas import compile_schema
from routing.asking import ask

MISTAKE: Mapping[Mistake, Promise] = {
    Mistake.MISSING: gettext_lazy("It is required."),
    Mistake.NOT_WHOLE: gettext_lazy("Not a whole number."),
    Mistake.NO_NUMBER: gettext_lazy("Not a number."),
    Mistake.NO_JSON: gettext_lazy("Not JSON. Texts stand in double quotes, and nothing follows the last entry."),
    Mistake.NO_CHOICE: gettext_lazy("Not among the choices."),
}
URGENCIES = {
    "normal": gettext_lazy("normal"),
    "interactive": gettext_lazy("interactive: before others"),
    "bulk": gettext_lazy("bulk: after others"),
}
OFFERS_SHOWN = 20
MAX_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Variant:
    """One input schema of a capability, and who declares it."""

    schema: Any
    version: str
    providers: tuple[str, ...]
    ready: int
    tier: str
    examples: tuple[Any, ...]
    idempotent: bool


def variants_of(name: str) -> list[Variant]:
    """The schemas that providers declare, those with most ready nodes first. Raises Http404."""
    if not Capability.objects.filter(pk=name).exists():
        raise Http404
    declared = (
        Declaration.objects.filter(capability=name, node__deleted_at=None)
        .select_related("node__lease")
        .order_by("node__service_id", "node__node_id")
    )
    alike: dict[str, list[Declaration]] = {}
    for declaration in declared:
        alike.setdefault(json.dumps(declaration.input_schema, sort_keys=True), []).append(declaration)
    found = [
        Variant(
            group[0].input_schema,
            group[0].version,
            tuple(str(one.node) for one in group),
            sum(one.node.status.name == "ready" for one in group),
            group[0].timeout_tier,
            tuple(example for one in group[:1] for example in one.examples),
            all(one.idempotent for one in group),
        )
        for group in alike.values()
    ]
    return sorted(found, key=lambda variant: -variant.ready)[:OFFERS_SHOWN]


@require_http_methods(["GET", "POST"])
def try_it(request: HttpRequest, name: str) -> HttpResponse:
    """GET: the form. POST: the call, or the form with what is wrong."""
    if not request.user.has_perm("receipts.add_call"):
        raise PermissionDenied
    variants = variants_of(name)
    if not variants:
        return shown(request, name, variants, 0, {}, {}, [])
    given = request.POST if request.method == "POST" else request.GET
    chosen = number_within(given.get("variant", ""), len(variants))
    variant = variants[chosen]
    form = form_of(read_schema(variant.schema))
    if request.method == "GET":
        example = variant.examples[0] if variant.examples else first_payload(form.part)
        values = filled_in(form, {} if example is None else example)
        raw = json.dumps({} if example is None else example, indent=2, ensure_ascii=False)
        return shown(request, name, variants, chosen, values, {}, [], raw=raw)
    as_raw = "raw" in request.POST or form.widget is not Widget.GROUP
    written = request.POST.get("json", "")
    mistakes: dict[str, str] = {}
    if as_raw:
        payload, mistakes = raw_payload(written)
    else:
        payload, unread = payload_of(form, request.POST)
        mistakes = {pointer: str(MISTAKE[mistake]) for pointer, mistake in unread.items()}
    others: list[str] = []
    if not mistakes:
        mistakes, others = refused(payload, variants, chosen, form)
    if not mistakes and not others:
        try:
            envelope = envelope_of(request, name, payload)
        except InvalidRequest as exc:
            others = [str(exc)]
        else:
            call = ask(envelope, tier=Tier(variant.tier), by=actor(request))
            return HttpResponseRedirect(call_url(call.trace_id, call.pk))
    values = filled_in(form, payload) if as_raw else posted_values(form, request)
    raw = written if as_raw else json.dumps(payload, indent=2, ensure_ascii=False)
    return shown(request, name, variants, chosen, values, mistakes, others, raw=raw, as_raw=as_raw)


def number_within(text: str, count: int) -> int:
    return int(text) if text.isdecimal() and int(text) < count else 0


def raw_payload(written: str) -> tuple[Any, dict[str, str]]:
    try:
        return parse_json(written), {}
    except ValueError:
        return None, {"": str(MISTAKE[Mistake.NO_JSON])}


def posted_values(form: Field, request: HttpRequest) -> dict[str, list[str]]:
    return {field.name: list(map(str, request.POST.getlist(field.name))) for field in form.walk()}


def refused(payload: Any, variants: Sequence[Variant], chosen: int, form: Field) -> tuple[dict[str, str], list[str]]:
    """What is wrong with a payload that no provider takes: at its field, or at none."""
    if any(compile_schema(variant.schema).accepts(payload) for variant in variants):
        return {}, []
    known = {field.pointer for field in form.walk()}
    at_field: dict[str, str] = {}
    others = []
    for error in compile_schema(variants[chosen].schema).errors(payload, ""):
        pointer = error["path"]
        while pointer and pointer not in known:
            pointer = pointer.rpartition("/")[0]
        if pointer and pointer in known:
            told = error["message"] if pointer == error["path"] else f"{error['path']}: {error['message']}"
            at_field.setdefault(pointer, told)
        else:
            others.append(f"{error['path'] or '/'}: {error['message']}")
    return at_field, others


def envelope_of(request: HttpRequest, name: str, payload: Any) -> CallEnvelope:
    """The envelope of the person's call, by the same reading as everybody's. Raises InvalidRequest."""
    body: dict[str, Any] = {"capability": name, "payload": payload, "mode": "async"}
    body["urgency"] = request.POST.get("urgency") or "normal"
    body["tags"] = [tag.strip() for tag in request.POST.get("tags", "").split(",") if tag.strip()]
    if seconds := request.POST.get("timeout_s", "").strip():
        if not seconds.isdecimal() or not 1 <= int(seconds) <= MAX_TIMEOUT_S:
            raise InvalidRequest(_("Seconds from 1 to %(n)s.") % {"n": MAX_TIMEOUT_S}, [])
        body["timeout_ms"] = int(seconds) * 1000
    return parse_envelope(
        json.dumps(body).encode(),
        caller=actor(request),
        received_at_millis=now_millis(),
        max_depth=settings.REACH_MAX_JSON_DEPTH,
        max_containers=settings.REACH_MAX_JSON_CONTAINERS,
        max_context_bytes=settings.REACH_MAX_CONTEXT_BYTES,
    )


# --- The form --------------------------------------------------------------------------------------------------------


def shown(
    request: HttpRequest,
    name: str,
    variants: Sequence[Variant],
    chosen: int,
    values: Mapping[str, Sequence[str]],
    mistakes: Mapping[str, str],
    others: Sequence[str],
    *,
    raw: str = "",
    as_raw: bool = False,
) -> HttpResponse:
    variant = variants[chosen] if variants else None
    form = form_of(read_schema(variant.schema)) if variant else None
    is_raw_only = form is not None and form.widget is not Widget.GROUP
    posted = request.POST
    context = {
        **admin.site.each_context(request),
        "title": _("Try %(capability)s") % {"capability": name},
        "name": name,
        "variants": [
            {
                "number": number,
                "chosen": number == chosen,
                "label": one.version or _("no version"),
                "providers": ", ".join(one.providers[:3]) + (" …" if len(one.providers) > 3 else ""),
            }
            for number, one in enumerate(variants)
        ],
        "variant": variant,
        "chosen": chosen,
        "field": field_shown(form, values, mistakes) if form and not is_raw_only else None,
        "raw": raw,
        "as_raw": as_raw or is_raw_only,
        "is_raw_only": is_raw_only,
        "raw_mistake": mistakes.get("", "") if as_raw or is_raw_only else "",
        "raw_mistakes": [f"{pointer or '/'}: {told}" for pointer, told in mistakes.items()] if as_raw else [],
        "others": others,
        "many_mistakes": len(mistakes) + len(others),
        "caller": actor(request),
        "nobody_ready": variant is not None and not any(one.ready for one in variants),
        "nobody_listens": not is_any_engine_alive(),
        "urgencies": [
            {"value": value, "label": text, "chosen": value == (posted.get("urgency") or "normal")}
            for value, text in URGENCIES.items()
        ],
        "tags": posted.get("tags", ""),
        "timeout_s": posted.get("timeout_s", ""),
        "usual": usual_time(variant) if variant else "",
        "schema": schema_shown(variant.schema) if variant else None,
        "back": page_url("registry_capability", name),
    }
    return render(request, "dashboard/try_it.html", context, status=422 if mistakes or others else 200)


def usual_time(variant: Variant) -> str:
    seconds = {
        Tier.LIGHT: settings.REACH_TIER_LIGHT_S,
        Tier.MEDIUM: settings.REACH_TIER_MEDIUM_S,
        Tier.HEAVY: settings.REACH_TIER_HEAVY_S,
    }[Tier(variant.tier)]
    return duration(seconds * 1000)


def field_shown(field: Field, values: Mapping[str, Sequence[str]], mistakes: Mapping[str, str]) -> dict[str, Any]:
    """A field, ready for the template."""
    part, given = field.part, list(values.get(field.name, ()))
    number = field.widget in (Widget.WHOLE, Widget.NUMBER)
    return {
        "id": "f" + field.pointer.replace("/", "-").replace("~", "_").replace(" ", "_"),
        "name": field.name,
        "label": part.title or part.name,
        "key": part.name if part.title else "",
        "widget": field.widget.value,
        "type": type_words(part),
        "required": part.required,
        "help": part.description,
        "limits": " · ".join(limit_words(part)) if field.widget not in (Widget.CHOICE,) else "",
        "value": given[0] if given else "",
        "options": [{"value": value, "label": text, "chosen": value in given} for value, text in field.options],
        "low": part.limits.get("minimum") if number else None,
        "high": part.limits.get("maximum") if number else None,
        "step": "1" if field.widget is Widget.WHOLE else "any",
        "most": part.limits.get("maxLength"),
        "sensitive": part.sensitive,
        "mistake": mistakes.get(field.pointer, ""),
        "fields": [field_shown(inner, values, mistakes) for inner in field.fields],
    }
