"""Route documents: text → document → routes → table. Every mistake is found at once and named by its JSON pointer.

The shape is CONTRACT §7, in YAML or JSON. What this version cannot do is refused, never accepted and ignored.
"""

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import re2
import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from rapidfuzz import process

from registry.errors import InvalidRequest
from routing.core.conditions import Check, Condition, Operator, Source, is_number
from routing.core.matching import CapabilityPattern, FallbackRule, Kind, Route, RouteTable, Strategy, compiled_glob
from routing.core.ordering import in_order
from routing.core.similarity import likeness
from routing.core.sticking import CallKey, Canary, Mirror
from routing.errors import UnreadableText

MAX_TEXT_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 32
MAX_ERRORS = 100
MAX_LIST = 1000
MAX_OPERATIONS = 10_000
MAX_TEXT = 1024
MAX_WEIGHT = 1_000_000
MAX_PRIORITY = 1_000_000_000
MAX_TIMEOUT_MS = 600_000
MAX_RETRIES = 2  # CONTRACT §7: may only be lowered
MAX_NUMBER = 2**63
SURROGATES = re.compile("[\ud800-\udfff]")

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
GLOB = re.compile(r"[a-z0-9_.\-*?\[\]!]{1,63}")
ROUTE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
CALLER = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}|user:.{1,150}")
RESERVED_IDS = {"auto"}  # what `route_id` says when no route matched

TABLE_KEYS = ("routes", "fallback_rules")
ROUTE_KEYS = (
    "id", "description", "enabled", "priority", "match", "strategy", "fallback_rules", "node_tags", "node_version",
    "timeout_ms", "retry", "allow_callers", "canary", "mirror",
)  # fmt: skip
MATCH_KEYS = ("capability", "tags", "caller", "urgency")
STRATEGY_KEYS = {
    "exact": ("type", "service"),
    "weighted_random": ("type", "services", "weights"),
    "least_loaded": ("type", "services"),
    "latency_aware": ("type", "services"),
    "cost_aware": ("type", "services"),
    "sticky": ("type", "services", "key"),
    "fuzzy": ("type", "services", "min_score"),
}
RULE_KEYS = ("condition", "action", "wait_before_retry_ms", "service", "capability")
CONDITIONS = ("no_available_node", "circuit_open", "rate_limited", "timeout", "error")
ACTIONS = ("return_503", "next_route", "retry", "route_to")
PLAIN_KEYS = ("caller", "session_id", "trace_id")
URGENCIES = ("interactive", "normal", "bulk")


# --- Text → document -------------------------------------------------------------------------------------------------


class StrictLoader(yaml.SafeLoader):
    """Safe YAML without its traps: no aliases (bombs), tags or duplicate keys, bounded depth; `on`, `no`, dates and
    times stay the text they look like (YAML 1.2's core schema)."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise MarkedProblem("aliases (*name) are not allowed", event.start_mark)
        if event.tag is not None:
            raise MarkedProblem(f"tags ({event.tag}) are not allowed", event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise MarkedProblem(f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        text = super().construct_scalar(node)
        if "\x00" in text or SURROGATES.search(text):
            raise MarkedProblem("holds U+0000 or half of a surrogate pair", node.start_mark)
        return text

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise MarkedProblem(f"the key {key_node.value!r} is not text: quote it", key_node.start_mark)
            if key in mapping:
                raise MarkedProblem(f"the key {key!r} stands here twice", key_node.start_mark)
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping


class MarkedProblem(yaml.MarkedYAMLError):
    """A mistake in the text with its line and column."""

    def __init__(self, problem: str, mark: Any):
        super().__init__(problem=problem, problem_mark=mark)


def construct_int(loader: StrictLoader, node: yaml.ScalarNode) -> int:
    if len(node.value) > 20:
        raise MarkedProblem("the number is too large", node.start_mark)
    return int(node.value)


def construct_map(loader: StrictLoader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    return loader.construct_mapping(node, deep=True)


StrictLoader.yaml_implicit_resolvers = {}
for tag, pattern, first in (
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    ("tag:yaml.org,2002:float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    StrictLoader.add_implicit_resolver(tag, re.compile(rf"^(?:{pattern})$"), list(first))
StrictLoader.add_constructor("tag:yaml.org,2002:int", construct_int)
StrictLoader.add_constructor("tag:yaml.org,2002:map", construct_map)


def load_text(text: str, name: str) -> Any:
    """YAML (or JSON, which is YAML) → document. Raises InvalidRequest with line and column; `name` is the file's."""
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        raise UnreadableText(name, f"larger than {MAX_TEXT_BYTES} bytes", placed=False)
    try:
        return yaml.load(text, StrictLoader)
    except yaml.MarkedYAMLError as exc:
        problem = str(exc.problem)
        if (mark := exc.problem_mark) is None:
            raise UnreadableText(name, problem, placed=False) from exc
        raise UnreadableText(name, problem, mark.line + 1, mark.column + 1) from exc
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise UnreadableText(name, str(exc), placed=False) from exc


