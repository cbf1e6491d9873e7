"""The wire, without a network: requests are built, answers and envelopes are read, signatures are checked. Pure."""

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from agent_reach.errors import PROBLEMS, NotAgentReach, NotJson, Problem, ReachError, SetupError
from agent_reach.models import CallOptions, Capability, Envelope, NodeError, Registration, Result

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
NAME_RULE = "must be 1 to 63 of a-z 0-9 _ . - and begin with a letter or digit"

MAX_TIMEOUT_MS = 600_000
SLACK_S = 5.0
"""So much longer than the call's own budget (s) a client waits, so that the answer is Agent-Reach's and not its own."""

EVENTS_SILENCE_S = 60.0
"""Longer than Agent-Reach leaves an event stream silent (s): then the connection is dead."""
TERMINAL = frozenset({"succeeded", "failed", "timed_out", "cancelled", "rejected"})
"""Kinds of receipts that end a call."""


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request to Agent-Reach."""

    method: str
    path: str
    body: bytes | None = None
    timeout_s: float = 10.0
    headers: Mapping[str, str] = field(default_factory=dict)


# --- JSON ------------------------------------------------------------------------------------------------------------


def encode(value: Any, what: str = "the value") -> bytes:
    """Strict JSON; models with `model_dump` (pydantic) and dataclasses become objects. Raises NotJson."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_as_plain).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise NotJson(f"{what} is not JSON: {exc}") from exc


def _as_plain(value: Any) -> Any:
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def digest_of(value: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# --- Addresses and names ---------------------------------------------------------------------------------------------


def reach_address(text: str) -> str:
    """The address of Agent-Reach without a slash at its end. Raises SetupError."""
    parts = urlsplit(text.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SetupError(f"reach_addr must be a URL like http://127.0.0.1:8080, not {text!r}")
    return text.strip().rstrip("/")


def check_name(what: str, name: str) -> str:
    """The name itself. Raises SetupError when Agent-Reach would refuse it."""
    if not NAME.fullmatch(name):
        raise SetupError(f"{what} {name!r} {NAME_RULE}")
    return name


# --- Calling ---------------------------------------------------------------------------------------------------------


def dispatch(
    capability: str | None,
    payload: Any,
    options: CallOptions,
    *,
    mode: str = "sync",
    traceparent: str | None = None,
) -> Request:
    """A call. Raises TypeError for an option that does not exist, NotJson for a payload that JSON cannot carry."""
    headers = {"traceparent": traceparent} if traceparent else {}
    timeout_ms = options.get("timeout_ms")
    waits_s = (MAX_TIMEOUT_MS if timeout_ms is None else timeout_ms) / 1000 + SLACK_S
    body = _call_body(capability, payload, options) | ({"mode": mode} if mode != "sync" else {})
    timeout_s = waits_s if mode == "sync" else 30.0
    return Request("POST", "/api/v1/dispatch", encode(body, "the payload"), timeout_s, headers)


def explain(capability: str | None, payload: Any, options: CallOptions) -> Request:
    body = _call_body(capability, payload, options)
    return Request("POST", "/api/v1/dispatch/explain", encode(body, "the payload"))


def _call_body(capability: str | None, payload: Any, options: CallOptions) -> dict[str, Any]:
    if unknown := options.keys() - CallOptions.__annotations__.keys():
        known = ", ".join(sorted(CallOptions.__annotations__))
        raise TypeError(f"a call has no option {', '.join(sorted(unknown))}; it has {known}")
    body: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "tags" in body:
        body["tags"] = list(body["tags"])
    return ({} if capability is None else {"capability": capability}) | {"payload": payload} | body


def call(call_id: str) -> Request:
    return Request("GET", f"/api/v1/calls/{quote(call_id, safe='')}")


def wait(call_id: str, timeout_s: float) -> Request:
    path = f"/api/v1/calls/{quote(call_id, safe='')}/wait?timeout_s={timeout_s:g}"
    return Request("GET", path, timeout_s=timeout_s + SLACK_S)


def cancel(call_id: str) -> Request:
    return Request("POST", f"/api/v1/calls/{quote(call_id, safe='')}/cancel", b"{}")


def receipts(call_id: str) -> Request:
    return Request("GET", f"/api/v1/calls/{quote(call_id, safe='')}/receipts")


def events(call_id: str, after: int) -> Request:
    """The call's receipts as they come, those after that number. `timeout_s` bounds a silence, not the whole."""
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(after)} if after else {})
    path = f"/api/v1/calls/{quote(call_id, safe='')}/events"
    return Request("GET", path, timeout_s=EVENTS_SILENCE_S, headers=headers)


