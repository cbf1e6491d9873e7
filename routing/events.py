"""Following a call: until it has ended (`wait`), or receipt by receipt as Server-Sent Events (`events`).

A stream is made of what the database holds: it remembers the number of the last receipt that it has sent, and reads on
from there when the call has moved and its client has taken what came before. So a slow client holds one read at most,
and one that comes back, here or at another dispatcher, misses nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request

from receipts.api import READ, receipt_document, seen_by, with_callback
from receipts.core.lifecycle import TERMINAL
from receipts.errors import CallNotFound
from receipts.following import Following, Standing
from registry.auth import Key, bearer_of, keyring
from registry.clock import now_millis
from registry.errors import Unavailable
from registry.http import AsyncAPIView, EventStream, encode, invalid_parameter, json_response
from routing.live import LiveParts, parts

LARGEST_SEQ = 2**31 - 1
NEW_KEY_S = 5.0
"""So long (s) a key may be too new for the ring of this process; later, one that is not there is not valid any more."""
EVENTS_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
LAST_EVENT_ID = "Last-Event-ID"
STILL_HERE = b":\n\n"
END_OF_EVENT = b"}\n\n"


class WaitView(AsyncAPIView):
    """Answers when the call has ended, or after `timeout_s`, with the call as it stands."""

    scopes = {"GET": READ}
    ends_with_client = True

    @extend_schema(
        operation_id="calls_wait", parameters=[OpenApiParameter("timeout_s", float)], responses=OpenApiTypes.OBJECT
    )
    async def get(self, request: Request, call_id: UUID) -> HttpResponse:
        timeout_s = wait_seconds(request.GET.get("timeout_s"))
        live = parts()
        row = await row_at_end(call_id, request.auth, timeout_s, live)
        return json_response(await with_callback(live.journal, row))


class EventsView(AsyncAPIView):
    """A call's receipts as Server-Sent Events, those there are and those to come, until the one that ends it.

    `id` is a receipt's number, `data` the receipt. A client that comes back says by `Last-Event-ID` which it had last,
    in the header or, where it cannot set one, as `last_event_id` in the query; where nothing comes after it any more
    the answer is 204.
    """

    scopes = {"GET": READ, "HEAD": READ}
    ends_with_client = True

    @extend_schema(
        operation_id="calls_events",
        parameters=[
            OpenApiParameter(LAST_EVENT_ID, int, OpenApiParameter.HEADER),
            OpenApiParameter("last_event_id", int),
        ],
        responses={(200, "text/event-stream"): str, 204: None},
    )
    async def get(self, request: Request, call_id: UUID) -> HttpResponseBase:
        after = last_event_id(request.META.get("HTTP_LAST_EVENT_ID"), request.GET.get("last_event_id"))
        live = parts()
        standing = await visible_standing(live.following, call_id, request.auth)
        if after > standing.seq:
            raise invalid_parameter("last_event_id", f"is none of this call's: its last receipt is {standing.seq}")
        if standing.ended and after >= (standing.last_seq or standing.seq):
            return HttpResponse(status=204, headers=EVENTS_HEADERS)  # the word for: do not come back
        chunks = stream(call_id, standing, after, live, patience(), holder(request.auth), still_valid(request))
        first = await anext(chunks)  # what is refused is refused before the answer begins
        return EventStream(begun(first, chunks), headers=EVENTS_HEADERS)

    @extend_schema(exclude=True)
    async def head(self, request: Request, call_id: UUID) -> HttpResponseBase:
        await visible_standing(parts().following, call_id, request.auth)
        return EventStream(nothing(), headers=EVENTS_HEADERS)


async def row_at_end(call_id: UUID, key: Key, timeout_s: float, live: LiveParts) -> dict[str, Any]:
    """The call's row when it has ended, or after `timeout_s`, or when this process stops, as it stands.

    Raises CallNotFound, Forbidden, TooManyWaiting, Overloaded, Unavailable.
    """
    standing = await visible_standing(live.following, call_id, key)
    if timeout_s and not standing.ended:
        give_up_at = asyncio.get_running_loop().time() + timeout_s
        with (
            live.waiting.admitted(holder(key), "wait"),
            live.following.call(call_id, standing, end_only=True) as follower,
        ):
            while not (follower.followed.ended or live.following.leaving) and await follower.stirs(give_up_at):
                pass
    return seen_by(key, await live.following.rows(call_id), call_id)


async def visible_standing(following: Following, call_id: UUID, key: Key) -> Standing:
    """Raises CallNotFound, Forbidden, Unavailable."""
    standing = await following.standings(call_id)
    if standing is None:
        raise CallNotFound(f"no call {call_id}")
    seen_by(key, {"caller": standing.caller}, call_id)
    return standing


def holder(key: Key) -> str:
    """Whose waits are counted together."""
    return f"user:{key.user_id}" if key.key_id == "session" else key.key_id


def wait_seconds(text: str | None) -> float:
    """`timeout_s` of a wait, at most REACH_WAIT_MAX_S. Raises InvalidRequest."""
    try:
        seconds = float(text) if text is not None else 30.0
    except ValueError as exc:
        raise invalid_parameter("timeout_s", "must be a number of seconds") from exc
    if not seconds >= 0:  # also refuses NaN
        raise invalid_parameter("timeout_s", "must be a number of seconds")
    return min(seconds, settings.REACH_WAIT_MAX_S)


def last_event_id(header: str | None, query: str | None) -> int:
    """The receipt that the client had last, 0 for none. Raises InvalidRequest.

    The header counts more: it is what a browser knows when it comes back, the query what it had at first.
    """
    text = (header or query or "0").strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= LARGEST_SEQ):
        raise invalid_parameter("last_event_id", "must be the id of an event of this stream, a whole number")
    return int(text)


def still_valid(request: Request) -> Callable[[], bool]:
    """Tells whether the key that a stream was opened with may still be used. A session ends with the stream's time."""
    bearer = bearer_of(request.META.get("HTTP_AUTHORIZATION"))
    loop = asyncio.get_running_loop()
    known_by = loop.time() + NEW_KEY_S
    known = False

    def valid() -> bool:
        nonlocal known
        if bearer is None:
            return True
        if keyring.find(bearer, now_millis()) is not None:
            known = True
            return True
        return not known and loop.time() < known_by

    return valid