# --- Document → routes -----------------------------------------------------------------------------------------------


class Mistakes:
    """What is wrong with a document, each with its place."""

    def __init__(self) -> None:
        self.errors: list[dict[str, str]] = []

    def add(self, path: str, message: str) -> None:
        self.errors.append({"path": path, "message": message})

    def raise_if_any(self, what: str) -> None:
        if not self.errors:
            return
        first, count = self.errors[0], len(self.errors)
        more = f" (and {count - 1} more)" if count > 1 else ""
        place = first["path"] or "the document"
        raise InvalidRequest(f"{what}: {place}: {first['message']}{more}", self.errors[:MAX_ERRORS])


def parse_document(document: Any, *, max_routes: int) -> tuple[tuple[Route, ...], tuple[FallbackRule, ...]]:
    """A whole table: its routes in the order written, and the fallback rules that those without their own were given.

    Raises InvalidRequest with every mistake.
    """
    mistakes = Mistakes()
    routes: list[Route] = []
    rules: tuple[FallbackRule, ...] = ()
    if table := read_object(document, "", mistakes, TABLE_KEYS, required=("routes",)):
        rules = read_fallback_rules(table.get("fallback_rules"), "/fallback_rules", mistakes)
        written = table.get("routes")
        if not isinstance(written, list):
            mistakes.add("/routes", "must be a list")
        elif len(written) > max_routes:
            mistakes.add("/routes", f"holds {len(written)} routes; at most {max_routes} are allowed")
        else:
            seen: set[str] = set()
            for index, item in enumerate(written):
                route = read_route(item, f"/routes/{index}", mistakes, rules)
                if route is None:
                    continue
                if route.id in seen:
                    mistakes.add(f"/routes/{index}/id", f"{route.id!r} is the id of an earlier route")
                elif route.id:
                    seen.add(route.id)
                routes.append(route)
    mistakes.raise_if_any("the routes are not valid")
    return tuple(routes), rules


def check_operations(operations: Any, *, known_ids: Collection[str], base_revision: int) -> None:
    """Raise InvalidRequest with every mistake in a list of `put` and `delete` operations on a table with these ids."""
    mistakes = Mistakes()
    if not isinstance(operations, list) or not 1 <= len(operations) <= MAX_OPERATIONS:
        mistakes.add("/operations", f"must be a list of 1 to {MAX_OPERATIONS} operations")
        operations = []
    seen: set[str] = set()
    for index, operation in enumerate(operations):
        path = f"/operations/{index}"
        kind = operation.get("op") if isinstance(operation, dict) else None
        if kind == "put":
            read_route({key: value for key, value in operation.items() if key != "op"}, path, mistakes)
        elif kind == "delete":
            read_object(operation, path, mistakes, ("op", "id"), required=("id",))
        else:
            mistakes.add(f"{path}/op", f"must be put or delete, not {shown(kind)}")
            continue
        route_id = operation.get("id")
        if not isinstance(route_id, str):
            if kind == "delete" and route_id is not None:
                mistakes.add(f"{path}/id", f"must be text, not {kind_of(route_id)}")
            continue
        if route_id in seen:
            mistakes.add(f"{path}/id", f"{route_id!r} has an earlier operation")
        elif kind == "delete" and route_id not in known_ids:
            mistakes.add(f"{path}/id", f"revision {base_revision} has no route {route_id!r}")
        seen.add(route_id)
    mistakes.raise_if_any("the operations are not valid")


