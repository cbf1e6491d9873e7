"""JSON from strangers: one decoder for dispatch, registration and receipts, with the place of each mistake.

Refused: not JSON, NaN and infinities, numbers out of range, invalid UTF-8, lone surrogates, NUL (PostgreSQL's text
holds none), and nesting beyond `max_depth` (deeper documents overflow the stacks of those who walk them).
"""

import re
from itertools import accumulate
from typing import Any

import msgspec

from registry.errors import InvalidRequest

PLACE = re.compile(r"^(?P<message>.*?) - at `(?:key` in `)?\$?(?P<path>.*)`$", re.S)
NUL = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")
"""An escape that no backslash before it takes back."""
anything = msgspec.json.Decoder()


def decode_strict(body: bytes, decoder: msgspec.json.Decoder = anything, *, max_depth: int) -> Any:
    """Bytes → the decoder's type. Raises InvalidRequest with the JSON pointer of the first mistake."""
    try:
        if body.count(b"[") + body.count(b"{") > max_depth and depth_of(body) > max_depth:
            raise InvalidRequest(f"nested deeper than {max_depth} levels")
        if b"\\u0000" in body and NUL.search(body):
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


STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One level deeper, one level back, as signed bytes."""
NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'[{]}"'))


def depth_of(body: bytes) -> int:
    """The deepest nesting of a JSON text, without decoding it, in linear time whatever the text.

    Without escapes the strings are every second piece between quotes; two quotes side by side part nothing.
    """
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    bare = unescaped.translate(None, NEITHER_BRACKET_NOR_QUOTE).replace(b'""', b"")
    outside = b"".join(bare.split(b'"')[::2])
    return max(accumulate(memoryview(outside.translate(STEPS)).cast("b")), default=0)
