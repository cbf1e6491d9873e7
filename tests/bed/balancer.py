"""A load balancer before one node, that can be retired while the node's address still points at it."""

import ipaddress
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.fakes import OwnLoop

GONE = "<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center></body></html>"


@dataclass(slots=True)
class Asked:
    """One request (or, by TLS, one greeting): what for, and when (epoch seconds) it came and was answered."""

    what: str
    at: float
    answered_at: float = 0.0


class Balancer:
    """Hands every request on to `target`, until it is retired."""

    def __init__(self, target: str, certificate: Path | None = None):
        self.target, self.asked, self.retired = target, list[Asked](), False
        self._scheme = "https" if certificate else "http"
        self._own = OwnLoop("balancer")
        self._runner: web.AppRunner | None = None
        self.port = self._own.run(self._listen(0, certificate))

    @property
    def address(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def retire(self) -> None:
        """From now on it answers everything itself: 502, in HTML."""
        self.retired = True

    def show(self, certificate: Path) -> None:
        """Begin anew with another certificate; connections are closed."""
        self._own.run(self._begin_anew(certificate))

    def close(self) -> None:
        self._own.run(self._end())
        self._own.close()

    async def _begin_anew(self, certificate: Path) -> None:
        await self._end()
        await self._listen(self.port, certificate)

    async def _listen(self, port: int, certificate: Path | None) -> int:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._onward = aiohttp.ClientSession()
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        context = self._context(certificate) if certificate else None
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True, ssl_context=context).start()
        return self._runner.addresses[0][1]

    def _context(self, certificate: Path) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        context.sni_callback = lambda *_greeting: self.asked.append(Asked("TLS", time.time()))
        return context

    async def _end(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            await self._onward.close()

    async def _handle(self, request: web.Request) -> web.Response:
        self.asked.append(asked := Asked(request.path, time.time()))
        try:
            if self.retired:
                return web.Response(status=502, text=GONE, content_type="text/html")
            body = await request.read()
            where = self.target + request.path_qs
            async with self._onward.request(request.method, where, headers=request.headers, data=body) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)
        finally:
            asked.answered_at = time.time()


class Authority:
    """A certificate authority of the test's own; `file` is what trusts it (as SSL_CERT_FILE of a process)."""

    def __init__(self, folder: Path):
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "An authority")])
        is_authority = x509.BasicConstraints(ca=True, path_length=0)
        may_sign = x509.KeyUsage(*(name in (5, 6) for name in range(9)))
        made = self._draft(self._name, self._key, timedelta(days=1)).add_extension(is_authority, critical=True)
        self.file = folder / "authority.pem"
        signed = made.add_extension(may_sign, critical=True).sign(self._key, hashes.SHA256())
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def certificate(self, name: str, valid: timedelta) -> Path:
        """A certificate for 127.0.0.1, with its key, that ends (or ended, below 0) so far from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        made = self._draft(subject, key, valid).add_extension(names, critical=False)
        signed = made.sign(self._key, hashes.SHA256())
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self._folder / f"{name}.pem"
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + secret)
        return path

    def _draft(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=30))
            .not_valid_after(now + valid)
        )
