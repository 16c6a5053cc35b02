"""Golden files: compared with what the code makes now, and written anew by `make frozen`."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"

ANEW = "If that is meant, `make frozen` writes the golden files anew; the diff then belongs into the commit."


def difference(name: str, now: str | None) -> str:
    """How a golden file differs from what the code makes now; empty where it does not.

    Args:
        name: the file's path below the folder of golden files.
        now: the text that the code makes; None where it makes no such file.
    """
    path = FOLDER / name
    frozen = path.read_text(encoding="utf-8") if path.exists() else ""
    if now == frozen and path.exists():
        return ""
    lines = unified_diff(
        frozen.splitlines(), (now or "").splitlines(), f"{name}, frozen", f"{name}, now", lineterm="", n=2
    )
    return "\n".join(["what users see has changed:", *lines, ANEW])


def written(part: str) -> list[str]:
    """The golden files of a part, by their paths below the folder."""
    return sorted(path.relative_to(FOLDER).as_posix() for path in (FOLDER / part).glob("*"))


def write(part: str, texts: Mapping[str, str]) -> int:
    """Replace the golden files of a part, and return how many there are now."""
    (FOLDER / part).mkdir(parents=True, exist_ok=True)
    for stale in set(written(part)) - set(texts):
        (FOLDER / stale).unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return len(texts)
