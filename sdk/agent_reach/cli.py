"""`agent-reach`: calls, traces and the registry from a terminal. Exit status 0 only on success."""

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

from agent_reach import _wire
from agent_reach._http import Connection
from agent_reach.client import ReachClient, address_from, key_from
from agent_reach.errors import Forbidden, NotFound, ReachError, Unauthenticated
from agent_reach.models import CallOptions, Result, Urgency

try:
    import typer
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
    from rich.tree import Tree
except ImportError:  # the extra `cli` is not installed
    raise SystemExit("agent-reach needs typer and rich: pip install typer rich") from None

PLAIN_WIDTH = 200
"""Columns when the output goes into a file or a pipe, where nothing must be cut."""
TAIL_PAUSE_S = 1.0
COLOURS = {
    "succeeded": "green",
    "ready": "green",
    "failed": "red",
    "timed_out": "red",
    "rejected": "red",
    "attempt_failed": "red",
    "not_ready": "red",
    "expired": "red",
    "cancelled": "yellow",
    "late_result": "yellow",
    "draining": "yellow",
    "suspect": "yellow",
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Calls, traces and the registry of Agent-Reach. Reads REACH_ADDR (or REACH_API) and REACH_API_KEY.",
)
console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
errors = Console(stderr=True, width=None if sys.stderr.isatty() else PLAIN_WIDTH, highlight=False, soft_wrap=True)

Payload = Annotated[str, typer.Argument(metavar="JSON", help="the payload; - reads it from standard input")]
CapabilityName = Annotated[str, typer.Argument(metavar="CAPABILITY")]
TimeoutMs = Annotated[int | None, typer.Option(help="budget in milliseconds; absent: the capability's tier")]
Key = Annotated[str | None, typer.Option(help="idempotency key: the same one again gives the same answer")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="may be given several times")]
HowSoon = Annotated[Urgency, typer.Option(help="how soon the answer is needed")]


def main() -> None:
    """The command. Every refusal is one message on stderr, and exit status 1."""
    try:
        app()
    except ReachError as exc:
        errors.print(f"[red]{escape(str(exc))}[/]")
        if exc.trace_id:
            errors.print(f"agent-reach trace {exc.trace_id}")
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@contextmanager
def reach() -> Iterator[ReachClient]:
    with ReachClient() as client:
        yield client


def read_payload(text: str) -> Any:
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as exc:
        raise ReachError(f'the payload is not JSON ({exc}): quote it as in \'{{"content_type": "report"}}\'') from exc


# --- Calls -----------------------------------------------------------------------------------------------------------


@app.command()
def call(
    capability: CapabilityName,
    payload: Payload,
    timeout_ms: TimeoutMs = None,
    idempotency_key: Key = None,
    tag: Tags = None,
    urgency: HowSoon = "normal",
    follow: Annotated[bool, typer.Option("--follow", help="show on stderr what happens to it meanwhile")] = False,
    is_async: Annotated[bool, typer.Option("--async", help="do not wait for it: print its id")] = False,
    callback_url: Annotated[str | None, typer.Option(help="with --async: where its end is told")] = None,
) -> None:
    """Have a task done; its output on stdout, who did it on stderr. With --async its id, for `wait`."""
    options: CallOptions = {
        "timeout_ms": timeout_ms,
        "idempotency_key": idempotency_key,
        "tags": tag or [],
        "urgency": urgency,
        "callback_url": callback_url,
    }
    with reach() as client:
        if is_async:
            print(client.submit(capability, read_payload(payload), **options))
            return
        if follow:
            call_id = client.submit(capability, read_payload(payload), **options)
            show_receipts(client, call_id, errors)
            result = ended_well(client.wait(call_id))
        else:
            result = client.dispatch(capability, read_payload(payload), **options)
    show_result(result)


@app.command()
def wait(
    call_id: Annotated[str, typer.Argument(metavar="CALL_ID", help="as `call --async` printed it")],
    timeout_s: Annotated[float | None, typer.Option(help="seconds; absent: until it ends")] = None,
) -> None:
    """Wait for a call's end, and show it as `call` does."""
    with reach() as client:
        result = client.wait(call_id, timeout_s)
    show_result(ended_well(result))


