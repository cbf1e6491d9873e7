"""Where the reach may connect to. Addresses are user input: checked when registered, and again at each connection."""

import ipaddress
import re
import socket
import unicodedata
from collections.abc import Callable, Collection, Iterable
from urllib.parse import urlsplit

from django.conf import settings

from registry.errors import InvalidRequest

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

METADATA_NAMES = {
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
}
METADATA_IPS = {
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16")
}
THIS_NETWORK = ipaddress.ip_network("0.0.0.0/8")
SITE_LOCAL = ipaddress.ip_network("fec0::/10")
NAT64 = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
V4_COMPATIBLE = ipaddress.ip_network("::/96")
NUMBERS = re.compile(r"[0-9a-fx.]+", re.I)
HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.I)
UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
MAX_URL = 2048


def allowed_addresses() -> tuple[str, ...]:
    """REACH_ALLOWED_ADDRESSES as a tuple of CIDRs and host names; empty = everything that is not forbidden."""
    return tuple(part.strip() for part in settings.REACH_ALLOWED_ADDRESSES.split(",") if part.strip())


def forbidden_ip(ip: str | IPAddress) -> str | None:
    """Why nobody may be sent to this address, as a sentence; None when one may."""
    address = ipaddress.ip_address(ip.split("%")[0]) if isinstance(ip, str) else ip
    if address in METADATA_IPS:
        return f"{address} is a cloud metadata address"
    if address.is_unspecified or (address.version == 4 and address in THIS_NETWORK):
        return f"{address} is an unspecified address"
    if address.is_link_local or (address.version == 6 and address in SITE_LOCAL):
        return f"{address} is a link-local address"
    if address.is_multicast or address == ipaddress.IPv4Address("255.255.255.255"):
        return f"{address} is a multicast or broadcast address"
    if isinstance(address, ipaddress.IPv6Address):
        for inner in embedded_ipv4(address):
            if why := forbidden_ip(inner):
                return f"{address} stands for {why}"
    return None


def embedded_ipv4(address: ipaddress.IPv6Address) -> Iterable[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 address may lead to (mapped, compatible, 6to4, Teredo, NAT64)."""
    last_bits = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.ipv4_mapped:
        yield address.ipv4_mapped
    if address.sixtofour:
        yield address.sixtofour
    if address.teredo:
        yield address.teredo[1]
    if any(address in network for network in NAT64) or (address in V4_COMPATIBLE and int(address) > 1):
        yield last_bits


def ip_refusal(ip: str | IPAddress, *, host: str, allowed: Collection[str]) -> str | None:
    """Why this address, reached under the name `host`, may not be connected to; None when it may."""
    address = ipaddress.ip_address(ip.split("%")[0]) if isinstance(ip, str) else ip
    if why := forbidden_ip(address):
        return why
    if not allowed or host.lower().rstrip(".") in {entry.lower() for entry in allowed}:
        return None
    plain = (isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped) or address
    if any(plain in network for entry in allowed if (network := network_of(entry)) is not None):
        return None
    return f"{address} is not among REACH_ALLOWED_ADDRESSES"


def network_of(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None


def literal_ip(host: str) -> IPAddress | None:
    """The address that a host spells out, also as C libraries read it: 2130706433, 0x7f.1, 0177.0.0.1."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    if NUMBERS.fullmatch(host):
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            pass
    return None


def resolve_name(host: str) -> list[str]:
    """The addresses of a name by the system's resolver; none when it has none yet."""
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def check_address(
    url: str,
    *,
    allowed: Collection[str],
    resolve: Callable[[str], Iterable[str]] = resolve_name,
    place: str = "/address",
) -> str:
    """The base URL of a node in its normal form. Raises InvalidRequest when nobody may be sent there.

    A name that does not resolve yet is taken: containers start in any order, and connecting checks again.
    """
    if why := address_refusal(url, allowed=allowed, resolve=resolve):
        raise InvalidRequest(f"{place}: {why}", [{"path": place, "message": why}])
    return url.rstrip("/")


def address_refusal(url: str, *, allowed: Collection[str], resolve: Callable[[str], Iterable[str]]) -> str | None:
    """Why a base URL is not taken, as a sentence; None when it is."""
    return url_refusal(url, allowed=allowed, resolve=resolve) or (
        "must not hold a query or a fragment" if "?" in url or "#" in url else None
    )


def url_refusal(url: str, *, allowed: Collection[str], resolve: Callable[[str], Iterable[str]]) -> str | None:
    """Why nobody may be sent to a URL, as a sentence; None when one may."""
    if len(url) > MAX_URL:
        return f"is longer than {MAX_URL} characters"
    if UNPRINTABLE.search(url):
        return "holds spaces, control characters or backslashes"
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError as exc:
        return f"is not a URL: {exc}"
    if parts.scheme not in {"http", "https"}:
        return "must begin with http:// or https://"
    if "@" in parts.netloc:
        return "must not hold a user name or password"
    if port == 0 or parts.netloc.endswith(":"):
        return "has no usable port"
    return host_refusal(host, allowed=allowed, resolve=resolve)


def spelled_refusal(url: str, *, allowed: Collection[str]) -> str | None:
    """Why an address that spells its IP is not allowed (any more); what a name leads to is checked at connection."""
    spelled = literal_ip(unicodedata.normalize("NFKC", urlsplit(url).hostname or "").rstrip("."))
    return address_refusal(url, allowed=allowed if spelled else (), resolve=lambda _host: ())


def host_refusal(host: str, *, allowed: Collection[str], resolve: Callable[[str], Iterable[str]]) -> str | None:
    """Why nobody may be sent to this host, whether it spells an address or a name."""
    name = unicodedata.normalize("NFKC", host).rstrip(".").lower()
    if address := literal_ip(name):
        return ip_refusal(address, host=name, allowed=allowed)
    if not HOST.fullmatch(name) or not host.isascii() or len(name) > 253 or ".." in name:
        return "has no usable host name (international names: write them in punycode)"
    if name in METADATA_NAMES:
        return f"{name} is a cloud metadata name"
    found = list(resolve(name))
    for ip in found:
        if why := ip_refusal(ip, host=name, allowed=allowed):
            return f"{name} resolves to a refused address: {why}"
    if allowed and not found and name not in {entry.lower() for entry in allowed}:
        return f"{name} is not among REACH_ALLOWED_ADDRESSES"
    return None
