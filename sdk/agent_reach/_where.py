"""Where a node listens, and under which address others reach it."""

import asyncio
import errno
import ipaddress
import re
import socket
from urllib.parse import urlsplit

from agent_reach.errors import SetupError, Unreachable

EVERYWHERE = ("0.0.0.0", "::", "")


def is_loopback(host: str) -> bool:
    """Whether the text itself says so; nothing is resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def bind_host(reach_addr: str, host: str | None, advertise: str | None) -> str:
    """Where to listen: as told; on this machine only when Agent-Reach is on it; else everywhere."""
    if host is not None:
        return host
    is_local = is_loopback(urlsplit(reach_addr).hostname or "")
    return "127.0.0.1" if is_local and advertise is None else "0.0.0.0"


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that has its port, and does not listen yet. Raises SetupError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as exc:
        made.close()
        if exc.errno == errno.EADDRINUSE:
            raise SetupError(f"port {port} is taken: choose another port=…, or 0 for a free one") from exc
        raise SetupError(f"cannot listen on {host}:{port} ({exc.strerror}): correct host= and port=") from exc
    return made


def check_advertised(advertise: str | None) -> str | None:
    """The URL without a slash at its end. Raises SetupError."""
    if advertise is None:
        return None
    parts = urlsplit(advertise)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SetupError(f"advertise must be a URL like http://10.0.3.7:9001, not {advertise!r}")
    return advertise.rstrip("/")


async def reachable_address(reach_addr: str, bound_host: str, port: int, advertise: str | None) -> str:
    """The address to register: as told, or this machine's own on the way to Agent-Reach. Raises Unreachable."""
    if advertise is not None:
        return advertise
    host = bound_host if bound_host not in EVERYWHERE else await asyncio.to_thread(own_address_towards, reach_addr)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def own_address_towards(reach_addr: str) -> str:
    """This machine's address on the way to Agent-Reach; resolves its name, sends nothing. Raises Unreachable."""
    parts = urlsplit(reach_addr)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        family, kind, _protocol, _name, where = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError as exc:
        raise Unreachable(
            f"no way to {reach_addr} ({exc.strerror}): correct reach_addr, or say advertise=http://HOST:PORT"
        ) from exc


def default_node_id(port: int) -> str:
    """Machine and port: the same after a restart on the same port, different for two nodes on one machine."""
    machine = re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower()).strip("-.") or "node"
    return f"{machine[:50].rstrip('-.')}-{port}"
