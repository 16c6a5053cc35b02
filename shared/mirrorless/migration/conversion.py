"""A configuration made of mirrors: clusters, flows, and what flows mean beside others.

The section of a flow is made of the properties of MirrorMaker's connectors. The text is YAML with comments, and behind
it every key that has no counterpart.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any, Final

from mirrorless.chain.lane import FlowName
from mirrorless.config.flow_section import FlowSection
from mirrorless.config.loading import reached
from mirrorless.config.messages import keys_of
from mirrorless.config.problems import Path
from mirrorless.flow.filters import is_literal
from mirrorless.migration.answers import DEPRECATED, READERS, Conversion, Outcome, answer_the_rest, may_be_shown
from mirrorless.migration.clusters import cluster_section
from mirrorless.migration.mirrors import GivenKey, Mirror, client_keys
from mirrorless.reports.format import visible


def flow_section(made: Conversion, mirror: Mirror, name: str, back: Mirror | None) -> dict[str, Any]:
    """Return the section of a flow. Args: back: the mirror in the other direction."""
    path: Path = ("flows", name)
    section: dict[str, Any] = {} if mirror.enabled else {"enabled": False}
    for key, readers in READERS.items():
        if given := made.settle(mirror, key, *readers):
            made.take(path, section, FlowSection, key, given)
        elif given := made.settle(mirror, old := DEPRECATED.get(key, key), *readers):
            made.take(path, section, FlowSection, key, given)
            made.comments[*path, key].append(f"it was `{old}`, which MirrorMaker 4 ignores")
    section.setdefault("topics", [".*"] if "source" in mirror.connectors else [])
    for key, text in (("source.cluster.alias", mirror.source), ("target.cluster.alias", mirror.target)):
        if mirror.text(key) == text:
            made.answer(made.settle(mirror, key), "kept")
    made.answer(made.settle(mirror, "enabled"), "kept")
    _name_topics(made, path, section, mirror)
    for side, role, base, each in client_keys(mirror.connectors.get("source", {})):
        if base == "auto.offset.reset" and role == "consumer" and side != "target":
            section["start"] = "latest" if each.value.strip() == "latest" else "earliest"
            made.answer(each, "kept")
    _agree(made, mirror)
    _leave_out_connectors(made, path, section, mirror)
    _beat_back(made, path, section, mirror, back)
    _complete(made, path, section)
    order = keys_of(FlowSection)
    return dict(sorted(section.items(), key=lambda each: order.index(each[0])))


def _name_topics(made: Conversion, path: Path, section: dict[str, Any], mirror: Mirror) -> None:
    """Write how remote topics are called."""
    policy, separator = (made.settle(mirror, f"replication.policy.{each}") for each in ("class", "separator"))
    made.answer(policy, "kept")
    made.answer(separator, "kept")
    section["replication.policy"] = {True: "identity", False: "prefixed", None: None}[mirror.keeps_names]
    above = made.comments[*path, "replication.policy"]
    if mirror.keeps_names is None and policy:
        above.append(f"to fill in: `prefixed` or `identity`, whichever is nearer to `{policy.value.strip()}`")
    if separator is None:
        return
    if text := separator.value.strip():
        section["replication.policy.separator"] = text
    elif mirror.keeps_names:
        own = f"{mirror.text('source.cluster.alias', mirror.source)}checkpointsinternal"
        above.append(f"MirrorMaker's own topics had no separator: checkpoints were in `{own}`")
    else:
        section["replication.policy.separator"] = None
        said = "to fill in: MirrorMaker had none, and here one is between the alias and the topic"
        made.comments[*path, "replication.policy.separator"].append(said)


def _agree(made: Conversion, mirror: Mirror) -> None:
    """Say where the connectors do not know of each other, as they must."""
    for key in ("replication.policy.class", "replication.policy.separator", "offset-syncs.topic.location"):
        have = {kind: mirror.each(key, kind) for kind in ("source", "checkpoint") if kind in mirror.connectors}
        if len(have) > 1 and len([each for each in have.values() if each]) == 1:
            said = f"one connector lacks the `{key}` of another, so MirrorMaker translated no offsets, or wrong ones"
            made.note(f"{mirror.name}: {said}")


def _leave_out_connectors(made: Conversion, path: Path, section: dict[str, Any], mirror: Mirror) -> None:
    """Turn off what a connector does that is not among the files, and say what others did unasked."""
    for kind, key in (("checkpoint", "emit.checkpoints.enabled"), ("heartbeat", "emit.heartbeats.enabled")):
        if kind not in mirror.connectors:
            section[key] = False
            said = f"no Mirror{kind.capitalize()}Connector is among the files; where there is one, remove this line"
            made.comments[*path, key].append(said)
    if "source" not in mirror.connectors:
        said = "no MirrorSourceConnector is among the files, so MirrorMaker copied nothing by these: give its file, too"
        made.note(f"{mirror.name}: {said}")
    elif mirror.product == "MirrorMaker" and mirror.each("connector.class") and not mirror.each("header.converter"):
        said = "without `header.converter` Connect's own made base64 of headers, unless the worker has another"
        made.note(f"{mirror.name}: {said}; copies so far differ from their source; here bytes stay")


def _beat_back(made: Conversion, path: Path, section: dict[str, Any], mirror: Mirror, back: Mirror | None) -> None:
    """Write heartbeats to the source only where MirrorMaker did, by the mirror in the other direction."""
    if section.get("emit.heartbeats.enabled") is False or mirror.product != "MirrorMaker" or (back and back.beats):
        return
    section["emit.heartbeats.source.enabled"] = False
    said = "as MirrorMaker, whose mirror in the other direction would have written them"
    made.comments[*path, "emit.heartbeats.source.enabled"].append(said)
    made.answer(made.settle(back, "emit.heartbeats.enabled") if back else None, "kept")


def _complete(made: Conversion, path: Path, section: dict[str, Any]) -> None:
    """Change what MirrorMaker could do, and a flow cannot."""
    if section.get("refresh.topics.enabled") is False and not all(map(is_literal, section["topics"])):
        section["refresh.topics.enabled"] = True
        said = "MirrorMaker looked for topics when it started, and not again; here patterns need it"
        made.comments[*path, "refresh.topics.enabled"].append(said)
    if section.get("emit.checkpoints.enabled") is False and section.get("sync.group.offsets.enabled"):
        section["sync.group.offsets.enabled"] = False
        said = "without checkpoints there are no offsets to commit, in MirrorMaker neither"
        made.comments[*path, "sync.group.offsets.enabled"].append(said)


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


_WIDTH: Final = 116
_PLAIN: Final = re.compile(r"(?!(?:null|true|false)$)[A-Za-z_][\w./:>-]*")

_HEADS: Final[dict[Outcome, str]] = {
    "blank": "Secrets, whose values are not written here",
    "instead": "Without a counterpart, and what there is instead",
    "ignored": "MirrorMaker ignored these, too",
}

_FIRST: Final = (
    "Made of a configuration of MirrorMaker 2. What has no value is to be filled in: `mirrorless config check FILE`.",
    "Of an MSK cluster write `msk.cluster.arn`, which has its region and account. Of brokers in a VPC, add `vpc`.",
)


def configuration_text(made: Conversion) -> str:
    """The whole text."""
    return "\n".join([*(f"# {each}" for each in _FIRST), *_section(made, made.document, ()), *_without(made), ""])


def _section(made: Conversion, section: dict[str, Any], path: Path) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in section.items():
        yield from [] if path else [""]
        for said in made.comments.get((*path, key), []):
            yield from _comment(said, indent)
        if isinstance(value, dict) and value:
            yield f"{indent}{_scalar(key)}:"
            yield from _section(made, value, (*path, key))
        else:
            yield f"{indent}{_scalar(key)}: {_value(value)}".rstrip()


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else "{}" if value == {} else _scalar(value)


def _scalar(value: Any) -> str:
    """A number, or a text as YAML has it."""
    text = str(value)
    if not isinstance(value, str) or _PLAIN.fullmatch(text):
        return text
    if visible(text) == text:
        return "'" + text.replace("'", "''") + "'"
    return '"' + visible(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _comment(text: str, indent: str = "") -> list[str]:
    return wrap(visible(text), _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ")


def _without(made: Conversion) -> Iterator[str]:
    """Every key that has no counterpart, below what there is instead."""
    several = len({each.file for each in made.given}) > 1
    for outcome, head in _HEADS.items():
        grouped: dict[str, list[GivenKey]] = defaultdict(list)
        for each in made.given:
            if made.answers[each].outcome == outcome:
                grouped[made.answers[each].why].append(each)
        yield from ["", *_comment(f"{head}:")] if grouped else []
        for why, keys in grouped.items():
            yield from ["#", *_comment(why)]
            for each in keys:
                shown = f" = {each.value}" if may_be_shown(each) else ""
                where = f"{each.file}: " if several else ""
                yield visible(f"#     {where}{each.key}{shown}")
