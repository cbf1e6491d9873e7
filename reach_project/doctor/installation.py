"""Settings and files of this installation: secrets kept, names answered, the route file in step."""

import ipaddress
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from reach_project import embedded
from reach_project.doctor.findings import Finding, Findings, error, named, ok, warning
from reach_project.doctor.processes import Running
from registry.addresses import address_refusal, allowed_addresses
from registry.errors import InvalidRequest
from registry.models import AuditEvent, Node
from routing.core.edits import differ
from routing.querysets import live_number, table_of
from routing.route_file import READ, read_table

SECRET_FILES = ("credentials.json", "secret_key")
SHORTEST_SECRET = 32
HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.I)
EVERYWHERE = ("0.0.0.0", "::", "")


def secret_files() -> Findings:
    open_to_others = [
        path
        for name in SECRET_FILES
        if (path := settings.REACH_HOME / name).exists() and stat.S_IMODE(path.stat().st_mode) & 0o077
    ]
    if open_to_others:
        yield error(
            "secret files",
            _("Others on this machine can read %(files)s") % {"files": named([str(path) for path in open_to_others])},
            "chmod 600 " + " ".join(str(path) for path in open_to_others),
        )
    else:
        yield ok(
            "secret files", _("Secrets in %(home)s are readable by their owner only") % {"home": settings.REACH_HOME}
        )


def secret_key(now: Running | None = None) -> Findings:
    yield secret_key_found(settings.GIVEN_SECRET_KEY, settings.REACH_ROLE, now.machines if now else 0)


def secret_key_found(given: str, role: str, machines: int) -> Finding:
    fix = _("Set the same SECRET_KEY, of 50 random characters, for every process: `openssl rand -base64 38`.")
    if not given and (role != "all" or machines > 1):
        return warning(
            "SECRET_KEY",
            _("Several processes share this database, and each home its own SECRET_KEY: a login holds at one only"),
            fix,
        )
    if given and len(given) < SHORTEST_SECRET:
        return warning("SECRET_KEY", _("SECRET_KEY is short enough to be guessed"), fix)
    return ok("SECRET_KEY", _("SECRET_KEY is given") if given else _("SECRET_KEY was made at the first start"))


def allowed_hosts() -> Findings:
    given = [
        name for name in settings.ALLOWED_HOSTS if name not in ("127.0.0.1", "localhost", "[::1]", settings.REACH_HOST)
    ]
    yield allowed_hosts_found(given, settings.REACH_HOST)


def allowed_hosts_found(given: Sequence[str], host: str) -> Finding:
    if "*" in given:
        return warning(
            "ALLOWED_HOSTS",
            _("ALLOWED_HOSTS=* answers to any name that somebody points here"),
            _("Name the hosts that users and agents write in their URLs."),
        )
    if not given and host in EVERYWHERE:
        return warning(
            "ALLOWED_HOSTS",
            _("It listens on every address, but answers only to loopback names: others get 400"),
            _("Set ALLOWED_HOSTS to the names that users and agents write in their URLs."),
        )
    return ok("ALLOWED_HOSTS", _("It answers to %(names)s") % {"names": named([*given, "localhost"])})


def allowed_node_addresses() -> Findings:
    yield allowed_addresses_found(allowed_addresses())


def allowed_addresses_found(entries: Sequence[str]) -> Finding:
    check = "REACH_ALLOWED_ADDRESSES"
    if wrong := [entry for entry in entries if not is_address_rule(entry)]:
        return error(
            check,
            _("REACH_ALLOWED_ADDRESSES holds what is neither a CIDR nor a host name: %(entries)s")
            % {"entries": named(wrong)},
            _("Write it like 10.0.0.0/8,agents.internal."),
        )
    if any(entry in ("0.0.0.0/0", "::/0") for entry in entries):
        return warning(
            check,
            _("REACH_ALLOWED_ADDRESSES lets nodes be anywhere"),
            _("Leave it empty for that, or name the networks where your agents are."),
        )
    if not entries:
        return ok(check, _("Nodes may be anywhere but at link-local and metadata addresses"))
    return ok(check, _("Nodes may be at %(entries)s") % {"entries": named(entries)})


def is_address_rule(entry: str) -> bool:
    if "/" not in entry and not entry.replace(".", "").isdigit() and ":" not in entry:
        return HOST_NAME.fullmatch(entry) is not None
    try:
        ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    return True


def registered_addresses() -> Findings:
    """Nodes that registered before the rules were narrowed: they are refused at each connection."""
    allowed = allowed_addresses()
    refused = [
        f"{node} ({node.address})"
        for node in Node.objects.present().order_by("service_id", "node_id")[:1000]
        if address_refusal(node.address, allowed=allowed, resolve=lambda _name: ())
    ]
    if refused:
        yield warning(
            "node addresses",
            ngettext(
                "%(n)s node is at an address that is not allowed: %(names)s",
                "%(n)s nodes are at addresses that are not allowed: %(names)s",
                len(refused),
            )
            % {"n": len(refused), "names": named(refused)},
            _("Widen REACH_ALLOWED_ADDRESSES, or let them register at another address."),
        )


def route_file() -> Findings:
    if not settings.ROUTE_FILE:
        return
    path = Path(settings.ROUTE_FILE)
    facts = {"path": path}
    try:
        document = read_table(path.read_bytes(), path.name)
    except OSError as exc:
        yield error(
            "ROUTE_FILE",
            _("ROUTE_FILE %(path)s cannot be read: %(reason)s") % {"path": path, "reason": exc.strerror},
            _("Correct the path, or let this process's user read it."),
        )
        return
    except InvalidRequest as exc:
        yield error(
            "ROUTE_FILE",
            _("ROUTE_FILE %(path)s is not used: %(reason)s") % {"path": path, "reason": exc},
            _("Mend the file; it is read again within ten seconds."),
        )
        return
    live = live_number()
    if live and not differ(document, table_of(live)):
        yield ok("ROUTE_FILE", _("ROUTE_FILE %(path)s reads like the live routes") % facts)
        return
    seen = AuditEvent.objects.filter(action=READ, target=str(path)).exists()
    yield warning(
        "ROUTE_FILE",
        _("ROUTE_FILE %(path)s differs from the live routes") % facts,
        _("Its edit waits in Route changes for approval, or the routes were changed since: bring the file up to date.")
        if seen
        else _("Nobody has read it yet: start a worker and beat."),
    )


def embedded_state() -> Findings:
    """An embedded database that is not up, before anybody starts it to have a look."""
    if settings.DATABASE_URL or embedded.is_running(settings.REACH_HOME):
        return
    if not (embedded.folders(settings.REACH_HOME)[0] / "data").exists():
        yield error(
            "installation",
            _("Nothing has been prepared in REACH_HOME=%(home)s") % {"home": settings.REACH_HOME},
            _("Start it once: `make run`. Or set REACH_HOME or DATABASE_URL to the installation that you mean."),
        )
    else:
        yield warning(
            "installation",
            _("The embedded PostgreSQL is not running; it was started for this look only"),
            _("Start Agent-Reach: `make run`."),
        )


WITHOUT_A_DATABASE = (secret_files, allowed_hosts, allowed_node_addresses)
OF_A_PREPARED_DATABASE = (route_file, registered_addresses)