def ended_well(result: Result) -> Result:
    """The result itself. Raises the Problem it has ended in, or ReachError where it has not ended."""
    if result.error is not None:
        raise _wire.problem(None, {"call_id": result.call_id, "trace_id": result.trace_id, **result.error})
    if not result.ended:
        said = f"it has not ended: it is {result.status}"
        raise ReachError(said, call_id=result.call_id, trace_id=result.trace_id)
    return result


def show_result(result: Result) -> None:
    console.print_json(json.dumps(result.output, ensure_ascii=False))
    told = f"{result.service_id}/{result.node_id} in {result.duration_ms} ms, attempt {result.attempts}"
    errors.print(f"[green]succeeded[/] by {told}, call {result.call_id}, trace {result.trace_id}")


@app.command()
def follow(
    call_id: Annotated[str, typer.Argument(metavar="CALL_ID")],
    after: Annotated[int, typer.Option(min=0, help="only receipts after this number")] = 0,
) -> None:
    """What happens to a call, as it happens, until it has ended; exit status 0 if it succeeded."""
    with reach() as client:
        show_receipts(client, call_id, console, after)
        if not client.wait(call_id, 0).succeeded:
            raise typer.Exit(1)


def show_receipts(client: ReachClient, call_id: str, where: Console, after: int = 0) -> None:
    for receipt in client.events(call_id, after):
        where.print(receipt_line(receipt), soft_wrap=True)


@app.command()
def explain(
    capability: CapabilityName, payload: Payload, tag: Tags = None, urgency: HowSoon = "normal", raw: bool = False
) -> None:
    """Where a call would go, and why; nothing is sent."""
    with reach() as client:
        found = client.explain(capability, read_payload(payload), tags=tag or [], urgency=urgency)
    if raw:
        console.print_json(json.dumps(found, ensure_ascii=False))
        return
    console.print(f"route [bold]{found['route_id']}[/], table revision {found['table_revision']}")
    table = Table("node", "eligible", "share", "reasons")
    for candidate in found["candidates"]:
        share = candidate.get("share")
        table.add_row(
            f"{candidate['service_id']}/{candidate['node_id']}",
            "[green]yes[/]" if candidate["eligible"] else "[red]no[/]",
            "" if share is None else f"{share:.0%}",
            escape("; ".join(map(str, candidate.get("reasons") or []))),
        )
    console.print(table)
    chosen = found["chosen"]
    if chosen is None:
        problem = found.get("problem") or {}
        console.print(f"[red]nobody can take it[/] {escape(str(problem.get('detail', '')))}")
        raise typer.Exit(1)
    console.print(f"chosen: [bold]{chosen['service_id']}/{chosen['node_id']}[/]")


@app.command()
def trace(
    trace_id: Annotated[str, typer.Argument(metavar="ID", help="a trace id, or the id of one of its calls")],
    receipts: Annotated[bool, typer.Option(help="show what happened to each call")] = True,
) -> None:
    """All calls of one trace as a tree."""
    with reach() as client:
        if "-" in trace_id:  # a call id is a UUID
            trace_id = client.request(_wire.call(trace_id))["trace_id"]
        elif not re.fullmatch("[0-9a-f]{32}", trace_id):
            raise typer.BadParameter(
                "is neither a trace id (32 hex digits) nor a call id (a UUID); both are in every answer of a dispatch"
            )
        found = client.trace(trace_id)
    tree = Tree(f"trace [bold]{found['trace_id']}[/]")
    for root in found["calls"]:
        add_call(tree, root, receipts=receipts)
    console.print(tree)


def add_call(tree: Tree, shown: dict[str, Any], *, receipts: bool) -> None:
    where = f"{shown['service_id']}/{shown['node_id']}" if shown["service_id"] else "nobody"
    took = _wire.result(shown).duration_ms
    branch = tree.add(
        f"[bold]{shown['capability']}[/] {coloured(shown['status'])} by {where}"
        + ("" if took is None else f" in {took} ms")
        + f" for {shown['caller']} [dim]{shown['call_id']}[/]"
    )
    if shown["error"]:
        branch.add(f"[red]{escape(str(shown['error'].get('code')))}[/] {escape(str(shown['error'].get('detail', '')))}")
    if receipts:
        for receipt in shown["receipts"]:
            branch.add(receipt_line(receipt))
    for child in shown["children"]:
        add_call(branch, child, receipts=receipts)