def read_route(value: Any, path: str, mistakes: Mistakes, table_rules: tuple[FallbackRule, ...] = ()) -> Route | None:
    """One route, with its mistakes added to `mistakes` (its id is then empty where that is one); None if no object."""
    route = read_object(value, path, mistakes, ROUTE_KEYS, required=("id", "match", "strategy"))
    if route is None:
        return None
    capability, conditions = read_match(route["match"], f"{path}/match", mistakes) if "match" in route else (None, ())
    retry = read_object(
        route.get("retry", {}), f"{path}/retry", mistakes, ("max_retries", "retry_base_delay_ms", "total_ms")
    )
    retry = retry or {}
    strategy = read_strategy(route.get("strategy"), f"{path}/strategy", mistakes)
    if strategy.type == "fuzzy" and capability is not None and capability.kind is Kind.FUZZY:
        strategy = replace(strategy, text=capability.text)
    return Route(
        id=read_route_id(route["id"], f"{path}/id", mistakes) if "id" in route else "",
        description=read_text(route.get("description", ""), f"{path}/description", mistakes, at_most=4 * MAX_TEXT),
        enabled=read_bool(route.get("enabled", True), f"{path}/enabled", mistakes),
        priority=read_int(route.get("priority", 0), f"{path}/priority", mistakes, -MAX_PRIORITY, MAX_PRIORITY),
        capability=capability,
        conditions=conditions,
        strategy=strategy,
        fallback_rules=read_fallback_rules(route["fallback_rules"], f"{path}/fallback_rules", mistakes)
        if "fallback_rules" in route
        else table_rules,
        canary=read_canary(route.get("canary"), f"{path}/canary", mistakes),
        mirror=read_mirror(route.get("mirror"), f"{path}/mirror", mistakes),
        node_tags=frozenset(read_texts(route.get("node_tags"), f"{path}/node_tags", mistakes)),
        node_version=read_version_range(route.get("node_version"), f"{path}/node_version", mistakes),
        allow_callers=frozenset(
            read_names(route.get("allow_callers"), f"{path}/allow_callers", mistakes, CALLER, "a service or user:NAME")
        ),
        timeout_ms=read_optional_int(route, "timeout_ms", path, mistakes, 1, MAX_TIMEOUT_MS),
        max_retries=read_optional_int(retry, "max_retries", f"{path}/retry", mistakes, 0, MAX_RETRIES),
        retry_base_delay_ms=read_optional_int(retry, "retry_base_delay_ms", f"{path}/retry", mistakes, 0, 60_000),
        retry_total_ms=read_optional_int(retry, "total_ms", f"{path}/retry", mistakes, 0, MAX_TIMEOUT_MS),
    )


