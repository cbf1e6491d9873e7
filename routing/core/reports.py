"""What a node says of an attempt at work: by receipts that it posts, or line by line in its answer."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from receipts.core.journey import Ended, Outcome
from registry.core.strict_json import decode_strict
from registry.errors import InvalidRequest


class PostedError(msgspec.Struct, gc=False):
    """Why the node failed."""

    code: Annotated[str, msgspec.Meta(max_length=128)] = "failed"
    message: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    retryable: bool | None = None


class Report(msgspec.Struct, gc=False):
    """A line of a node's answer; the attempt it speaks of is the one that it answers."""

    kind: Literal["running", "succeeded", "failed"]
    progress: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    message: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    output: Any = msgspec.UNSET
    error: PostedError | None = None


class PostedReceipt(Report, gc=False, kw_only=True):
    """A node's receipt."""

    attempt: Annotated[int, msgspec.Meta(ge=1, le=1000)]


receipt_decoder = msgspec.json.Decoder(PostedReceipt)
line_decoder = msgspec.json.Decoder(Report)


def parse_receipt(body: bytes, *, max_depth: int, max_containers: int) -> PostedReceipt:
    """JSON → PostedReceipt. Raises InvalidRequest naming the field."""
    posted: PostedReceipt = decode_strict(body, receipt_decoder, max_depth=max_depth, max_containers=max_containers)
    check_whole(posted)
    return posted


def check_whole(report: Report) -> None:
    """Raises InvalidRequest where a last word lacks what it is about."""
    if report.kind == "succeeded" and report.output is msgspec.UNSET:
        raise InvalidRequest("succeeded needs an output", [{"path": "/output", "message": "is required"}])
    if report.kind == "failed" and report.error is None:
        raise InvalidRequest("failed needs an error", [{"path": "/error", "message": "is required"}])


def running_detail(report: Report) -> dict[str, Any] | None:
    """What a `running` receipt keeps; None for a bare heartbeat."""
    told = {"progress": report.progress, "message": report.message}
    return {name: value for name, value in told.items() if value is not None} or None


def reported_outcome(report: Report) -> Outcome:
    """The attempt's end that a last word tells of."""
    if report.kind == "succeeded":
        return Outcome(Ended.SUCCEEDED, output=report.output)
    assert report.error is not None, "checked when it was read"
    error = report.error
    said = " – ".join(part for part in (error.code, error.message) if part)
    return Outcome(
        Ended.FAILED, f"reported {said}", error=msgspec.to_builtins(error), retryable=error.retryable is not False
    )


# --- Lines -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Lines:
    """Bytes of a node's `application/x-ndjson` as they come in, and the reports that are whole.

    Blank lines are none, and what follows a last word is not read.
    """

    max_bytes: int
    """Of one line."""
    number: int = 0
    """Of the last line that was read, from 1."""
    begun: list[bytes] = field(default_factory=list)
    """The line that is not whole yet, as it came."""
    size: int = 0

    def feed(self, content: bytes) -> list[Report | Outcome]:
        """The `running` reports that are whole by now; the last item is an Outcome once the attempt has ended."""
        head, newline, tail = content.rpartition(b"\n")
        told: list[Report | Outcome] = []
        if newline:
            told = self.read(b"".join([*self.begun, head]).split(b"\n"))
            self.begun, self.size = [], 0
        self.begun.append(tail)
        self.size += len(tail)
        if self.size > self.max_bytes and not is_over(told):
            told.append(self.too_large(self.number + 1))
        return told

    def end(self) -> list[Report | Outcome]:
        """What the end of the answer makes whole; without a last word the attempt is broken."""
        told = self.read([b"".join(self.begun)])
        if not is_over(told):
            told.append(Outcome(Ended.BROKEN, "its answer ended without a last word, succeeded or failed"))
        return told

    def read(self, lines: list[bytes]) -> list[Report | Outcome]:
        told: list[Report | Outcome] = []
        for line in lines:
            self.number += 1
            if len(line) > self.max_bytes:
                return [*told, self.too_large(self.number)]
            if not line.strip():
                continue
            try:
                report: Report = line_decoder.decode(line)
                check_whole(report)
            except (msgspec.MsgspecError, InvalidRequest, RecursionError, UnicodeDecodeError) as exc:
                malformed = f"line {self.number} of its answer is no receipt: {exc}"
                return [*told, Outcome(Ended.INVALID_OUTPUT, malformed, http_status=200)]
            if report.kind != "running":
                return [*told, reported_outcome(report)]
            told.append(report)
        return told

    def too_large(self, number: int) -> Outcome:
        return Outcome(Ended.TOO_LARGE, f"line {number} of its answer is larger than {self.max_bytes} bytes")


def is_over(told: list[Report | Outcome]) -> bool:
    return bool(told) and isinstance(told[-1], Outcome)
