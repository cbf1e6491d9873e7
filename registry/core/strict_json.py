"""JSON from strangers: one decoder for dispatch, registration and receipts, with the place of each mistake.

Refused: not JSON, NaN and infinities, numbers out of range, invalid UTF-8, lone surrogates, NUL (PostgreSQL's text
holds none), and nesting beyond `max_depth` (deeper documents overflow the stacks of those who walk them).
"""

import re
from typing import Any

import msgspec

from registry.errors import InvalidRequest

PLACE = re.compile(r"^(?P<message>.*?) - at `(?:key` in `)?\$?(?P<path>.*)`$", re.S)
MAX_CONTAINERS = 50_000
"""Arrays and objects of one document, where nobody says otherwise (REACH_MAX_JSON_CONTAINERS)."""
anything = msgspec.json.Decoder()


def decode_strict(
    body: bytes, decoder: msgspec.json.Decoder = anything, *, max_depth: int, max_containers: int = MAX_CONTAINERS
) -> Any:
    """Bytes → the decoder's type. Raises InvalidRequest with the JSON pointer of the first mistake."""
    try:
        brackets = body.count(b"[") + body.count(b"{")
        if brackets > max_depth and is_deeper(body, max_depth):
            raise InvalidRequest(f"nested deeper than {max_depth} levels")
        if brackets > max_containers and bare_brackets(body).count(b"[") > max_containers:
            raise InvalidRequest(f"holds more than {max_containers} arrays and objects")
        if rb"\u0000" in body and rb"\u0000" in unescaped(body):
            raise InvalidRequest("the body holds U+0000", [{"path": "", "message": "holds U+0000"}])
        if not body.isascii():
            body.decode()  # the decoder looks only at what it keeps
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


ONE_KIND = bytes.maketrans(b"{}", b"[]")
NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'[{]}"'))


def is_deeper(body: bytes, max_depth: int) -> bool:
    """Whether a JSON text is nested deeper, without decoding it and quickly whatever the text.

    Of the brackets outside strings each round takes away the innermost level.
    """
    brackets = bare_brackets(body)
    for _level in range(max_depth):
        left = brackets.replace(b"[]", b"")
        if len(left) == len(brackets):
            return False  # none left; or no JSON, which the decoder tells
        brackets = left
    return bool(brackets)


def bare_brackets(body: bytes) -> bytes:
    """The brackets of a JSON text that stand outside strings, all as `[` and `]`.

    Without escapes the strings are every second piece between quotes; two quotes side by side part nothing.
    """
    bare = unescaped(body).replace(rb"\"", b"").translate(ONE_KIND, NEITHER_BRACKET_NOR_QUOTE).replace(b'""', b"")
    return b"".join(bare.split(b'"')[::2])


def unescaped(body: bytes) -> bytes:
    """The text without escaped backslashes: what follows a backslash in it is escaped."""
    return body.replace(rb"\\", b"")
