"""Rules on networks: whether security groups and routes let pollers, functions and jobs reach brokers and AWS.

Plain values in, findings out. A prefix list as a peer counts as any address, since its content is not read. Addresses
are those of IPv4.
(https://docs.aws.amazon.com/lambda/latest/dg/with-msk-cluster-network.html)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Final

from infra.guard.verdict import ChangeFinding
from mirrorless.config.broker_ports import PortRange

HTTPS_PORTS: Final = PortRange(443, 443)
EVERY_PORT: Final = PortRange(0, 65_535)

NETWORK: Final = "network"
"""What stands for a stack in these findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityRule:
    """One rule of a security group, for one peer.

    Attributes:
        inbound: whether it lets in; else it lets out.
        ports: TCP ports.
        peer: a security group, a range of addresses, or a prefix list.
    """

    inbound: bool
    ports: PortRange
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSide:
    """One side of connections: where its interfaces are, and what they carry.

    Attributes:
        name: for people.
        vpc: its VPC.
        groups: its security groups, with the rules of each.
        ranges: addresses of its subnets, by subnet.
    """

    name: str
    vpc: str
    groups: Mapping[str, tuple[SecurityRule, ...]]
    ranges: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceEndpoint:
    """An interface endpoint of a VPC, with private names.

    Attributes:
        service: such as `sts`.
        groups: its security groups, with the rules of each.
    """

    service: str
    groups: Mapping[str, tuple[SecurityRule, ...]]


def blocked(
    client: NetworkSide, server: NetworkSide | None, ports: PortRange, *, brokers: str
) -> Iterator[ChangeFinding]:
    """What keeps connections from a client to brokers from being made.

    Args:
        client: who connects.
        server: the brokers' side; None where nothing is known of it.
        ports: theirs.
        brokers: what people call them.
    """
    if not _admitted(client.groups, server, ports, inbound=False):
        yield _closed(client, f"outbound TCP {ports} to {brokers}")
    if server is not None and not _admitted(server.groups, client, ports, inbound=True):
        yield _closed(server, f"inbound TCP {ports} from {client.name}")


def unserved(
    pollers: NetworkSide, services: Iterable[str], endpoints: Iterable[ServiceEndpoint], *, outward: bool
) -> Iterator[ChangeFinding]:
    """The services of AWS that pollers on demand do not reach.

    Args:
        pollers: in the subnets of an MSK cluster, with its groups.
        services: what they call.
        endpoints: those of the VPC.
        outward: whether every subnet has a way out of the VPC, such as a NAT gateway.
    """
    there = {each.service: each for each in endpoints}
    for service in services:
        if (endpoint := there.get(service)) is None:
            if not outward:
                what = f"{pollers.name} do not reach {service}: no endpoint in {pollers.vpc}, and no route out of it"
                instead = f"make an interface endpoint of {service} with private names there, or a NAT gateway; or use "
                yield _found(pollers, what, f"{instead}`mapping: {{mode: provisioned}}`, which needs neither")
        elif not _admitted(endpoint.groups, pollers, HTTPS_PORTS, inbound=True):
            groups = ", ".join(sorted(endpoint.groups))
            instead = f"let {', '.join(sorted(pollers.groups))} in on TCP 443 at {groups}"
            yield _found(pollers, f"the endpoint of {service} does not let {pollers.name} in", instead)
        elif not _admitted(pollers.groups, None, HTTPS_PORTS, inbound=False):
            yield _closed(pollers, f"outbound TCP {HTTPS_PORTS} to {service}")


def _admitted(
    groups: Mapping[str, tuple[SecurityRule, ...]], peer: NetworkSide | None, ports: PortRange, *, inbound: bool
) -> bool:
    """Whether the groups together admit a peer on all ports. Args: peer: None is one of which nothing is known."""
    rules = [rule for each in groups.values() for rule in each if rule.inbound is inbound and rule.ports.covers(ports)]
    if peer is None:
        return bool(rules)
    if any(rule.peer in peer.groups or rule.peer.startswith("pl-") for rule in rules):
        return True
    allowed = [IPv4Network(rule.peer) for rule in rules if "." in rule.peer]
    wanted = [IPv4Network(each) for each in peer.ranges.values()]
    return bool(allowed) and all(any(each.subnet_of(other) for other in allowed) for each in wanted)


def _closed(side: NetworkSide, wanted: str) -> ChangeFinding:
    groups = ", ".join(sorted(side.groups))
    return _found(side, f"no rule of {groups} ({side.name}) allows {wanted}", f"add that rule to {groups}")


def _found(side: NetworkSide, what: str, instead: str) -> ChangeFinding:
    return ChangeFinding(
        refused=True,
        stack=NETWORK,
        id=min(side.groups, default=side.vpc),
        subject=side.name,
        what=what,
        why="mappings and functions would be made, and would never connect",
        instead=f"{instead}; or accept it, where the rules that are read here are not all",
    )
