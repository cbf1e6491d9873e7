"""Another commit's code beside this one: a git worktree of its own, for as long as the benchmark runs."""

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

from bench.processes import CHECKOUT, NotStarted


def checked_out(stack: ExitStack, commit: str, folder: Path, repository: Path = CHECKOUT) -> Path:
    """`folder` with the code of `commit`; the stack removes it. Raises NotStarted where there is no such commit.

    This checkout may have changes that are not committed: neither they nor its branch are touched.
    """
    if shutil.which("git") is None:
        raise NotStarted("BASE needs git: install it")
    found = git(repository, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found.returncode:
        reason = found.stderr.strip() or "git knows no such commit here"  # --quiet leaves other faults their words
        raise NotStarted(f"BASE={commit}: {reason}")
    made = git(repository, "worktree", "add", "--detach", str(folder), found.stdout.strip())
    if made.returncode:
        raise NotStarted(f"BASE={commit}: {made.stderr.strip()}")
    stack.callback(git, repository, "worktree", "remove", "--force", str(folder))
    if not (folder / "manage.py").exists():
        raise NotStarted(f"BASE={commit}: that commit has no manage.py to start")
    return folder


def git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True)
