"""MirrorMaker's mirrors in one form, whatever file had them: the properties that each of its connectors is given.

Properties have the names that connectors know: `topics`, `source.cluster.bootstrap.servers`, `producer.override.acks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

_IDENTITY: Final = {"identity", "prefixless", "noprefix", "custommm2"}
"""Policies that keep the names of topics: Kafka's, Strimzi's, AWS's sample, and others of these names."""

ConnectorKind = Literal["source", "checkpoint", "heartbeat"]
KINDS: Final[tuple[ConnectorKind, ...]] = ("source", "checkpoint", "heartbeat")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenKey:
    """A key that a file has.

    Attributes:
        file: its name.
        key: as the file spells it; in a document, the path of a value.
        value: as text. It may be a secret.
    """

    file: str
    key: str
    value: str = field(compare=False, repr=False)


Properties = Mapping[str, GivenKey]
"""By the names that connectors, or Connect's workers, know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """What one cluster gets of another.

    Attributes:
        source: its alias in the file.
        target: the same.
        connectors: the properties of each connector that there is.
        worker: those of the Connect worker, whose producer writes the records.
        enabled: whether it copies records. If not, heartbeats may be written all the same.
        written: whether the file is about it. MirrorMaker writes heartbeats for all other pairs of its clusters, too.
        product: what it is of; Replicator keeps the names of topics unless its file says otherwise.
    """

    source: str
    target: str
    connectors: Mapping[ConnectorKind, Properties]
    worker: Properties = field(default_factory=dict)
    enabled: bool = True
    written: bool = True
    product: Literal["MirrorMaker", "Replicator"] = "MirrorMaker"

    @property
    def name(self) -> str:
        """As MirrorMaker writes it."""
        return f"{self.source}->{self.target}"

    def each(self, key: str, *kinds: ConnectorKind) -> list[GivenKey]:
        """What some connectors have of a key. Args: kinds: all of them, if none is named."""
        have = (self.connectors.get(kind, {}).get(key) for kind in kinds or KINDS)
        return list(dict.fromkeys(filter(None, have)))

    def text(self, key: str, default: str = "") -> str:
        """The value of a key, or another."""
        return found[0].value.strip() if (found := self.each(key)) else default

    @property
    def keeps_names(self) -> bool | None:
        """Whether remote topics keep their names; None where its policy is not known."""
        given = self.text("replication.policy.class").rpartition(".")[2].lower()
        name = given.removesuffix("replicationpolicy") or ("default" if self.product == "MirrorMaker" else "identity")
        if name != "default":
            return True if name in _IDENTITY else None
        # Neither an alias nor a separator: so names were kept before there was a policy for it.
        return self.text("source.cluster.alias", self.source) == self.text("replication.policy.separator", ".") == ""

    @property
    def beats(self) -> bool:
        """Whether it writes heartbeats to its target."""
        return "heartbeat" in self.connectors and self.text("emit.heartbeats.enabled", "true").lower() == "true"


def is_access(key: str) -> bool:
    """Whether a client's key says where brokers are, or how to authenticate. MirrorMaker shares only these."""
    return key in {"bootstrap.servers", "security.protocol"} or key.startswith(("ssl.", "sasl."))


def stripped(properties: Properties, prefix: str) -> dict[str, GivenKey]:
    """The properties that begin so, without that beginning."""
    return {key.removeprefix(prefix): each for key, each in properties.items() if key.startswith(prefix)}


def client_keys(properties: Properties) -> Iterator[tuple[str, str, str, GivenKey]]:
    """The properties that are settings of clients: of the cluster at which end, of which clients, and which."""
    for key, each in properties.items():
        if key not in CONNECTOR_KEYS and (found := CLIENT_KEY.fullmatch(key)):
            yield found[1] or "", found[2], found[3], each


CLIENT_KEY: Final = re.compile(
    r"(?:(source|target)\.)?((?:consumer|producer|admin)(?:\.override)?|(?<=\.)cluster)\.(.+)"
)

CONNECTOR_KEYS: Final = frozenset(
    re.findall(
        r"\S+",
        """
    name connector.class connector.plugin.version tasks.max tasks.max.enforce key.converter value.converter
    header.converter key.converter.plugin.version value.converter.plugin.version header.converter.plugin.version
    transforms predicates config.action.reload errors.retry.timeout errors.retry.delay.max.ms errors.tolerance
    errors.log.enable errors.log.include.messages enabled source.cluster.alias target.cluster.alias admin.timeout.ms
    replication.policy.class replication.policy.separator replication.policy.internal.topic.separator.enabled
    forwarding.admin.class metric.reporters topics topics.exclude topics.blacklist config.properties.exclude
    config.properties.blacklist use.defaults.from topic.filter.class config.property.filter.class
    consumer.poll.timeout.ms refresh.topics.enabled refresh.topics.interval.seconds sync.topic.configs.enabled
    sync.topic.configs.interval.seconds sync.topic.acls.enabled sync.topic.acls.interval.seconds replication.factor
    offset-syncs.topic.replication.factor offset.lag.max offset-syncs.topic.location emit.offset-syncs.enabled
    heartbeats.replication.enabled groups groups.exclude groups.blacklist group.filter.class refresh.groups.enabled
    refresh.groups.interval.seconds emit.checkpoints.enabled emit.checkpoints.interval.seconds
    sync.group.offsets.enabled sync.group.offsets.interval.seconds checkpoints.topic.replication.factor
    emit.heartbeats.enabled emit.heartbeats.interval.seconds heartbeats.topic.replication.factor
    """,
    )
)
"""What connectors define: at the top of MirrorMaker's own file, they are given these and no others."""
