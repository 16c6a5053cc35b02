"""The way from files to mirrors: what each file is shows in what it has.

Connectors of a Connect cluster are MirrorMaker's three, whose files must agree, or Confluent's Replicator. A resource
KafkaMirrorMaker2, of `v1` and `v1beta2`, becomes what Strimzi's operator gives the connectors. MirrorMaker's own file
is read by the rules of its class `MirrorMakerConfig`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any, Final

from mirrorless.config import yaml_source
from mirrorless.config.problems import section
from mirrorless.errors import ConfigurationError
from mirrorless.flow.filters import split_list
from mirrorless.flow.java_properties import read_properties
from mirrorless.migration.mirrors import (
    CONNECTOR_KEYS,
    KINDS,
    ConnectorKind,
    GivenKey,
    Mirror,
    Properties,
    is_access,
    stripped,
)

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
            found[_value(each, "source.cluster.alias"), _value(each, "target.cluster.alias", "target")][kind] = each
    mirrors = [
        Mirror(
            source=source, target=target, connectors=each, enabled=_value(each.get("source", {}), "enabled") != "false"
        )
        for (source, target), each in found.items()
    ]
    return mirrors + others


def _class_of(connector: Properties) -> str:
    return _value(connector, "connector.class").rpartition(".")[2]


def _value(properties: Properties, key: str, default: str = "") -> str:
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


_PATTERNS: Final = {
    "topicsPattern": "topics",
    "topicsExcludePattern": "topics.exclude",
    "topicsBlacklistPattern": "topics.exclude",
    "groupsPattern": "groups",
    "groupsExcludePattern": "groups.exclude",
    "groupsBlacklistPattern": "groups.exclude",
}
_OF_WORKER: Final = {
    "groupId": "group.id",
    "configStorageTopic": "config.storage.topic",
    "offsetStorageTopic": "offset.storage.topic",
    "statusStorageTopic": "status.storage.topic",
}
_MECHANISMS: Final = {
    "scram-sha-512": "SCRAM-SHA-512",
    "scram-sha-256": "SCRAM-SHA-256",
    "plain": "PLAIN",
    "oauth": "OAUTHBEARER",
}
_SECTIONS: Final = (
    ("authentication.config.", ""),
    ("authentication.certificateAndKey.", "ssl.keystore."),
    ("authentication.", "sasl.jaas.config."),
    ("tls", "ssl.truststore"),
    ("config.", ""),
)
"""Beginnings of paths within a cluster, and of the settings that they become."""


def leaves(file: str, data: Any, path: str = "") -> Iterator[GivenKey]:
    """Every value of a document, by its path. A key with dots is one of Kafka's, and the end of a path."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from leaves(file, value, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list) and data:
        for index, value in enumerate(data):
            yield from leaves(file, value, f"{path}[{index}]")
    else:
        yield GivenKey(file=file, key=path, value=str(data).lower() if isinstance(data, bool) else str(data))


def strimzi_mirrors(given: Properties, resource: Mapping[str, Any]) -> list[Mirror]:
    """Return the mirrors of a resource. Args: given: its leaves."""
    clusters = {str(each.get("alias")): f"spec.clusters[{index}]." for index, each in _sections(resource, "clusters")}
    found = []
    for index, mirror in _sections(resource, "mirrors"):
        at = f"spec.mirrors[{index}]."
        source = stripped(given, clusters.get(str(mirror.get("sourceCluster")), f"{at}source."))
        target = stripped(given, clusters.get(str(mirror.get("targetCluster")), "spec.target."))
        shared = {f"source.cluster.{key}": each for key, each in _access(source).items()}
        shared |= {f"target.cluster.{key}": each for key, each in _access(target).items()}
        patterns = {_PATTERNS[key]: each for key, each in stripped(given, at).items() if key in _PATTERNS}
        state = given.get(f"{at}sourceConnector.state")
        found.append(
            Mirror(
                source=source["alias"].value if "alias" in source else "source",
                target=target["alias"].value if "alias" in target else "target",
                connectors={
                    kind: {**shared, **_of_connector(stripped(given, f"{at}{kind}Connector.")), **patterns}
                    for kind in KINDS
                    if f"{kind}Connector" in mirror
                },
                worker={_OF_WORKER[key]: each for key, each in target.items() if key in _OF_WORKER}
                | stripped(target, "config."),
                enabled=state is None or state.value == "running",
            )
        )
    return found


