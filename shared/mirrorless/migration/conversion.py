"""A configuration made of mirrors: clusters, flows, and what flows mean beside others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mirrorless.chain.lane import FlowName
from mirrorless.config.loading import reached
from mirrorless.flow.filters import is_literal
from mirrorless.migration.answers import Conversion, answer_the_rest
from mirrorless.migration.clusters import cluster_section
from mirrorless.migration.flows import flow_section
from mirrorless.migration.mirrors import GivenKey, Mirror


def conversion_of(given: Sequence[GivenKey], mirrors: Sequence[Mirror]) -> Conversion:
    """Make a configuration. Args: given: every key of the files. mirrors: what the files describe."""
    made = Conversion(given)
    aliases = _aliases(mirrors)
    for alias, ours in aliases.items():
        ends = [(mirror, end) for mirror in mirrors for end in ("source", "target") if getattr(mirror, end) == alias]
        made.document["clusters"][ours] = cluster_section(made, alias, ours, ends)
    by_ends = {(mirror.source, mirror.target): mirror for mirror in mirrors}
    for mirror in mirrors:
        if mirror.written:
            name = f"{aliases[mirror.source]}->{aliases[mirror.target]}"
            back = by_ends.get((mirror.target, mirror.source))
            made.document["flows"][name] = flow_section(made, mirror, name, back)
    _prevent_loops(made)
    _share(made)
    answer_the_rest(made, mirrors)
    return made


def _aliases(mirrors: Sequence[Mirror]) -> dict[str, str]:
    """The alias here of each of MirrorMaker's: lower case, digits and hyphens."""
    found: dict[str, str] = {}
    for mirror in mirrors:
        for alias, end in ((mirror.source, "source"), (mirror.target, "target")):
            plain = re.sub(r"[^a-z0-9-]+", "-", alias.lower()).strip("-") or end
            while alias not in found and plain in found.values():
                plain += "-2"
            found.setdefault(alias, plain)
    return found


def _prevent_loops(made: Conversion) -> None:
    """Mark copies where flows that keep names form a circle, and let one of these copy configs and ACLs."""
    flows: dict[str, dict[str, Any]] = made.document["flows"]
    ways = {
        name: FlowName.parse(name)
        for name, each in flows.items()
        if each["replication.policy"] == "identity" and each.get("enabled", True)
    }
    beyond = {name: reached(way.target, ways.values()) for name, way in ways.items()}
    for name, way in ways.items():
        circle = [other for other in ways if ways[other].source in beyond[name] and way.source in beyond[other]]
        if not circle or _apart([flows[each]["topics"] for each in circle]):
            continue
        flows[name]["loop.prevention"] = "header"
        said = "MirrorMaker copied in a circle what both directions take, unless they take no topic in common"
        made.comments["flows", name, "loop.prevention"].append(said)
        made.note(f"{name}: names are kept in both directions: {said}")
        for key in ("sync.topic.configs.enabled", "sync.topic.acls.enabled"):
            copying = [other for other in circle if flows[other].get(key, True)]
            if name in copying[1:]:
                flows[name][key] = False
                said = f"{copying[0]} does it; both would change back what is changed on one side"
                made.comments["flows", name, key].append(said)


def _apart(topics: Sequence[Sequence[str]]) -> bool:
    """Whether no topic is in two lists. What patterns find is not known."""
    times = Counter(topic for each in topics for topic in set(each))
    return all(map(is_literal, times)) and max(times.values(), default=0) <= 1


def _share(made: Conversion) -> None:
    """Write once, under `defaults`, what all flows have alike."""
    flows: dict[str, dict[str, Any]] = made.document["flows"]
    first, *others = flows.values()
    for key, value in list(first.items()) if others else []:
        if key == "enabled" or any(each.get(key, others) != value for each in others):
            continue
        made.document["defaults"][key] = value
        said = [line for name in flows for line in made.comments.pop(("flows", name, key), [])]
        made.comments["defaults", key] = list(dict.fromkeys(said))
        for each in flows.values():
            del each[key]
    if not made.document["defaults"]:
        del made.document["defaults"]
