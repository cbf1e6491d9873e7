"""JSON from strangers: one decoder for dispatch, registration and receipts, with the place of each mistake.

Refused: not JSON, NaN and infinities, numbers out of range, invalid UTF-8, lone surrogates, NUL (PostgreSQL's text
holds none), and nesting beyond `max_depth` (deeper documents overflow the stacks of those who walk them).
"""

import re
from typing import Any

import msgspec

from registry.errors import InvalidRequest

PLACE = re.compile(r"^(?P<message>.*?) - at `(?:key` in `)?\$?(?P<path>.*)`$", re.S)
anything = msgspec.json.Decoder()


def decode_strict(body: bytes, decoder: msgspec.json.Decoder = anything, *, max_depth: int) -> Any:
    """Bytes → the decoder's type. Raises InvalidRequest with the JSON pointer of the first mistake."""
    try:
        if body.count(b"[") + body.count(b"{") > max_depth and depth_of(body) > max_depth:
            raise InvalidRequest(f"nested deeper than {max_depth} levels")
        if b"\\u0000" in body:
            refuse_nul(anything.decode(body), "")
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise invalid(str(exc)) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"the body is not valid JSON: {exc}") from exc
    except RecursionError as exc:
        raise InvalidRequest(f"nested deeper than {max_depth} levels") from exc


def invalid(text: str) -> InvalidRequest:
    """msgspec's sentence ("… - at `$.a[0]`") as InvalidRequest with a JSON pointer."""
    found = PLACE.match(text)
    message, path = (found["message"], pointer(found["path"])) if found else (text, "")
    if missing := re.match(r"Object missing required field `(.+)`", message):
        path, message = f"{path}/{missing[1]}", "is required"
    return InvalidRequest(f"{path or 'the body'}: {message}", [{"path": path, "message": message}])


def pointer(path: str) -> str:
    """msgspec's `.a[0].b` as the JSON pointer `/a/0/b` (`[...]`: a key or index it did not name)."""
    return re.sub(r"\[(\d+|\.\.\.)\]", r"/\1", path.replace(".", "/").replace("[///]", "[...]"))


STRINGS_AND_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.S)


def depth_of(body: bytes) -> int:
    """The deepest nesting of a JSON text, without decoding it."""
    depth = deepest = 0
    for token in STRINGS_AND_BRACKETS.finditer(body):
        first = body[token.start()]
        if first in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif first in b"]}":
            depth -= 1
    return deepest


def refuse_nul(value: Any, path: str) -> None:
    """Raise InvalidRequest where a string or key holds U+0000."""
    if isinstance(value, str):
        if "\x00" in value:
            raise InvalidRequest(f"{path}: holds U+0000", [{"path": path, "message": "holds U+0000"}])
    elif isinstance(value, dict):
        for key, item in value.items():
            refuse_nul(key, path)
            refuse_nul(item, f"{path}/{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            refuse_nul(item, f"{path}/{index}")
