"""Tables as text for people and their editors: reading gives back what was written, mistakes come with their line."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from routing.core.edits import Document
from routing.rules import ROUTE_KEYS, RULE_KEYS, StrictLoader, escaped

ROUTE = re.compile(r"/routes/(\d+)(?:/|$)")


class StrictDumper(yaml.SafeDumper):
    """YAML that both readers understand alike: what either would take for a number, a date or a yes is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)


StrictDumper.yaml_implicit_resolvers = {
    first: yaml.SafeDumper.yaml_implicit_resolvers.get(first, []) + StrictLoader.yaml_implicit_resolvers.get(first, [])
    for first in yaml.SafeDumper.yaml_implicit_resolvers.keys() | StrictLoader.yaml_implicit_resolvers.keys()
}


BREAKS = re.compile("[\n\r\x85\u2028\u2029\ufeff]")
"""What YAML takes for the end of a line, or for a mark, where it is not escaped."""


def represent_text(dumper: StrictDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if BREAKS.search(text) else None)


StrictDumper.add_representer(str, represent_text)


KEYS = tuple(dict.fromkeys(("routes", *ROUTE_KEYS, "capability", "type", *RULE_KEYS)))
"""In which order keys are read best. What the database keeps of a table has lost the order in which it was written."""


def arranged(value: Any) -> Any:
    """A table, or a part of one, with its keys in the order in which they are read best."""
    if isinstance(value, list):
        return [arranged(item) for item in value]
    if not isinstance(value, dict):
        return value
    ranks = {key: rank for rank, key in enumerate(KEYS)}
    names = sorted(value, key=lambda key: (ranks.get(key, len(KEYS)), str(key)))
    return {key: arranged(value[key]) for key in names}


def dump_text(document: Document) -> str:
    """A table as YAML, its routes in the order in which they are written."""
    return yaml_of({key: value for key, value in document.items() if key != "fallback_rules" or value})


def yaml_of(value: Any) -> str:
    return yaml.dump(arranged(value), Dumper=StrictDumper, sort_keys=False, allow_unicode=True, width=120)


def located(errors: Iterable[Mapping[str, str]], text: str, name: str) -> Iterator[str]:
    """Each mistake as `file:line: route ID: place: message`, in the order of the file."""
    lines, ids = places_of(text)
    for line, error in sorted(((line_of(e["path"], lines), e) for e in errors), key=lambda item: item[0]):
        found = ROUTE.match(error["path"])
        route = ids.get(int(found[1])) if found else None
        inside = error["path"][found.end() - 1 :].lstrip("/") if found else error["path"].lstrip("/")
        words = [f"{name}:{line}", f"route {route}" if route else "", inside, error["message"]]
        yield ": ".join(word for word in words if word)


def line_of(path: str, lines: Mapping[str, int]) -> int:
    """The line of a place, or of the nearest place around it that is in the text."""
    while path and path not in lines:
        path = path.rpartition("/")[0]
    return lines.get(path, 1)


def places_of(text: str) -> tuple[dict[str, int], dict[int, str]]:
    """The line (from 1) of every place in a YAML text by its JSON pointer, and the ids of its routes by position."""
    try:
        root = yaml.compose(text, StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}, {}
    lines: dict[str, int] = {}
    ids: dict[int, str] = {}
    for path, node, line in walk(root, "", 1):
        lines[path] = line
        parts = path.split("/")
        if len(parts) == 4 and parts[1] == "routes" and parts[3] == "id" and isinstance(node, yaml.ScalarNode):
            ids[int(parts[2])] = node.value
    return lines, ids


def walk(node: Any, path: str, line: int) -> Iterator[tuple[str, Any, int]]:
    yield path, node, line
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from walk(value, f"{path}/{escaped(key.value)}", key.start_mark.line + 1)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from walk(item, f"{path}/{index}", item.start_mark.line + 1)
