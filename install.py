"""Bring `.venv` of this checkout up to a requirements file: `python3 install.py requirements.txt`.

Called by make. Does nothing when nothing changed; two at once wait for each other; an interrupted one is done again.
"""

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent
VENV = CHECKOUT / ".venv"
PYTHON = VENV / "bin" / "python"


def fingerprint() -> str:
    """Changes with any requirements file, with what the client declares, and with the Python that made the venv."""
    files = [*sorted(CHECKOUT.glob("requirements*.txt")), CHECKOUT / "sdk" / "pyproject.toml"]
    pins = b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(pins + sys.version.encode()).hexdigest()


def run(*command: object) -> None:
    if (done := subprocess.run([str(part) for part in command], cwd=CHECKOUT, check=False)).returncode:
        sys.exit(done.returncode)


def main(requirements: str) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what an older Python gets to see
        sys.exit(
            f"Agent-Reach needs Python 3.11 or newer; this is {sys.version.split()[0]}. Try make PYTHON=python3.12"
        )
    with (CHECKOUT / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = VENV / f"installed {requirements}"
        if stamp.exists() and stamp.read_text() == fingerprint():
            return
        print(f"Installing {requirements} into .venv, about a minute the first time …", file=sys.stderr, flush=True)
        if not PYTHON.exists() or not (VENV / "bin" / "pip").exists():
            run(sys.executable, "-m", "venv", "--clear", VENV)
        run(PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", CHECKOUT / requirements)
        stamp.write_text(fingerprint())


if __name__ == "__main__":
    main(sys.argv[1])