def trace(trace_id: str) -> Request:
    return Request("GET", f"/api/v1/traces/{quote(trace_id, safe='')}")


def listing(what: str, **query: str | int | None) -> Request:
    """A page of "services", "nodes", "calls", "capabilities" or "keys"."""
    given = {name: value for name, value in query.items() if value is not None}
    return Request("GET", f"/api/v1/{what}" + (f"?{urlencode(given)}" if given else ""))


class EventReader:
    """Server-Sent Events out of bytes, wherever these are cut."""

    def __init__(self) -> None:
        self.retry_s = 1.0
        self._rest = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """The receipts that are complete with this chunk. Raises NotAgentReach for what is none."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        found = []
        for line in lines:
            name, colon, value = line.rstrip(b"\r").decode(errors="replace").partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                self._data.append(value)
            elif name == "retry" and value.isdecimal():
                self.retry_s = int(value) / 1000
            elif not name and not colon and self._data:
                found.append(receipt("\n".join(self._data)))
                self._data.clear()
        return found


def receipt(text: str) -> dict[str, Any]:
    """The receipt in an event. Raises NotAgentReach."""
    try:
        said = json.loads(text)
        if isinstance(said["seq"], int) and isinstance(said["kind"], str):
            return dict(said)
    except (ValueError, TypeError, KeyError):
        pass
    raise NotAgentReach("what comes as an event is no receipt of Agent-Reach's")


# --- A node's side ---------------------------------------------------------------------------------------------------


def capability_document(capability: Capability) -> dict[str, Any]:
    """A capability as it is declared; what was left out keeps Agent-Reach's default."""
    document: dict[str, Any] = {
        "name": capability.name,
        "version": capability.version,
        "description": capability.description,
        "input": capability.input_schema,
        "output": capability.output_schema,
        "cost_level": capability.cost_level,
        "timeout_tier": capability.timeout_tier,
        "idempotent": capability.idempotent,
        "tags": list(capability.tags),
        "allow_callers": list(capability.allow_callers),
        "examples": list(capability.examples),
    }
    return document if capability.rate_limit is None else document | {"rate_limit": capability.rate_limit}


def node_path(service_id: str, node_id: str) -> str:
    return f"/api/v1/services/{quote(service_id, safe='')}/nodes/{quote(node_id, safe='')}"


def register(service_id: str, node_id: str, declaration: Mapping[str, Any]) -> Request:
    return Request("PUT", node_path(service_id, node_id), encode(declaration, "the declaration"))


def heartbeat(service_id: str, node_id: str, *, in_flight: int, declaration_hash: str | None) -> Request:
    body = {"in_flight": in_flight, "declaration_hash": declaration_hash}
    return Request("POST", f"{node_path(service_id, node_id)}/heartbeat", encode(body), timeout_s=5.0)


def leave(service_id: str, node_id: str, *, drain_s: float) -> Request:
    return Request("DELETE", f"{node_path(service_id, node_id)}?drain_s={drain_s:g}", timeout_s=5.0)


def post_receipt(call_id: str, body: bytes) -> Request:
    return Request("POST", f"/api/v1/calls/{quote(call_id, safe='')}/receipts", body, timeout_s=5.0)