def read_match(value: Any, path: str, mistakes: Mistakes) -> tuple[CapabilityPattern | None, tuple[Condition, ...]]:
    """Everything that must hold for the route."""
    if not isinstance(value, dict):
        mistakes.add(path, "must be an object")
        return None, ()
    capability = None
    conditions: list[Condition] = []
    for key, wanted in value.items():
        place = f"{path}/{escaped(key)}"
        source, dot, rest = str(key).partition(".")
        names = tuple(rest.split(".")) if dot else ()
        checks: tuple[Check, ...] = ()
        if key == "capability":
            capability = read_capability(wanted, place, mistakes)
            continue
        if source in (Source.INPUT, Source.LABELS) and (not dot or "" in names):
            mistakes.add(place, f"names no field: write {source}.<name>")
        elif source == Source.INPUT:
            checks = read_checks(wanted, place, mistakes)
        elif source == Source.LABELS:
            names = (rest,)  # a label's name may hold dots
            checks = read_options(wanted, place, mistakes, lambda text: True, "text")
        elif key == "caller":
            checks = read_options(
                wanted, place, mistakes, lambda text: CALLER.fullmatch(text) is not None, "a service id or user:NAME"
            )
        elif key == "urgency":
            checks = read_options(wanted, place, mistakes, URGENCIES.__contains__, one_of(URGENCIES))
        elif key == "tags":
            tags = frozenset(read_texts(wanted, place, mistakes, needed=True))
            checks = (Check(Operator.INCLUDE, tags, shown(sorted(tags))),)
        else:
            mistakes.add(place, unknown_key(key, (*MATCH_KEYS, "input.<path>", "labels.<key>")))
        if checks:
            conditions.append(Condition(Source(source), names, checks))
    return capability, tuple(conditions)


def read_capability(value: Any, path: str, mistakes: Mistakes) -> CapabilityPattern | None:
    """An exact name, a glob, or `{fuzzy: text, min_score: 0.6}`."""
    if isinstance(value, dict):
        fuzzy = read_object(value, path, mistakes, ("fuzzy", "min_score"), required=("fuzzy",)) or {}
        text = read_text(fuzzy.get("fuzzy", "-"), f"{path}/fuzzy", mistakes, at_least=1)
        min_score = read_min_score(fuzzy, path, mistakes)
        return None if min_score is None else CapabilityPattern(Kind.FUZZY, text, min_score)
    if not isinstance(value, str):
        mistakes.add(path, f"must be a name, a glob or {{fuzzy: text}}, not {kind_of(value)}")
    elif NAME.fullmatch(value):
        return CapabilityPattern(Kind.EXACT, value)
    elif any(wild in value for wild in "*?[") and GLOB.fullmatch(value):
        return CapabilityPattern(Kind.GLOB, value)
    else:
        mistakes.add(path, f"{value!r} is neither a capability's name (a-z, 0-9, _ . -) nor a glob of one")
    return None


def read_min_score(holder: Mapping[str, Any], path: str, mistakes: Mistakes) -> float | None:
    """The least likeness, None where it is not one."""
    min_score = holder.get("min_score", 0.6)
    if not is_number(min_score) or not 0 < min_score <= 1:
        mistakes.add(f"{path}/min_score", "must be a number above 0 and at most 1")
        return None
    return float(min_score)


def read_checks(value: Any, path: str, mistakes: Mistakes) -> tuple[Check, ...]:
    """A scalar, a list (any of), or an object of operators, all of which must pass."""
    if isinstance(value, list):
        return read_check(Operator.IN, value, path, mistakes)
    if not isinstance(value, dict):
        return read_check(Operator.EQ, value, path, mistakes)
    if not value:
        mistakes.add(path, "names no operator")
    checks: list[Check] = []
    operators = tuple(o.value for o in Operator if o is not Operator.INCLUDE)
    for name, operand in value.items():
        place = f"{path}/{escaped(name)}"
        if name in operators:
            checks += read_check(Operator(name), operand, place, mistakes)
        else:
            mistakes.add(place, unknown_key(name, operators, "operator"))
    return tuple(checks)


