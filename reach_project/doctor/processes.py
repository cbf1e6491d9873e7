"""Do the processes live that carry calls, sweep, and keep house; and does what they left lie open?"""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import psycopg
from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from psycopg.rows import class_row

from reach_project.doctor.findings import Finding, Findings, error, named, ok, warning
from receipts.journal import NOBODY
from registry.wording import said

WORKER_ROLE = "engine"
"""The lease of a worker; servers hold theirs under their REACH_ROLE."""
SWEEP_LATE_S = 10.0
CLOCK_WARNS_S = 2.0
OVERDUE_AFTER_S = 30.0
COUNTED_AT_MOST = 1000
MAINTENANCE_LATE = timedelta(minutes=30)
HTTP_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process lease."""

    role: str
    host: str
    pid: int
    started_at: datetime
    left_s: float
    """Until it runs out; negative: it is over for so long."""

    def __str__(self) -> str:
        return f"{self.role} {self.host}:{self.pid}"

    @property
    def lives(self) -> bool:
        return self.left_s > 0


@dataclass(frozen=True, slots=True)
class Running:
    """What the database knows of the processes, by its own clock."""

    processes: Sequence[Process]
    sweep_age_s: float | None
    """Since the worker's sweep, which writes its own host's time; None: there never was one."""

    @property
    def living(self) -> list[Process]:
        return [process for process in self.processes if process.lives]

    @property
    def machines(self) -> int:
        return len({process.host for process in self.living})


def running(db: psycopg.Connection) -> Running:
    with db.cursor(row_factory=class_row(Process)) as cursor:
        processes = cursor.execute(
            "SELECT role, host, pid, started_at, extract(epoch FROM lease_expires_at - now())::float8 AS left_s"
            " FROM process_leases ORDER BY started_at"
        ).fetchall()
    swept = db.execute("SELECT extract(epoch FROM now() - swept_at)::float8 FROM registry_leasesweep").fetchone()
    return Running(processes, swept[0] if swept else None)


def servers(now: Running) -> Findings:
    serving = [process for process in now.living if process.role != WORKER_ROLE]
    if serving:
        yield ok(
            "servers",
            ngettext("%(n)s server is at work: %(names)s", "%(n)s servers are at work: %(names)s", len(serving))
            % {"n": len(serving), "names": named([str(process) for process in serving])},
        )
    elif now.living:
        yield error(
            "servers",
            _("A worker is at work, but no server: nobody takes calls"),
            _("Start one: `manage.py reach_serve`."),
        )
    else:
        yield warning(
            "servers",
            _("Nothing of Agent-Reach is running"),
            _("Start it: `make run`, or `manage.py reach_serve` with a worker and beat."),
        )


def worker(now: Running) -> Findings:
    """The sweep proves beat and worker both; without either, leases never run out and nobody is probed."""
    if not now.living:  # nothing is running: said above
        return
    age = now.sweep_age_s
    fix = _(
        "Start or restart `celery -A reach_project worker` and `celery -A reach_project beat`; their logs say why they"
        " stopped. In the all-in-one, restart it."
    )
    if age is None:
        yield error("worker", _("Worker and beat have never swept: nodes are not probed and leases never end"), fix)
    elif age > SWEEP_LATE_S:
        yield error(
            "worker",
            _("Worker or beat is dead: the last sweep was %(age)s s ago, and one is due every second")
            % {"age": f"{age:.0f}"},
            fix,
        )
    elif age < -CLOCK_WARNS_S:
        yield warning(
            "worker",
            _("The worker's clock is %(age)s s ahead of the database's") % {"age": f"{-age:.0f}"},
            _("Let both hosts keep time by NTP (chrony, systemd-timesyncd)."),
        )
    else:
        yield ok("worker", _("Worker and beat are at work"))


def gone(now: Running) -> Findings:
    lost = [process for process in now.processes if not process.lives]
    if lost:
        yield warning(
            "gone processes",
            ngettext(
                "%(n)s process ended without a farewell: %(names)s",
                "%(n)s processes ended without a farewell: %(names)s",
                len(lost),
            )
            % {"n": len(lost), "names": named([str(process) for process in lost])},
            _("Its log, or the kernel's (out of memory?), says why; forgotten after REACH_GONE_PROCESS_HOURS."),
        )


def open_calls(db: psycopg.Connection) -> Findings:
    row = db.execute(
        "SELECT count(*) FILTER (WHERE orphaned), count(*) FILTER (WHERE overdue), count(*) FROM ("
        " SELECT c.deadline < now() - make_interval(secs => %s) AS overdue,"
        "  c.accepted_at < now() - make_interval(secs => %s) AND c.owner <> %s AND NOT EXISTS ("
        "   SELECT FROM process_leases p WHERE p.owner = c.owner AND p.lease_expires_at > now()) AS orphaned"
        " FROM calls c WHERE c.ended_at IS NULL LIMIT %s) AS open",
        [OVERDUE_AFTER_S, OVERDUE_AFTER_S, NOBODY, COUNTED_AT_MOST],
    ).fetchone()
    assert row is not None
    yield open_calls_found(*row)


def open_calls_found(orphaned: int, overdue: int, total: int) -> Finding:
    fix = _("Recovery ends them when a worker and beat are at work; if they stay, the worker's log says why.")
    shown = f"{total}+" if total >= COUNTED_AT_MOST else str(total)
    if overdue:
        return error(
            "open calls",
            ngettext("%(n)s call is open past its deadline", "%(n)s calls are open past their deadline", overdue)
            % {"n": overdue},
            fix,
        )
    if orphaned:
        return warning(
            "open calls",
            ngettext("%(n)s call is carried by nobody", "%(n)s calls are carried by nobody", orphaned)
            % {"n": orphaned},
            fix,
        )
    return ok("open calls", _("%(n)s calls are under way, none of them left behind") % {"n": shown})


def maintenance(db: psycopg.Connection, now: Running) -> Findings:
    row = db.execute(
        "SELECT now() - ran_at, finished FROM receipts_maintenance ORDER BY ran_at DESC LIMIT 1"
    ).fetchone()
    fix = _("Worker and beat run it every ten minutes; the worker's log says why it fails.")
    if row is None:
        if now.living:
            yield ok("retention", _("Retention has not run yet; it does so every ten minutes"))
    elif row[0] > MAINTENANCE_LATE and now.living:
        minutes = round(row[0].total_seconds() / 60)
        yield warning("retention", _("Retention last ran %(n)s minutes ago") % {"n": minutes}, fix)
    elif not row[1]:
        yield ok("retention", _("Retention is working off a backlog"))
    else:
        yield ok("retention", _("Retention has deleted what is past its time"))


# --- From outside ----------------------------------------------------------------------------------------------------


def own_url(now: Running | None) -> Findings:
    """What this host's own instance says of itself, where it should be running."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(settings.REACH_HOST, settings.REACH_HOST)
    url = f"http://{f'[{host}]' if ':' in host else host}:{settings.REACH_PORT}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as answer:
            yield readiness_found(url, answer.status, answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            yield readiness_found(url, refused.code, refused.read())
    except OSError as exc:
        here = [p for p in now.living if p.host == socket.gethostname() and p.role != WORKER_ROLE] if now else []
        if here:
            yield warning(
                "readiness",
                _("%(url)s cannot be reached, though a server runs on this host: %(reason)s")
                % {"url": url, "reason": exc},
                _("Run this with the REACH_HOST and REACH_PORT of that server."),
            )


def readiness_found(url: str, status: int, body: bytes) -> Finding:
    try:
        document = json.loads(body)
        parts = {name: why for name, why in document["parts"].items() if why != "ok"}
    except (ValueError, KeyError, AttributeError, TypeError):
        return error(
            "readiness",
            _("%(url)s is answered by something else") % {"url": url},
            _("Look who listens there: `ss -ltnp`; set REACH_PORT to a free port."),
        )
    if status == 200 and not parts:
        return ok("readiness", _("%(url)s says that every part works") % {"url": url})
    why = "; ".join(f"{name}: {said(str(reason))}" for name, reason in parts.items())
    sentence = _("%(url)s is not content: %(parts)s") % {"url": url, "parts": why}
    fix = _("Mend the parts it names; it becomes ready by itself.")
    return warning("readiness", sentence, fix) if status == 200 else error("readiness", sentence, fix)


def telemetry() -> Findings:
    """Whether somebody takes the traces, where they are to be sent."""
    endpoint = getattr(settings, "OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if not endpoint:
        return
    try:
        parts = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
        place = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 4318))
        socket.create_connection(place, timeout=HTTP_TIMEOUT_S).close()
    except (OSError, ValueError) as exc:
        yield warning(
            "telemetry",
            _("Nobody takes traces at %(url)s: %(reason)s") % {"url": endpoint, "reason": exc},
            _("Start the collector, or correct OTEL_EXPORTER_OTLP_ENDPOINT; calls do not wait for it."),
        )
    else:
        yield ok("telemetry", _("A collector listens at %(url)s") % {"url": endpoint})


OF_THE_PROCESSES = (servers, worker, gone)
