"""Another commit's code beside this one."""

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.base import checked_out
from bench.processes import NotStarted


def git(repository: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=repository, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits of one file, and a change that is not committed."""
    made = tmp_path / "repository"
    made.mkdir()
    git(made, "init", "--quiet")
    for said in ("first", "second"):
        (made / "manage.py").write_text(said)
        git(made, "add", ".")
        git(made, "commit", "--quiet", "-m", said)
    (made / "manage.py").write_text("in the making")
    return made


def test_the_commit_lies_beside_and_goes_again(repository: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        code = checked_out(stack, "HEAD~1", tmp_path / "base", repository)
        assert (code / "manage.py").read_text() == "first"
        (code / "left.log").write_text("written by a run")
        assert (repository / "manage.py").read_text() == "in the making"
    assert not code.exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize("commit", ["no-such-commit", "--help", "HEAD:manage.py"])
def test_an_unknown_commit_is_named(repository: Path, tmp_path: Path, commit: str) -> None:
    with ExitStack() as stack, pytest.raises(NotStarted, match=f"BASE={commit}: git knows no such commit here"):
        checked_out(stack, commit, tmp_path / "base", repository)


def test_a_folder_that_is_no_checkout_is_told(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(NotStarted, match="not a git repository"):
        checked_out(stack, "HEAD", tmp_path / "base", tmp_path)
