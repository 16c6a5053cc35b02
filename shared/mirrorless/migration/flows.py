"""The section of a flow, made of the properties of MirrorMaker's connectors."""

from __future__ import annotations

from typing import Any

from mirrorless.config.flow_section import FlowSection
from mirrorless.config.messages import keys_of
from mirrorless.config.problems import Path
from mirrorless.flow.filters import is_literal
from mirrorless.migration.answers import Conversion
from mirrorless.migration.keys import DEPRECATED, READERS
from mirrorless.migration.mirrors import Mirror, client_keys


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
