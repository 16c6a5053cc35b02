"""Strimzi's resource KafkaMirrorMaker2, of `v1` and `v1beta2`: what its operator gives the connectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from mirrorless.config.problems import section
from mirrorless.migration.mirrors import KINDS, GivenKey, Mirror, Properties, stripped

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