def read_check(operator: Operator, operand: Any, path: str, mistakes: Mistakes) -> tuple[Check, ...]:
    """One operator with an operand of the type it takes; nothing when that is wrong."""
    wanted = None
    text = shown(operand)
    match operator:
        case Operator.EQ | Operator.NE:
            wanted = None if is_scalar(operand) else "text, a number, true, false or null"
        case Operator.IN:
            fits = isinstance(operand, list) and 1 <= len(operand) <= MAX_LIST and all(map(is_scalar, operand))
            wanted = None if fits else f"a list of 1 to {MAX_LIST} scalars"
        case Operator.GT | Operator.GTE | Operator.LT | Operator.LTE:
            wanted = None if is_number(operand) and is_scalar(operand) else "a number"
        case Operator.EXISTS:
            wanted = None if isinstance(operand, bool) else "true or false"
        case Operator.PREFIX | Operator.PATTERN:
            fits = isinstance(operand, str) and 1 <= len(operand) <= MAX_TEXT
            wanted = None if fits else f"text of 1 to {MAX_TEXT} characters"
    if wanted:
        mistakes.add(path, f"must be {wanted}, not {text}")
        return ()
    if operator is Operator.PATTERN:
        try:
            operand = compiled_pattern(operand)
        except re2.error as exc:
            mistakes.add(path, f"is not a pattern (RE2 syntax): {exc.args[0].decode(errors='replace')}")
            return ()
    return (Check(operator, tuple(operand) if operator is Operator.IN else operand, text),)


