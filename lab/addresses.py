"""The addresses of a lab's servers, kept with its data: the next lab on the same data has the same.

Clients that were pointed at a broker by hand go on after Ctrl-C and another start. A port that something else has
taken meanwhile is replaced.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from lab.servers.kafka import BrokerPlace, new_id
from lab.servers.process import free_port, reserve
from lab.waiting import wait_for
from mirrorless.errors import ConfigurationError

RELEASED_WITHIN_S = 5.0
"""How long the ports of servers that were just killed are waited for."""


class ClusterAddresses(msgspec.Struct, frozen=True):
    """One cluster's id, version and nodes."""

    cluster_id: str
    version: str
    places: tuple[BrokerPlace, ...]


class LabAddresses(msgspec.Struct):
    """The addresses of one lab. Those that it lacks are drawn when they are first asked for."""

    clusters: dict[str, ClusterAddresses] = {}
    dynamodb_port: int = 0

    @classmethod
    def read(cls, path: Path) -> LabAddresses:
        """The addresses in a file, whose ports are taken again; none where it is not there.

        Raises:
            ConfigurationError: the file is not a lab's.
        """
        try:
            found = msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return cls()
        except (OSError, msgspec.DecodeError) as exc:
            raise ConfigurationError(
                f"the addresses cannot be read: {exc}", where=str(path), hint="start with FRESH=1, without the data"
            ) from exc
        found.clusters = {alias: _taken_again(each) for alias, each in found.clusters.items()}
        if not _reserved(found.dynamodb_port):
            found.dynamodb_port = 0
        return found

    def write(self, path: Path) -> None:
        """Keep them."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)))

    def of_cluster(self, alias: str, *, version: str, brokers: int, linked: bool) -> ClusterAddresses:
        """The addresses of a cluster.

        Raises:
            ConfigurationError: its data are of another version, or of another number of brokers.
        """
        known = self.clusters.get(alias)
        if known is None:
            places = tuple(BrokerPlace.free(node, linked=linked) for node in range(1, brokers + 1))
            known = self.clusters[alias] = ClusterAddresses(new_id(), version, places)
        if (known.version, len(known.places)) != (version, brokers):
            raise ConfigurationError(
                f"its data are of Kafka {known.version} on {len(known.places)} broker(s), not {version} on {brokers}",
                where=f"cluster {alias} of the lab",
                hint="start it as before, or with FRESH=1, without its data",
            )
        return known

    def of_dynamodb(self) -> int:
        """The port of DynamoDB."""
        self.dynamodb_port = self.dynamodb_port or free_port()
        return self.dynamodb_port


def _taken_again(known: ClusterAddresses) -> ClusterAddresses:
    places = tuple(
        place
        if all([_reserved(_port(place.address)), _reserved(_port(place.controller))])
        else BrokerPlace.free(place.node, linked=False)
        for place in known.places
    )
    return msgspec.structs.replace(known, places=places)


def _reserved(port: int) -> bool:
    return not wait_for(lambda: not reserve(port), seconds=RELEASED_WITHIN_S)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
