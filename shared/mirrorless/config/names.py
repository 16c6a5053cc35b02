"""Do the names fit together? Rules on aliases, flow names and modes that can be judged before any value is read."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from mirrorless.config.problems import Path, Problem
from mirrorless.lane import ALIAS

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVISIONED_ONLY = (
    "minimum.pollers",
    "maximum.pollers",
    "poller.group.name",
    "partial.batch.response",
    "metrics",
    "system.log.level",
)
"""Options that the Lambda API refuses on an on-demand mapping."""

_ALIAS_ADVICE = "use a-z, 0-9 and hyphen, for example `us-east`"


def problems_with_names(data: Any) -> Iterator[Problem]:
    """Find what is wrong with the names of a document, which may be unsound in every other way."""
    clusters, flows, defaults = (section(data, name) for name in ("clusters", "flows", "defaults"))
    for alias in clusters:
        if not ALIAS.fullmatch(alias):
            yield Problem(path=("clusters", alias), what=f"{alias!r} is no cluster alias", hint=_ALIAS_ADVICE)
    for name in flows:
        yield from _flow_name(name, list(clusters))
    shared = section(defaults, "mapping")
    for name in flows:
        mapping = section(section(flows, name), "mapping")
        if mapping.get("mode", shared.get("mode")) == "on-demand":
            yield from _provisioned_only(mapping, ("flows", name, "mapping"))
    somewhere_provisioned = any(section(section(flows, name), "mapping").get("mode") == "provisioned" for name in flows)
    if shared.get("mode") == "on-demand" and not somewhere_provisioned:
        yield from _provisioned_only(shared, ("defaults", "mapping"))


def section(data: Any, name: str) -> dict[str, Any]:
    """Return a section of a document; an empty one where there is none, or something else."""
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _flow_name(name: str, aliases: list[str]) -> Iterator[Problem]:
    path: Path = ("flows", name)
    source, arrow, target = name.partition("->")
    if not arrow or not source or not target:
        hint = f"write source->target, for example `{'->'.join([*aliases, 'us-east', 'eu-west'][:2])}`"
        yield Problem(path=path, what=f"{name!r} is no flow", hint=hint)
        return
    for alias in dict.fromkeys((source, target)):
        if aliases and alias not in aliases:
            close = get_close_matches(alias.strip(), aliases, n=1)
            guess = f"did you mean `{close[0]}`? Otherwise " if close else ""
            what, hint = f"there is no cluster {alias!r}", f"{guess}describe `{alias}` under `clusters`"
            yield Problem(path=path, what=what, hint=hint)
    if source == target:
        yield Problem(path=path, what="the flow leads from a cluster to itself", hint="name two different clusters")


def _provisioned_only(mapping: dict[str, Any], path: Path) -> Iterator[Problem]:
    for key in PROVISIONED_ONLY:
        if key in mapping:
            hint = "write `mode: provisioned`, or remove it"
            yield Problem(path=(*path, key), what="an on-demand mapping does not have this option", hint=hint)