@lru_cache(maxsize=4096)
def compiled_pattern(text: str) -> Any:
    """A pattern of the linear-time engine. Raises re2.error; `max_mem` bounds what a short text can grow into."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    return re2.compile(text, options)


def read_options(
    value: Any, path: str, mistakes: Mistakes, allowed: Callable[[str], bool], what: str
) -> tuple[Check, ...]:
    """A text or a list of texts (any of), each `allowed`."""
    if isinstance(value, dict):
        mistakes.add(path, "takes a text or a list of texts; operators are for input.<path>")
        return ()
    options = value if isinstance(value, list) else [value]
    if not 1 <= len(options) <= MAX_LIST:
        mistakes.add(path, f"must hold 1 to {MAX_LIST} texts")
        return ()
    for index, option in enumerate(options):
        place = f"{path}/{index}" if isinstance(value, list) else path
        if not isinstance(option, str):
            mistakes.add(place, f"must be text, not {kind_of(option)}: quote it")
        elif not allowed(option):
            mistakes.add(place, f"{option!r} must be {what}")
    operator = Operator.IN if isinstance(value, list) else Operator.EQ
    return (Check(operator, tuple(options) if operator is Operator.IN else value, shown(value)),)


def read_strategy(value: Any, path: str, mistakes: Mistakes) -> Strategy:
    """How a node is chosen."""
    nothing = Strategy("least_loaded")
    if value is None:
        return nothing  # its absence has been named already
    if not isinstance(value, dict):
        mistakes.add(path, f"must be an object, not {kind_of(value)}")
        return nothing
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in STRATEGY_KEYS:
        mistakes.add(
            f"{path}/type", f"{shown(kind)} must be {one_of(STRATEGY_KEYS)}{did_you_mean(kind, STRATEGY_KEYS)}"
        )
        return nothing
    required = {"exact": ("service",), "sticky": ("key",)}.get(kind, ())
    strategy = read_object(value, path, mistakes, STRATEGY_KEYS[kind], required=required) or {}
    if kind == "exact":
        service = strategy.get("service")
        if service is not None and not (isinstance(service, str) and NAME.fullmatch(service)):
            mistakes.add(f"{path}/service", f"{shown(service)} is not a service id")
        return Strategy(kind, services=(str(service),))
    services = read_names(strategy.get("services"), f"{path}/services", mistakes, NAME, "a service id") or None
    weights = read_weights(strategy.get("weights"), f"{path}/weights", mistakes)
    if services and weights and set(services) != set(weights):
        mistakes.add(f"{path}/weights", "must name exactly the services of `services`")
    return Strategy(
        kind,
        services=services or (tuple(weights) if weights else None),
        weights=weights,
        key=read_key(strategy["key"], f"{path}/key", mistakes) if "key" in strategy else None,
        min_score=read_min_score(strategy, path, mistakes) or 0.0,
    )


def read_key(value: Any, path: str, mistakes: Mistakes) -> CallKey:
    """What of a call decides whom it sticks to."""
    source, dot, rest = value.partition(".") if isinstance(value, str) else ("", "", "")
    names = tuple(rest.split(".")) if source == Source.INPUT else (rest,)
    if dot and source in (Source.INPUT, Source.LABELS) and "" not in names and len(rest) <= MAX_TEXT:
        return CallKey(source, names)
    if value not in PLAIN_KEYS:
        near = did_you_mean(value, PLAIN_KEYS)
        mistakes.add(path, f"{shown(value)} must be {one_of((*PLAIN_KEYS, 'input.<path>', 'labels.<key>'))}{near}")
    return CallKey(str(value))


def read_canary(value: Any, path: str, mistakes: Mistakes) -> Canary | None:
    """A stable share of the calls for one service."""
    if value is None:
        return None
    canary = read_object(value, path, mistakes, ("service", "percent", "sticky_by"), required=("service", "percent"))
    if canary is None:
        return None
    key = read_key(canary.get("sticky_by", "trace_id"), f"{path}/sticky_by", mistakes)
    return Canary(*read_share(canary, path, mistakes), key)


def read_mirror(value: Any, path: str, mistakes: Mistakes) -> Mirror | None:
    """A stable share of the calls that is copied to one service."""
    if value is None:
        return None
    mirror = read_object(value, path, mistakes, ("service", "percent"), required=("service", "percent"))
    return None if mirror is None else Mirror(*read_share(mirror, path, mistakes))


def read_share(value: dict[str, Any], path: str, mistakes: Mistakes) -> tuple[str, float]:
    """A service and its percentage."""
    service, percent = value.get("service", "-"), value.get("percent", 0)
    if not isinstance(service, str) or ("service" in value and not NAME.fullmatch(service)):
        mistakes.add(f"{path}/service", f"{shown(service)} is not a service id")
    if not is_number(percent) or not 0 <= percent <= 100:
        mistakes.add(f"{path}/percent", f"must be a number from 0 to 100, not {shown(percent)}")
        percent = 0
    return str(service), float(percent)


def read_weights(value: Any, path: str, mistakes: Mistakes) -> dict[str, int] | None:
    """Shares by service, or None where there are none (all equal)."""
    if value is None:
        return None
    if not isinstance(value, dict) or not value:
        mistakes.add(path, "must be an object of services and their weights; leave it out for equal shares")
        return None
    for service, weight in value.items():
        if not NAME.fullmatch(service):
            mistakes.add(f"{path}/{escaped(service)}", f"{service!r} is not a service id")
        read_int(weight, f"{path}/{escaped(service)}", mistakes, 0, MAX_WEIGHT)
    if all(weight == 0 for weight in value.values()):
        mistakes.add(path, "all are 0: no service would receive anything")
    return dict(value)


def read_fallback_rules(value: Any, path: str, mistakes: Mistakes) -> tuple[FallbackRule, ...]:
    """What to do when a call is stopped on its route."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_LIST:
        mistakes.add(path, "must be a list")
        return ()
    rules = []
    for index, item in enumerate(value):
        place = f"{path}/{index}"
        rule = read_object(item, place, mistakes, RULE_KEYS, required=("condition", "action"))
        if not rule or "condition" not in rule or "action" not in rule:
            continue
        condition, action = rule["condition"], rule["action"]
        if condition not in CONDITIONS:
            mistakes.add(f"{place}/condition", f"must be {one_of(CONDITIONS)}{did_you_mean(condition, CONDITIONS)}")
        if action not in ACTIONS:
            mistakes.add(f"{place}/action", f"must be {one_of(ACTIONS)}{did_you_mean(action, ACTIONS)}")
        wait_ms = read_optional_int(rule, "wait_before_retry_ms", place, mistakes, 0, MAX_TIMEOUT_MS)
        if wait_ms is not None and action in ("next_route", "route_to"):
            mistakes.add(f"{place}/wait_before_retry_ms", f"means nothing with {action}, which does not wait")
        target = read_target(rule, place, mistakes)
        rules.append(FallbackRule(str(condition), str(action), wait_ms, **target))
    return tuple(rules)