def receipt_line(receipt: dict[str, Any]) -> str:
    moment = receipt["at"][11:23]
    node = f" {receipt['service_id']}/{receipt['node_id']}" if receipt["node_id"] else ""
    attempt = f" attempt {receipt['attempt']}" if receipt["attempt"] else ""
    return f"[dim]{moment}[/] {coloured(receipt['kind'])}{attempt}{node} [dim]{escape(told(receipt['detail']))}[/]"


def told(detail: Any) -> str:
    """The part of a receipt's detail that fits a line."""
    if not isinstance(detail, dict):
        return "" if detail is None else str(detail)
    words = [f"{detail['progress']:.0%}"] if isinstance(detail.get("progress"), int | float) else []
    words += [str(detail[key]) for key in ("message", "code", "reason", "detail", "route_id") if detail.get(key)]
    return " ".join(words)[:160]


def coloured(word: str) -> str:
    return f"[{COLOURS[word]}]{word}[/]" if word in COLOURS else word


@app.command()
def tail(
    capability: Annotated[str | None, typer.Option(help="only calls of this capability")] = None,
    service_id: Annotated[str | None, typer.Option("--service", help="only calls that this service carries")] = None,
) -> None:
    """Receipts as they come, until Ctrl-C."""
    seen: dict[str, int] = {}
    since = datetime.now(UTC).isoformat()
    with reach() as client:
        while True:
            query = {"capability": capability, "service_id": service_id, "since": since, "limit": 200}
            for row in reversed(client.request(_wire.listing("calls", **query))["results"]):
                if seen.get(row["call_id"]) == DONE:
                    continue
                for receipt in client.receipts(row["call_id"]):
                    if receipt["seq"] > seen.get(row["call_id"], 0):
                        seen[row["call_id"]] = receipt["seq"]
                        console.print(f"[dim]{row['call_id']}[/] {row['capability']} {receipt_line(receipt)}")
                if row["ended_at"]:
                    seen[row["call_id"]] = DONE
            time.sleep(TAIL_PAUSE_S)


DONE = sys.maxsize

# --- The registry ----------------------------------------------------------------------------------------------------


@app.command()
def services() -> None:
    """Who is there, and what they offer."""
    table = Table("service", "nodes", "ready", "capabilities")
    for service in every("services"):
        nodes = service["nodes"]
        ready = sum(node["status"] == "ready" for node in nodes)
        offered = sorted({name for node in nodes for name in node["capabilities"]})
        colour = "green" if nodes and ready == len(nodes) else "yellow" if ready else "red"
        table.add_row(service["service_id"], str(len(nodes)), f"[{colour}]{ready}[/]", ", ".join(offered))
    console.print(table)


@app.command()
def nodes() -> None:
    """Every node, its status, and why."""
    table = Table("node", "status", "reason", "address", "weight", "in flight", "last heartbeat", "capabilities")
    for node in every("nodes"):
        table.add_row(
            f"{node['service_id']}/{node['node_id']}",
            coloured(node["status"]),
            escape(node["status_reason"]),
            node["address"],
            str(node["weight"]),
            "" if node["in_flight"] is None else str(node["in_flight"]),
            node["last_heartbeat_at"][11:19],
            ", ".join(node["capabilities"]),
        )
    console.print(table)


def every(what: str) -> Iterator[dict[str, Any]]:
    with reach() as client:
        cursor = None
        while True:
            page = client.request(_wire.listing(what, limit=500, cursor=cursor))
            yield from page["results"]
            if (cursor := page["next_cursor"]) is None:
                return


# --- Doctor ----------------------------------------------------------------------------------------------------------