def running_receipt(attempt: int, progress: float | None = None, message: str | None = None) -> bytes:
    """A `running` receipt; without progress and message it is a heartbeat."""
    told = {"progress": progress, "message": message}
    given = {name: value for name, value in told.items() if value is not None}
    return encode({"attempt": attempt, "kind": "running"} | given, "the progress")


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended: the HTTP status and body that a node answers with, or the receipt that says the same."""

    status: int
    body: bytes

    @property
    def succeeded(self) -> bool:
        return self.status == 200

    def receipt(self, attempt: int) -> bytes:
        """The body, `{"output": …}` or `{"error": …}`, with attempt and kind before its first key."""
        kind = b"succeeded" if self.succeeded else b"failed"
        return b'{"attempt":%d,"kind":"%s",' % (attempt, kind) + self.body[1:]


def success(output: Any) -> Ending:
    """Raises NotJson."""
    return Ending(200, encode({"output": output}, "the handler's result"))


def failure(
    status: int, code: str, message: str, *, retryable: bool, errors: Sequence[Mapping[str, str]] = ()
) -> Ending:
    error: NodeError = {"code": code[:128], "message": message[:4000], "retryable": retryable}
    if errors:
        error["errors"] = list(errors)
    return Ending(status, json.dumps({"error": error}).encode())


# --- Reading ---------------------------------------------------------------------------------------------------------


def read(status: int, headers: Mapping[str, str], body: bytes, *, address: str) -> Any:
    """The JSON of a good answer. Raises the Problem that a refusal stands for, or NotAgentReach."""
    try:
        document = json.loads(body) if body else None
    except ValueError:
        document = _NOTHING
    if 200 <= status < 300 and document is not _NOTHING:
        return document
    if not isinstance(document, dict) or not isinstance(document.get("code"), str):
        raise stranger(status, address, headers)
    raise problem(status, document)


_NOTHING = object()


def stranger(status: int, address: str, headers: Mapping[str, str]) -> ReachError:
    """The error for an answer that is not in Agent-Reach's language."""
    if status >= 500:
        return NotAgentReach(
            f"{address} answers {status} and does not say why: Agent-Reach is starting, stopping or not running "
            "behind what answers; ask again in a moment",
            status=status,
            outcome_unknown=status != 503,
        )
    kind = headers.get("Content-Type", "no content type").partition(";")[0]
    return NotAgentReach(
        f"what answers at {address} is not Agent-Reach (status {status}, {kind}): check reach_addr or REACH_ADDR",
        status=status,
    )


def problem(status: int | None, document: Mapping[str, Any]) -> Problem:
    """A problem document, or the `error` of an ended call, as an exception."""
    code = document["code"]
    after_ms = document.get("retry_after_ms")
    return PROBLEMS.get(code, Problem)(
        str(document.get("detail") or document.get("title") or ""),
        code=code,
        status=status,
        errors=tuple(document.get("errors") or ()),
        call_id=document.get("call_id"),
        trace_id=document.get("trace_id"),
        retry_after_s=None if after_ms is None else after_ms / 1000,
        outcome_unknown=bool(document.get("outcome_unknown")),
        upstream=document.get("upstream"),
    )


RESULT_FIELDS = tuple(Result.__dataclass_fields__)


def result(document: Mapping[str, Any]) -> Result:
    """The answer to a sync call, or a call document, as a Result."""
    facts = {name: document[name] for name in RESULT_FIELDS if name in document}
    if "duration_ms" not in facts and document.get("accepted_at") and document.get("ended_at"):
        took = datetime.fromisoformat(document["ended_at"]) - datetime.fromisoformat(document["accepted_at"])
        facts["duration_ms"] = round(took.total_seconds() * 1000)
    return Result(**facts)


def callback(body: bytes) -> Result:
    """The Result in a callback whose signature has been checked."""
    return result(json.loads(body))


def registration(document: Mapping[str, Any]) -> Registration:
    return Registration(
        secret_bytes(document["signing_secret"]),
        document.get("declaration_hash"),
        tuple(document.get("advisories") or ()),
    )


class BadEnvelope(ReachError):
    """What was posted to a node is no envelope."""