def read_target(rule: Mapping[str, Any], place: str, mistakes: Mistakes) -> dict[str, str]:
    """Whom `route_to` hands the call to: one service or one capability. Other actions have no target."""
    given = {key: rule[key] for key in ("service", "capability") if key in rule}
    for key, name in given.items():
        if rule["action"] != "route_to":
            mistakes.add(f"{place}/{key}", "means nothing without the action route_to")
        elif not isinstance(name, str) or not NAME.fullmatch(name):
            mistakes.add(f"{place}/{key}", f"{shown(name)} is not the name of a {key}")
    if rule["action"] == "route_to" and len(given) != 1:
        mistakes.add(f"{place}/action", "route_to needs either a service or a capability")
    return {key: str(name) for key, name in given.items()}


@dataclass(frozen=True, slots=True)
class Specifiers:
    """A version range such as `>=1.4,<2`. A node without a readable version is outside every range."""

    specifiers: SpecifierSet

    def accepts(self, version: str) -> bool:
        try:
            return self.specifiers.contains(Version(version), prereleases=True)
        except InvalidVersion:
            return False


def read_version_range(value: Any, path: str, mistakes: Mistakes) -> Specifiers | None:
    if value is None:
        return None
    try:
        if isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.strip():
            return Specifiers(SpecifierSet(value))
    except InvalidSpecifier:
        pass
    mistakes.add(path, f'{shown(value)} is not a version range like ">=1.4,<2"')
    return None


# --- Single values ---------------------------------------------------------------------------------------------------


def read_object(
    value: Any,
    path: str,
    mistakes: Mistakes,
    keys: Sequence[str],
    *,
    required: Sequence[str] = (),
) -> dict[str, Any] | None:
    """An object that has only these keys. A key whose value is null counts as absent."""
    if not isinstance(value, dict):
        mistakes.add(path, f"must be an object, not {kind_of(value)}")
        return None
    for key in value:
        if key not in keys:
            mistakes.add(f"{path}/{escaped(key)}", unknown_key(key, keys))
    present = {key: item for key, item in value.items() if key in keys and item is not None}
    for key in required:
        if key not in present:
            mistakes.add(f"{path}/{key}", "is required")
    return present


def read_route_id(value: Any, path: str, mistakes: Mistakes) -> str:
    if not isinstance(value, str):
        mistakes.add(path, f"must be text, not {kind_of(value)}: quote it")
    elif value in RESERVED_IDS:
        mistakes.add(path, f"{value!r} is what a call without a route reports; choose another id")
    elif ROUTE_ID.fullmatch(value):
        return value
    else:
        mistakes.add(path, f"{value!r} is not an id: 1 to 128 of A-Z, a-z, 0-9, _ . - and a letter or digit first")
    return ""


def read_text(value: Any, path: str, mistakes: Mistakes, *, at_least: int = 0, at_most: int = MAX_TEXT) -> str:
    if not isinstance(value, str):
        mistakes.add(path, f"must be text, not {kind_of(value)}: quote it")
    elif not at_least <= len(value) <= at_most or (at_least and not value.strip()):
        mistakes.add(path, f"must have {at_least} to {at_most} characters")
    return str(value)


def read_bool(value: Any, path: str, mistakes: Mistakes) -> bool:
    if not isinstance(value, bool):
        mistakes.add(path, f"must be true or false, not {shown(value)}")
    return value is True


