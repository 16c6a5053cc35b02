"""A real Kafka cluster of one node or several, as child processes on loopback."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.servers.artifacts import DEFAULT_KAFKA
from lab.servers.kafka_broker import BrokerPlace, KafkaBroker, new_id
from lab.servers.process import READY_WITHIN_S
from lab.servers.proxy import NetworkLink


class KafkaCluster:
    """One Kafka cluster, known to flows by its alias. What is done to it is done to all of its brokers.

    Ready means that a client could create a topic, and produce to every partition there is.

    Attributes:
        alias: the cluster's name in flows.
        version: Kafka's version, 3.9.0 or newer.
        brokers: its nodes, each broker and controller.
        bootstrap: `127.0.0.1:port` of each broker, with commas; the same for the life of this object.
        direct: the same without the link, for what stands beside the cluster.
        title: what it is and where, for people.
        log: the first broker's log file.
    """

    def __init__(
        self,
        *,
        alias: str,
        folder: Path,
        version: str = DEFAULT_KAFKA,
        properties: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        linked: bool = False,
        brokers: int = 1,
        places: Sequence[BrokerPlace] = (),
        cluster_id: str = "",
        kind: Callable[..., KafkaBroker] = KafkaBroker,
    ) -> None:
        """A cluster that is not started.

        Args:
            alias: the cluster's name in flows.
            folder: of its data, settings and logs.
            version: Kafka's.
            properties: of its brokers.
            heap_mb: of each broker.
            linked: whether clients call through a `NetworkLink`, which brokers and controllers do not.
            brokers: how many.
            places: of its brokers, where they had some before.
            cluster_id: the same.
            kind: of broker.
        """
        self.alias = alias
        self.version = version
        places = places or [BrokerPlace.free(node, linked=linked) for node in range(1, brokers + 1)]
        self.bootstrap = ",".join(place.address for place in places)
        self.direct = ",".join(place.direct for place in places)
        self.title = f"Kafka {version} {alias} at {self.bootstrap}"
        self._link = NetworkLink({_port(place.address): _port(place.behind) for place in places}) if linked else None
        cluster_id = cluster_id or new_id()
        self.brokers = [
            kind(
                title=f"Kafka {version} {alias} at {place.address}",
                place=place,
                folder=folder if len(places) == 1 else folder / f"broker-{place.node}",
                quorum=places,
                cluster_id=cluster_id,
                version=version,
                properties=properties,
                heap_mb=heap_mb,
            )
            for place in places
        ]
        self.log = self.brokers[0].log

    @property
    def link(self) -> NetworkLink:
        """The network between clients and the cluster.

        Raises:
            ValueError: the cluster has none.
        """
        if self._link is None:
            raise ValueError(f"{self.title} was made without a link")
        return self._link

    @property
    def pid(self) -> int | None:
        """The first broker's process id; None while it is not running."""
        return self.brokers[0].pid

    @property
    def alive(self) -> bool:
        """Whether every broker runs; they may not be ready yet."""
        return all(broker.alive for broker in self.brokers)

    def start(self) -> None:
        """See `Server.start`."""
        self.begin_start()
        self.wait_ready()

    def begin_start(self) -> None:
        """See `Server.begin_start`; the link is opened first, and stays open over a kill."""
        if self._link is not None:
            self._link.open()
        for broker in self.brokers:
            broker.begin_start()

    def wait_ready(self, timeout: float = READY_WITHIN_S) -> None:
        """See `Server.wait_ready`."""
        for broker in self.brokers:
            broker.wait_ready(timeout)

    def kill(self) -> None:
        """See `Server.kill`."""
        for broker in self.brokers:
            broker.kill()

    def stop(self, timeout: float = 20.0) -> None:
        """See `Server.stop`; the link is closed too."""
        # Side by side: a broker that is stopped without a quorum waits for one.
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda broker: broker.stop(timeout), self.brokers))
        if self._link is not None:
            self._link.close()

    def restart(self) -> None:
        """See `Server.restart`."""
        self.stop()
        self.start()


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