def envelope(body: bytes, *, received_s: float, traceparent: str | None = None) -> Envelope:
    """The envelope, its budget counted from `received_s` on the monotonic clock. Raises BadEnvelope.

    Only the difference of the two moments of Agent-Reach's clock is used: this machine's wall clock may be wrong.
    """
    try:
        said = json.loads(body)
        call_id, capability, payload = said["call_id"], said["capability"], said["payload"]
        attempt, deadline, sent = said["attempt"], said["deadline_millis"], said["forwarded_at_millis"]
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise BadEnvelope(f"the body is no envelope: {type(exc).__name__} {exc}") from exc
    if not isinstance(call_id, str) or not isinstance(capability, str):
        raise BadEnvelope("call_id and capability must be texts")
    if not all(isinstance(number, int) for number in (attempt, deadline, sent)):
        raise BadEnvelope("attempt, deadline_millis and forwarded_at_millis must be whole numbers")
    budget_s = (deadline - sent) / 1000
    return Envelope(
        call_id=call_id,
        trace_id=said.get("trace_id") or "",
        attempt=attempt,
        capability=capability,
        payload=payload,
        deadline_millis=deadline,
        deadline_s=received_s + budget_s,
        budget_s=budget_s,
        parent_call_id=said.get("parent_call_id"),
        caller=said.get("caller") or "",
        origin_caller=said.get("origin_caller") or "",
        idempotency_key=None if said.get("mirror") else said.get("idempotency_key"),  # a copy counts for no key
        urgency=said.get("urgency") or "normal",
        labels=said.get("labels") or {},
        session_id=said.get("session_id"),
        context=said.get("context") or {},
        traceparent=traceparent,
    )


def cancelled_attempt(body: bytes) -> tuple[str, int | None]:
    """Which call a cancel is about, and which of its attempts (None: any). Raises BadEnvelope."""
    try:
        said = json.loads(body)
        return str(said["call_id"]), said.get("attempt")
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise BadEnvelope('a cancel is {"call_id": …, "attempt": …}') from exc


# --- Signatures and traces -------------------------------------------------------------------------------------------


def secret_bytes(secret: str) -> bytes:
    """The key behind "whsec_…". Raises ValueError."""
    return base64.b64decode(secret.removeprefix("whsec_"))


def signature(secret: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """One signature of Standard Webhooks."""
    signed = hmac.digest(secret, f"{message_id}.{timestamp}.".encode() + body, "sha256")
    return "v1," + base64.b64encode(signed).decode()


def is_signed(secret: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether Agent-Reach signed this very body.

    The age of the timestamp is not looked at: the clocks of two machines are never compared here, and a replayed
    envelope meets the guard against running one attempt twice.
    """
    message_id, timestamp = headers.get("webhook-id"), headers.get("webhook-timestamp")
    if not message_id or not timestamp:
        return False
    wanted = signature(secret, message_id, timestamp, body).encode()
    given = headers.get("webhook-signature", "").encode(errors="replace").split(b" ")
    return any(hmac.compare_digest(wanted, each) for each in given)


def is_of_trace(traceparent: str | None, trace_id: str) -> bool:
    """Whether a `traceparent` is well formed and names that trace."""
    found = TRACEPARENT.fullmatch(traceparent) if traceparent else None
    return found is not None and found[1] == trace_id


def trace_headers(trace_id: str, call_id: str, attempt: int, traceparent: str | None = None) -> dict[str, str]:
    """What other systems should be told, so that their logs can be joined to this call."""
    if traceparent and is_of_trace(traceparent, trace_id):
        return {"X-Reach-Call-Id": call_id, "traceparent": traceparent}
    try:
        span = bytes.fromhex(call_id[-12:]).hex() + f"{attempt & 0xFFFF:04x}"
    except (ValueError, binascii.Error):
        span = digest_of(call_id)[:16]
    headers = {"X-Reach-Call-Id": call_id}
    return headers | {"traceparent": f"00-{trace_id}-{span}-01"} if trace_id else headers
