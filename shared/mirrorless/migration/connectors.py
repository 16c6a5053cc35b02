"""Connectors of a Connect cluster: MirrorMaker's three, whose files must agree, and Confluent's Replicator."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from mirrorless.migration.mirrors import KINDS, ConnectorKind, Mirror, Properties, is_access, stripped

_CLASSES: Final[Mapping[str, ConnectorKind]] = {f"Mirror{kind.capitalize()}Connector": kind for kind in KINDS}
_REPLICATOR: Final = "ReplicatorSourceConnector"


def is_of_mirrors(connector: Properties) -> bool:
    """Whether a connector is one of MirrorMaker's, or Replicator."""
    return _class_of(connector) in {*_CLASSES, _REPLICATOR}


def connector_mirrors(connectors: Iterable[Properties]) -> list[Mirror]:
    """Return the mirrors of connectors."""
    found: dict[tuple[str, str], dict[ConnectorKind, Properties]] = defaultdict(dict)
    others = []
    for each in connectors:
        if (kind := _CLASSES.get(_class_of(each))) is None:
            others.append(_of_replicator(each))
        else:
            found[_text(each, "source.cluster.alias"), _text(each, "target.cluster.alias", "target")][kind] = each
    mirrors = [
        Mirror(
            source=source, target=target, connectors=each, enabled=_text(each.get("source", {}), "enabled") != "false"
        )
        for (source, target), each in found.items()
    ]
    return mirrors + others


def _class_of(connector: Properties) -> str:
    return _text(connector, "connector.class").rpartition(".")[2]


def _text(properties: Properties, key: str, default: str = "") -> str:
    return properties[key].value.strip() if key in properties else default


_ENDS: Final = (("src.kafka.", "source.cluster."), ("dest.kafka.", "target.cluster."))
_RENAMED: Final = {
    "topic.regex": "topics",
    "topic.whitelist": "topics",
    "topic.blacklist": "topics.exclude",
    "topic.config.sync": "sync.topic.configs.enabled",
    "dest.topic.replication.factor": "replication.factor",
}
"""Replicator's keys that MirrorMaker has by another name."""


def _of_replicator(given: Properties) -> Mirror:
    """Read Replicator's keys as MirrorMaker's, of two clusters `source` and `target`."""
    found, source = {**given}, "source"
    for theirs, ours in _ENDS:
        found |= {f"{ours}{key}": each for key, each in stripped(given, theirs).items() if is_access(key)}
    found |= {f"source.consumer.{key}": each for key, each in stripped(given, "src.consumer.").items()}
    found |= {_RENAMED[key]: each for key, each in given.items() if key in _RENAMED}
    if form := given.get("topic.rename.format"):
        if added := re.fullmatch(r"(.+)([._-])\$\{topic\}", form.value):
            source = added[1]
            found["replication.policy.separator"] = replace(form, value=added[2])
        name = "Default" if added else "Identity" if form.value == "${topic}" else ""
        found["replication.policy.class"] = replace(form, value=f"{name}ReplicationPolicy" if name else form.value)
    return Mirror(source=source, target="target", connectors=dict.fromkeys(KINDS, found), product="Replicator")
