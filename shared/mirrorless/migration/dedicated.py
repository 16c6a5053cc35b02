"""MirrorMaker's own file, connect-mirror-maker.properties, by the rules of its class `MirrorMakerConfig`."""

from __future__ import annotations

from itertools import permutations
from typing import Final

from mirrorless.flow.filters import split_list
from mirrorless.migration.mirrors import CONNECTOR_KEYS, KINDS, GivenKey, Mirror, Properties, is_access, stripped

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
