"""The guard's findings: refused or noted, what changes, why it hurts, and what to do instead."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from textwrap import fill
from typing import Any, Final

from infra.guard.templates import Resource
from mirrorless.errors import ConfigurationError
from mirrorless.reports.format import visible

WIDTH: Final = 120
LABEL: Final = 11
"""Columns of a line, and of what stands before its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeFinding:
    """One change.

    Attributes:
        refused: whether it must not be deployed as it is.
        stack: the stack of the resource.
        id: its logical id, by which a refusal can be accepted.
        subject: the resource, as people call it.
        what: what changes.
        why: why that hurts; empty where it does not.
        instead: what to do.
        accepted: whether an operator accepted it by its logical id.
    """

    refused: bool
    stack: str
    id: str
    subject: str
    what: str
    why: str = ""
    instead: str = ""
    accepted: bool = False

    def json(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)

    def __str__(self) -> str:
        verdict = "accepted" if self.accepted else "REFUSED" if self.refused else "noted"
        lines = [(verdict, f"{self.subject}: {self.what}")]
        lines += [("  why" if self.refused else "  so", self.why)] if self.why else []
        lines += [("  instead" if self.refused else "  before", self.instead)] if self.instead else []
        indent: dict[str, Any] = {"subsequent_indent": " " * LABEL, "break_on_hyphens": False}
        return "\n".join(
            fill(visible(text), WIDTH, initial_indent=f"{label:<{LABEL}}", **indent) for label, text in lines
        )


def refused(resource: Resource, what: str, why: str, instead: str, *, subject: str = "") -> ChangeFinding:
    """A change that must not be deployed as it is. `subject`: what it is of, where that is not the resource itself."""
    return ChangeFinding(
        refused=True,
        stack=resource.stack,
        id=resource.id,
        subject=subject or str(resource),
        what=what,
        why=why,
        instead=instead,
    )


def noted(resource: Resource, what: str, why: str = "", instead: str = "", *, subject: str = "") -> ChangeFinding:
    """A change to read before it is deployed."""
    return replace(refused(resource, what, why, instead, subject=subject), refused=False)


def accepted(findings: Iterable[ChangeFinding], ids: Collection[str]) -> list[ChangeFinding]:
    """The findings, with those accepted that an operator names by logical id."""
    return [
        replace(finding, refused=False, accepted=True) if finding.refused and finding.id in ids else finding
        for finding in findings
    ]


def check_accepted(findings: Iterable[ChangeFinding], ids: Collection[str]) -> None:
    """Check that each id has accepted something, so that none stays in a pipeline and takes the next change.

    Raises:
        ConfigurationError: nothing is refused of some.
    """
    if vain := set(ids) - {each.id for each in findings if each.accepted}:
        what = f"nothing is refused of {', '.join(sorted(vain))}"
        raise ConfigurationError(what, where="--accept", hint="leave it out; what is accepted is accepted once")


CHANGEABLE: Final = frozenset({"CREATED", "STOPPED"})
"""States of an application that takes an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationState:
    """An application as EMR Serverless has it.

    Attributes:
        id: by which it is stopped.
        state: such as `STARTED`.
        region: where it is.
    """

    id: str
    state: str
    region: str