# --- The stream ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what is waited for (settings of the same names)."""

    keepalive_s: float
    max_s: float
    retry_ms: int


def patience() -> Patience:
    return Patience(settings.REACH_EVENTS_KEEPALIVE_S, settings.REACH_EVENTS_MAX_S, settings.REACH_EVENTS_RETRY_MS)


async def stream(
    call_id: UUID,
    standing: Standing,
    seq: int,
    live: LiveParts,
    waits: Patience,
    key_name: str,
    valid: Callable[[], bool],
) -> AsyncGenerator[bytes, None]:
    """The bytes of a stream from the receipt after `seq` on; the first are there at once.

    Raises TooManyWaiting, Overloaded, Unavailable before the first; while the database is away later, it waits.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + waits.max_s
    following, lead = live.following, b"retry: %d\n\n" % waits.retry_ms

    def parting() -> str | None:
        """Why the client is to come back, or not to."""
        if not valid():
            return "the key is not valid any more"
        if following.leaving:
            return f"this process is stopping: come back with {LAST_EVENT_ID}: {seq}"
        if loop.time() >= ends_at:
            return f"this stream is long enough: come back with {LAST_EVENT_ID}: {seq}"
        return None

    with live.waiting.admitted(key_name, "events"), following.call(call_id, standing) as follower:
        followed = follower.followed
        while True:
            try:
                receipts = up_to_the_end(await following.receipts((call_id, seq)) or ())
            except Unavailable:
                if lead:
                    raise
                yield STILL_HERE
                await asyncio.sleep(live.journal.retry_s)
            else:
                async for chunk in events_of(lead, receipts, call_id, live):
                    yield chunk
                lead = b""
                if receipts:
                    seq = receipts[-1]["seq"]
                    if receipts[-1]["kind"] in TERMINAL:
                        return
                if followed.ended and (not receipts or seq >= followed.seq):
                    return  # whatever became of the receipt that ended it
                while seq >= followed.seq and parting() is None:
                    until = min(ends_at, loop.time() + waits.keepalive_s)
                    if not await follower.stirs(until) and parting() is None:
                        yield STILL_HERE
            if (why := parting()) is not None:
                yield comment(why)
                return


def up_to_the_end(receipts: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Without what came too late: a stream is the same whenever it is asked for."""
    for number, receipt in enumerate(receipts, start=1):
        if receipt["kind"] in TERMINAL:
            return receipts[:number]
    return receipts


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that are sent together; where they are `is_cut_short`, the detail of their last receipt is to follow."""

    head: bytes
    seq: int = 0
    is_cut_short: bool = False


async def events_of(
    lead: bytes, receipts: Sequence[dict[str, Any]], call_id: UUID, live: LiveParts
) -> AsyncGenerator[bytes, None]:
    """What is to be sent of these receipts, in parts that are never large."""
    for piece in laid_out(lead, receipts):
        yield piece.head
        if piece.is_cut_short:
            async for part in detail_of(call_id, piece.seq, live):
                yield part
            yield END_OF_EVENT


def laid_out(lead: bytes, receipts: Sequence[dict[str, Any]]) -> list[Piece]:
    """The events of these receipts behind what leads them, as few pieces as their details allow."""
    pieces: list[Piece] = []
    together = [lead]
    for receipt in receipts:
        is_large = receipt["is_large"]
        together.append(event({name: value for name, value in receipt.items() if name != "is_large"}))
        if is_large:
            head = b"".join(together).removesuffix(b"null" + END_OF_EVENT)
            pieces.append(Piece(head, receipt["seq"], is_cut_short=True))
            together = []
    last = b"".join(together)
    return [*pieces, Piece(last)] if last else pieces


async def detail_of(call_id: UUID, seq: int, live: LiveParts) -> AsyncGenerator[bytes, None]:
    """A large detail by parts, each read when the one before has been taken. While the database is away, it waits."""
    first = 1
    while True:
        try:
            part = await live.following.parts((call_id, seq, first))
        except Unavailable:
            await asyncio.sleep(live.journal.retry_s)
            continue
        if not part:
            return
        yield part.encode()
        first += len(part)


def event(receipt: dict[str, Any]) -> bytes:
    """One receipt as an event. What stands in the database is JSON of our own encoder, which writes one line."""
    return b"id: %d\ndata: %b\n\n" % (receipt["seq"], encode(receipt_document(receipt)))


def comment(text: str) -> bytes:
    """What clients pass over, and people read."""
    return b": %b\n\n" % text.encode()


async def begun(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """A stream of which the first bytes have been taken."""
    try:
        yield first
        async for chunk in rest:
            yield chunk
    finally:
        await rest.aclose()


async def nothing() -> AsyncGenerator[bytes, None]:
    return
    yield b""