SKEW_S = 5.0
NO_CALL = "00000000-0000-7000-8000-000000000000"
SCOPES: dict[str, _wire.Request] = {
    "register": _wire.post_receipt(NO_CALL, b'{"attempt":1,"kind":"running"}'),
    "dispatch": _wire.Request("POST", "/api/v1/dispatch", b"{}"),
    "observe": _wire.listing("nodes", limit=1),
    "operate": _wire.listing("keys", limit=1),
}
"""A request for each scope that does nothing, and is refused with 403 to a key that lacks it."""


@app.command()
def doctor() -> None:
    """Checks address, key, scopes, clock and readiness, and says what to do."""
    checks: list[Callable[[], str]] = [check_address, check_readiness, check_clock, check_key, check_nodes]
    for check in checks:
        name = check.__name__.removeprefix("check_")
        try:
            said = check()
            mark = "[yellow]look[/]" if isinstance(said, Remark) else "[green]ok[/]  "
            console.print(f"{mark} {name}: {escape(said)}", soft_wrap=True)
        except ReachError as exc:
            console.print(f"[red]bad[/]  {name}: {escape(str(exc))}", soft_wrap=True)
            raise typer.Exit(1) from None


class Remark(str):
    """What is worth a look, though one's own way to Agent-Reach is in order."""


def check_address() -> str:
    address = address_from(None)
    with reach() as client:
        client.request(_wire.Request("GET", "/healthz"))
    return f"Agent-Reach answers at {address}"


def check_readiness() -> str:
    status, _headers, body = exchange(_wire.Request("GET", "/readyz"))
    if status != 200:
        raise ReachError(f"it runs, and does not work yet: {body.decode(errors='replace')[:300]}")
    parts = json.loads(body).get("parts", {}) if body.startswith(b"{") else {}
    if ailing := [f"{name} {said}" for name, said in parts.items() if said != "ok"]:
        return Remark(f"it takes calls, but {'; '.join(ailing)}")
    return "all its parts work"


def check_clock() -> str:
    _status, headers, _body = exchange(_wire.Request("GET", "/healthz"))
    if "Date" not in headers:
        return "its time is not told"
    skew_s = (datetime.now(UTC) - parsedate_to_datetime(headers["Date"])).total_seconds()
    if abs(skew_s) < SKEW_S:
        return "this machine's clock agrees with its"
    told = f"this machine's clock is {skew_s:+.0f} s off; calls do not mind, but logs will not line up: set up NTP"
    return Remark(told)


def check_key() -> str:
    """Which scopes the key has. Raises what is wrong with it."""
    if key_from(None) is None:
        raise Unauthenticated("there is no key")
    held = []
    with reach() as client:
        for scope, request in SCOPES.items():
            try:
                client.request(request)
            except Unauthenticated:
                raise
            except Forbidden:
                continue
            except ReachError:
                pass
            held.append(scope)
    if not held:
        raise Forbidden("the key is known and has no scope at all: have an operator make another one")
    lacking = [scope for scope in ("register", "dispatch") if scope not in held]
    advice = f"; an agent that calls others also needs {' and '.join(lacking)}" if lacking else ""
    return f"it has the scopes {', '.join(held)}{advice}"


def check_nodes() -> str:
    try:
        listed = list(every("nodes"))
    except Forbidden:
        return "not looked at: that needs the scope observe"
    except NotFound:
        listed = []
    out = [node for node in listed if node["status"] != "ready"]
    if not listed:
        return "none is registered yet"
    if not out:
        return f"all {len(listed)} are ready"
    first = f"{out[0]['service_id']}/{out[0]['node_id']} is {out[0]['status']}: {out[0]['status_reason']}"
    return Remark(f"{len(listed) - len(out)} of {len(listed)} are ready; {first} (`agent-reach nodes` shows all)")


def exchange(request: _wire.Request) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer that need not be a good one."""
    import asyncio

    async def ask() -> tuple[int, dict[str, str], bytes]:
        connection = Connection(address_from(None), key_from(None))
        try:
            return await connection.exchange(request)
        finally:
            await connection.close()

    return asyncio.run(ask())


if __name__ == "__main__":
    main()
