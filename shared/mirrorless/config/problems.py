"""Problems of a configuration, each with its place and with what to write instead; all are reported at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirrorless.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mirrorless.config.flow import Flow

Path = tuple[str | int, ...]
"""Keys and list positions from the top of the document."""


def written(path: Path) -> str:
    """Return a path as text: `flows.us-east->eu-west.topics[1]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that must be changed before the configuration can be used.

    Attributes:
        path: the field, from the top of the document.
        what: what is wrong.
        hint: what to write instead.
        line: of the document, counted from 1; None when the document does not have the field.
    """

    path: Path
    what: str
    hint: str
    line: int | None = None

    @property
    def where(self) -> str:
        """The field as text."""
        return written(self.path)

    def __str__(self) -> str:
        place = self.where or "the document"
        line = f"line {self.line}, " if self.line else ""
        return f"{line}{place}: {self.what}. What to do: {self.hint}{'' if self.hint.endswith('?') else '.'}"


class InvalidConfiguration(ConfigurationError):
    """The configuration cannot be used. `problems` has all its problems, in the document's order."""

    def __init__(self, origin: str, problems: Iterable[Problem]) -> None:
        self.origin = origin
        self.problems = tuple(problems)
        count = f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"
        super().__init__(f"{count}; nothing was created", where=origin, hint="; ".join(p.hint for p in self.problems))

    def __str__(self) -> str:
        return "\n  ".join([f"{self.where}: {self.what} (a retry does not help)", *map(str, self.problems)])


def section(data: Any, name: str) -> dict[str, Any]:
    """Return a section of a document; an empty one where there is none, or no section."""
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class FlowPaths:
    """Paths of values in a document: in a flow itself, or in `defaults`."""

    data: Any

    def of(self, flow: Flow, *keys: str | int) -> Path:
        """Return the path of a flow's value; within the flow where it is written nowhere."""
        own, shared = section(section(self.data, "flows"), str(flow.name)), section(self.data, "defaults")
        names = [key for key in keys if isinstance(key, str)]
        holder, key = names[:-1], names[-1]
        for name in holder:
            own, shared = section(own, name), section(shared, name)
        written_in_defaults = key in shared and key not in own
        return ("defaults", *keys) if written_in_defaults else ("flows", str(flow.name), *keys)
