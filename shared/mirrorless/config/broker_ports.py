"""Ports of MSK's brokers: which authentication each is for, and what a network opens for a cluster.

(https://docs.aws.amazon.com/msk/latest/developerguide/port-info.html,
https://docs.aws.amazon.com/msk/latest/developerguide/aws-access-mult-vpc.html)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mirrorless.config.cluster import Plaintext, Tls
from mirrorless.config.problems import Path, Problem

if TYPE_CHECKING:
    from mirrorless.config.cluster import Cluster


@dataclass(frozen=True, slots=True, order=True)
class PortRange:
    """Ports from the first to the last."""

    first: int
    last: int

    def covers(self, other: PortRange) -> bool:
        """Whether every port of another range is in this one."""
        return self.first <= other.first and other.last <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"


CONNECTION_PORTS: Final = PortRange(14_001, 14_100)
"""Of brokers behind a VPC connection, which MSK makes for clients in other VPCs: each broker has a port there."""

POLLED_PORTS: Final = {"plaintext": 9092, "tls": 9094, "mtls": 9094, "scram": 9096, "iam": 9098}
"""The port of an MSK cluster that the pollers of a mapping read from, by the authentication."""

_OFFSETS: Final = (0, 100, 11_000)
"""From the port inside a VPC to that of public access, and to that by IPv6; plaintext is never public."""

_OF_MSK: Final = re.compile(r"\.kafka(-serverless)?\.[a-z0-9-]+\.amazonaws\.com(\.cn)?:[0-9]+$")


def is_connection(cluster: Cluster) -> bool:
    """Whether a cluster is reached by a VPC connection (multi-VPC private connectivity)."""
    return ":vpc-connection/" in (cluster.msk_arn or "")


def ports_of(cluster: Cluster) -> tuple[PortRange, ...]:
    """The ports that clients of a cluster connect to: those of its bootstrap servers, which MSK's brokers all have."""
    if is_connection(cluster):
        return (CONNECTION_PORTS,)
    ports = sorted({_port(server) for server in cluster.bootstrap})
    return tuple(PortRange(port, port) for port in ports)


def polled_ports(cluster: Cluster) -> PortRange:
    """The ports that the pollers of an MSK cluster's mappings connect to."""
    if is_connection(cluster):
        return CONNECTION_PORTS
    port = POLLED_PORTS[cluster.authentication.type]
    return PortRange(port, port)


def problems_with_ports(cluster: Cluster) -> Iterator[Problem]:
    """Find bootstrap servers of MSK that this configuration's clients cannot use."""
    if is_connection(cluster):
        yield from _problems_with_connection(cluster)
        return
    kind = cluster.authentication.type
    path: Path = ("clusters", cluster.alias, "bootstrap.servers")
    for position, server in enumerate(cluster.bootstrap):
        if cluster.msk_arn is None and not _OF_MSK.search(server):
            continue
        others = {each for each, port in POLLED_PORTS.items() if _port(server) in {port + more for more in _OFFSETS}}
        if others and kind not in others:
            what = f"MSK's port {_port(server)} is for {' and '.join(f'`{each}`' for each in sorted(others))}, "
            what += f"and `authentication` says `{kind}`"
            port = POLLED_PORTS.get(kind)
            hint = f"write port {port}" if port else "write the authentication that the cluster has"
            yield Problem(path=(*path, position), what=what, hint=hint)


def _problems_with_connection(cluster: Cluster) -> Iterator[Problem]:
    path: Path = ("clusters", cluster.alias)
    if isinstance(cluster.authentication, Plaintext | Tls):
        what = "MSK has no VPC connections for clients that do not authenticate"
        yield Problem(path=(*path, "authentication", "type"), what=what, hint="write `iam`, `scram` or `mtls`")
    for position, server in enumerate(cluster.bootstrap):
        port = _port(server)
        if not CONNECTION_PORTS.covers(PortRange(port, port)):
            what = f"brokers behind a VPC connection have ports {CONNECTION_PORTS}, and this one has {port}"
            hint = "take the connection's own bootstrap servers, `BootstrapBrokerStringVpcConnectivity…` of "
            hint += "`aws kafka get-bootstrap-brokers`; or name the cluster's ARN, where its VPC is reached directly"
            yield Problem(path=(*path, "bootstrap.servers", position), what=what, hint=hint)


def _port(server: str) -> int:
    return int(server.rpartition(":")[2])
