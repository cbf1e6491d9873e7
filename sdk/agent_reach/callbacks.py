"""For whoever receives callbacks: how an asynchronous call has ended, once it is sure that Agent-Reach says so."""

import time
from collections.abc import Mapping

from agent_reach import _wire
from agent_reach.errors import NotSigned
from agent_reach.models import Result

TOLERANCE_S = 300.0


def read_callback(
    body: bytes, headers: Mapping[str, str], secret: str, *, tolerance_s: float | None = TOLERANCE_S
) -> Result:
    """The ended call that a callback tells of. Raises NotSigned: answer 400 then.

    `body` are the bytes as they came, `secret` is the caller's ("whsec_…"). A callback signed longer ago than
    `tolerance_s` is not taken (None: whatever its age, for a machine whose clock is wrong). The same callback may come
    more than once, always with the same `webhook-id`: do its work once, and answer 2xx each time.
    """
    given = {name.lower(): value for name, value in headers.items()}
    if not _wire.is_signed(_wire.secret_bytes(secret), given, body):
        raise NotSigned("this callback does not bear the signature of Agent-Reach")
    if tolerance_s is not None and abs(time.time() - float(given["webhook-timestamp"])) > tolerance_s:
        raise NotSigned(f"this callback was signed more than {tolerance_s:g} s ago, or one of the two clocks is wrong")
    return _wire.callback(body)