def _sections(resource: Mapping[str, Any], name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The sections of a list, with their places in it."""
    found = section(resource, "spec").get(name)
    return (
        (index, each) for index, each in enumerate(found if isinstance(found, list) else ()) if isinstance(each, dict)
    )


def _of_connector(given: Properties) -> dict[str, GivenKey]:
    return {("tasks.max" if key == "tasksMax" else key.removeprefix("config.")): each for key, each in given.items()}


def _access(cluster: Properties) -> dict[str, GivenKey]:
    """What clients of a cluster are given, by their own names for it."""
    found, tls, first = dict[str, GivenKey](), False, None
    for key, each in cluster.items():
        if key == "bootstrapServers":
            found["bootstrap.servers"] = each
        elif key == "authentication.type":
            first = each
        elif begin := next((begin for begin in _SECTIONS if key.startswith(begin[0])), None):
            found[f"{begin[1]}{key.removeprefix(begin[0])}"] = each
            tls |= begin[0] == "tls"
            first = first or (each if begin[0] == "tls" else None)
        elif key == "alias":
            found[key] = each
    if first:
        by_sasl = first.value in _MECHANISMS or found.get("sasl.jaas.config.sasl", first).value == "true"
        found["security.protocol"] = replace(
            first, value=("SASL_" if by_sasl else "") + ("SSL" if tls else "PLAINTEXT")
        )
        if first.value in _MECHANISMS:
            found["sasl.mechanism"] = replace(first, value=_MECHANISMS[first.value])
    return found


_SHARED: Final = ("replication.policy", "config.providers")
"""Beginnings of keys that every connector is given."""

_OF_WORKERS: Final = (
    *("offset.storage", "config.storage", "status.storage", "key.converter", "value.converter", "header.converter"),
    *("task", "worker", "replication.policy", "config.providers"),
)
"""Beginnings of keys that every worker is given."""


def dedicated_mirrors(given: Properties) -> list[Mirror]:
    """Return a mirror for each ordered pair of the file's clusters."""
    aliases = dict.fromkeys(split_list(given["clusters"].value))
    clusters = {alias: _of_cluster(given, alias) for alias in aliases}
    top = {key: each for key, each in given.items() if key in CONNECTOR_KEYS or key.startswith(_SHARED)}
    workers = {key: each for key, each in given.items() if key.startswith(_OF_WORKERS)}
    found = []
    for source, target in permutations(aliases, 2):
        own = stripped(given, f"{source}->{target}.")
        base = {**top, **_at_end("source", clusters[source]), **_at_end("target", clusters[target]), **own}
        found.append(
            Mirror(
                source=source,
                target=target,
                connectors=dict.fromkeys(KINDS, base),
                worker={**clusters[target], **workers},
                enabled=(switch := own.get("enabled")) is not None and switch.value.strip().lower() == "true",
                written=bool(own.keys() - {"emit.heartbeats.enabled"}),
            )
        )
    return found


def _of_cluster(given: Properties, alias: str) -> dict[str, GivenKey]:
    """The keys of a cluster; what clients need of it may stand at the top for all."""
    return {key: each for key, each in given.items() if is_access(key)} | stripped(given, f"{alias}.")


def _at_end(end: str, cluster: Properties) -> dict[str, GivenKey]:
    clients = ("consumer", "producer", "admin")
    return {
        f"{end}.{key}" if key.startswith(clients) else f"{end}.cluster.{key}": each for key, each in cluster.items()
    }


_HINT = (
    "name connect-mirror-maker.properties, MirrorMaker's connectors as JSON or the address of their Connect cluster, a "
    "KafkaMirrorMaker2 of Strimzi, or the properties of Confluent's Replicator; describe what another tool copies by "
    "hand, as replication.example.yaml does"
)
_YAML_KIND = re.compile(r"^kind:\s*KafkaMirrorMaker2\s*$", re.MULTILINE)


def read_mirrors(files: Mapping[str, bytes]) -> tuple[list[GivenKey], list[Mirror]]:
    """Read files, by their names: every key that they have, and the mirrors that they describe together.

    Raises:
        ConfigurationError: a file is none of the known forms, or they describe no mirror.
    """
    given: list[GivenKey] = []
    mirrors: list[Mirror] = []
    connectors: list[Properties] = []
    for name, data in files.items():
        if data.lstrip()[:1] in {b"{", b"["}:
            connectors += _connectors(name, data)
            continue
        text = data.decode("utf-8", "replace")
        if documents := [each for each in re.split(r"^---.*$", text, flags=re.MULTILINE) if _YAML_KIND.search(each)]:
            for each in documents:
                resource = yaml_source.read(each, origin=name).data
                keys = {leaf.key: leaf for leaf in leaves(name, resource)}
                given += keys.values()
                mirrors += strimzi_mirrors(keys, resource)
            continue
        keys = _keys(name, read_properties(data, origin=name))
        if "clusters" in keys and "connector.class" not in keys:
            given += keys.values()
            mirrors += dedicated_mirrors(keys)
        elif "connector.class" in keys:
            connectors.append(keys)
        else:
            raise ConfigurationError("this is no configuration of MirrorMaker 2", where=name, hint=_HINT)
    known = [each for each in connectors if is_of_mirrors(each)]
    given += (each for properties in known for each in properties.values())
    mirrors += connector_mirrors(known)
    if not mirrors:
        raise ConfigurationError("there is no mirror in it", where=", ".join(files), hint=_HINT)
    if same := [each.source for each in mirrors if each.source == each.target]:
        hint = "give source and target an alias each: a flow is between two clusters"
        raise ConfigurationError(f"{same[0]!r} is source and target", where=", ".join(files), hint=hint)
    return given, mirrors


def _keys(file: str, properties: Mapping[str, Any]) -> dict[str, GivenKey]:
    return {key: GivenKey(file=file, key=key, value=_text(value)) for key, value in properties.items()}


def _text(value: Any) -> str:
    """A value as Connect takes it from JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _connectors(name: str, data: bytes) -> Iterable[Properties]:
    """Read connectors: one, with its `config` or as that alone; a list; or what a Connect cluster answers."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ConfigurationError(f"this is not JSON: {exc}", where=name, hint=_HINT) from exc
    several = found if isinstance(found, list) else [found]
    if isinstance(found, dict) and found and all(isinstance(each, dict) and "info" in each for each in found.values()):
        several = [each["info"] for each in found.values()]
    for each in several:
        config = each.get("config", each) if isinstance(each, dict) else None
        if not isinstance(config, dict):
            raise ConfigurationError("this is no connector", where=name, hint=_HINT)
        label = f"{name} {each['name']}" if len(several) > 1 and "name" in each else name
        yield _keys(label, config)
