"""The documents of this repository, by their path in it."""

from pathlib import Path

from agent_reach import TaskFailed

CHECKOUT = Path(__file__).resolve().parents[1]


def read(file_path: str) -> str:
    """The text of one document. Raises TaskFailed."""
    path = (CHECKOUT / file_path).resolve()
    if not path.is_relative_to(CHECKOUT) or path.suffix != ".md":
        raise TaskFailed("not_a_document", f"{file_path} is not a Markdown document of this repository")
    try:
        return path.read_text()
    except FileNotFoundError:
        raise TaskFailed("file_not_found", f"there is no {file_path} in this repository") from None


def every() -> list[str]:
    """All documents, those of the sources and of docs/."""
    found = [*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md"), *CHECKOUT.glob("demo/**/*.md")]
    return sorted(path.relative_to(CHECKOUT).as_posix() for path in found)