def read_int(value: Any, path: str, mistakes: Mistakes, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        mistakes.add(path, f"must be a whole number from {least} to {most}, not {shown(value)}")
        return least
    return value


def read_optional_int(
    holder: Mapping[str, Any], key: str, path: str, mistakes: Mistakes, least: int, most: int
) -> int | None:
    return read_int(holder[key], f"{path}/{key}", mistakes, least, most) if key in holder else None


def read_texts(value: Any, path: str, mistakes: Mistakes, *, needed: bool = False) -> tuple[str, ...]:
    """A list of texts, such as tags; `needed`: at least one."""
    if value is None and not needed:
        return ()
    if not isinstance(value, list) or len(value) > MAX_LIST or (needed and not value):
        mistakes.add(path, f"must be a list of {'1' if needed else '0'} to {MAX_LIST} texts")
        return ()
    return tuple(read_text(v, f"{path}/{i}", mistakes, at_least=1, at_most=256) for i, v in enumerate(value))


def read_names(value: Any, path: str, mistakes: Mistakes, form: re.Pattern[str], what: str) -> tuple[str, ...]:
    """A list of different names of one form; where it is given it holds at least one."""
    if value is None:
        return ()
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_LIST:
        mistakes.add(path, f"must be a list of 1 to {MAX_LIST} names; leave it out for no limit")
        return ()
    for index, name in enumerate(value):
        if not isinstance(name, str) or not form.fullmatch(name):
            mistakes.add(f"{path}/{index}", f"{shown(name)} is not {what}")
        elif name in value[:index]:
            mistakes.add(f"{path}/{index}", f"{name!r} stands here twice")
    return tuple(str(name) for name in value)


def is_scalar(value: Any) -> bool:
    """A JSON scalar that can be compared and stored: texts up to a length, numbers that JSON can hold."""
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    return value is None or isinstance(value, bool) or (is_number(value) and abs(value) <= MAX_NUMBER)


def unknown_key(key: Any, known: Iterable[str], what: str = "key") -> str:
    return f"unknown {what} {key!r}{did_you_mean(key, known)}"


def did_you_mean(given: Any, known: Iterable[str]) -> str:
    nearest = process.extractOne(given, list(known), score_cutoff=70) if isinstance(given, str) else None
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def one_of(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


def escaped(key: Any) -> str:
    """A key as a token of a JSON pointer (RFC 6901)."""
    return str(key).replace("~", "~0").replace("/", "~1")


def shown(value: Any) -> str:
    """A value as people read it in an error, cut short."""
    match value:
        case None:
            text = "null"
        case bool():
            text = "true" if value else "false"
        case _:
            text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object" if isinstance(value, dict) else type(value).__name__


# --- Routes → table --------------------------------------------------------------------------------------------------


def build_table(revision: int, routes: Iterable[Route], capabilities: Mapping[str, str]) -> RouteTable:
    """Order the routes, and sort out in advance which of them speak of which capability.

    `capabilities`: each known name with its description and tags as one text, which fuzzy patterns are held against.
    """
    scored: dict[str, dict[str, float]] = {}
    ready: list[Route] = []
    for route in in_order(routes):
        if route.capability and route.capability.kind is Kind.FUZZY:
            text = route.capability.text
            if text not in scored:
                scored[text] = {name: likeness(text, f"{name} {said}") for name, said in capabilities.items()}
            route = replace(route, capability=replace(route.capability, scores=scored[text]))
        ready.append(route)
    by_capability: dict[str, list[Route]] = {name: [] for name in capabilities}
    for route in ready:
        if route.enabled:
            for name in spoken_of(route.capability, capabilities):
                by_capability[name].append(route)
    return RouteTable(revision, tuple(ready), {name: tuple(found) for name, found in by_capability.items()})


def spoken_of(pattern: CapabilityPattern | None, names: Collection[str]) -> Iterable[str]:
    """Those of `names` that a route with this pattern is for; the exact ones without looking at the others."""
    if pattern is None:
        return names
    if pattern.kind is Kind.EXACT:
        return (pattern.text,) if pattern.text in names else ()
    if pattern.kind is Kind.GLOB:
        return filter(compiled_glob(pattern.text).fullmatch, names)
    return filter(pattern.accepts, names)
