"""Networks before a deployment: its connections, and whether security groups and routes let them through.

Pollers, functions and jobs reach brokers and AWS. What EC2 and MSK have of their networks is read here, and judged. A
prefix list as a peer counts as any address, since its content is not read. Addresses are those of IPv4.
(https://docs.aws.amazon.com/lambda/latest/dg/with-msk-cluster-network.html)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from infra.deployed import Lookups
from infra.deployment import Location
from infra.guard.verdict import ChangeFinding
from mirrorless.config.broker_ports import PortRange, is_connection, polled_ports, ports_of
from mirrorless.config.cluster import secrets_of
from mirrorless.flow.naming import PULL, STANDBY

if TYPE_CHECKING:
    from infra.deployment import Deployment, FlowDeployment
    from mirrorless.config.cluster import Cluster, Vpc

HTTPS_PORTS: Final = PortRange(443, 443)
EVERY_PORT: Final = PortRange(0, 65_535)

NETWORK: Final = "network"
"""What stands for a stack in these findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Connections of one kind of client to the brokers of one cluster.

    Attributes:
        client: what people call it.
        place: where it is.
        network: its network; None for the pollers of an MSK cluster's mappings, which are in that cluster's.
        cluster: whose brokers it reaches.
        ports: theirs.
        services: of AWS that it reaches from there too.
    """

    client: str
    place: Location
    network: Vpc | None
    cluster: Cluster
    ports: tuple[PortRange, ...]
    services: tuple[str, ...] = ()

    @property
    def brokers(self) -> str:
        """What people call the brokers."""
        return f"the brokers of {self.cluster.alias}"

    @property
    def cluster_place(self) -> Location | None:
        """Where the MSK cluster, or the VPC connection to one, can be looked up; None for any other cluster."""
        if self.cluster.msk_arn is None:
            return None
        return Location(account=str(self.cluster.account), region=str(self.cluster.region))


def connections(deployment: Deployment) -> list[Connection]:
    """All that are known before a deployment, each once: flows share networks."""
    found: dict[tuple[object, ...], Connection] = {}
    for flow in deployment.flows:
        for each in _of_flow(flow, jobs=deployment.settings.spark.enabled):
            found.setdefault((each.client, each.place, each.cluster.alias, each.services), each)
    return list(found.values())


def _of_flow(flow: FlowDeployment, *, jobs: bool) -> Iterator[Connection]:
    source = flow.flow.source
    if flow.flow.mapped_by_arn and flow.flow.has_mappings:
        secret = ("secretsmanager",) if secrets_of(source.authentication) else ()
        # https://docs.aws.amazon.com/lambda/latest/dg/with-msk-cluster-network.html#msk-vpc-privatelink
        services = ("lambda", "sts", *secret) if flow.flow.polled_on_demand else ()
        yield Connection(
            client=f"pollers of {source.alias}",
            place=flow.home,
            network=None,
            cluster=source,
            ports=(polled_ports(source),),
            services=services,
        )
    parts = [part for part in ("forward", PULL, STANDBY) if flow.has(part)]
    for part in [*parts, "jobs"] if jobs else parts:
        network, place = flow.end_of(part).vpc, flow.place_of(part)
        client = f"{'jobs' if part == 'jobs' else 'functions'} in {place.region}"
        for cluster in (source, flow.flow.target) if network else ():
            yield Connection(client=client, place=place, network=network, cluster=cluster, ports=ports_of(cluster))


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


_TO_MADE_ENDPOINTS = "the group of endpoints that is made"

_ALL = "-1"
_TCP = ("tcp", "6", _ALL)


@dataclass(frozen=True, slots=True)
class Networks:
    """Reads networks by the lookup roles of their places. Each method raises botocore's errors."""

    lookups: Lookups

    def of_cluster(self, name: str, cluster: Cluster, place: Location) -> NetworkSide:
        """The brokers of an MSK cluster, or the interfaces of a VPC connection: their subnets and groups."""
        kafka = self.lookups.client("kafka", place)
        if is_connection(cluster):
            found = kafka.describe_vpc_connection(Arn=cluster.msk_arn)
            subnets, groups = found["Subnets"], found["SecurityGroups"]
        else:
            info = kafka.describe_cluster_v2(ClusterArn=cluster.msk_arn)["ClusterInfo"]
            if "Serverless" in info:
                configs = info["Serverless"]["VpcConfigs"]
                subnets = [subnet for each in configs for subnet in each["SubnetIds"]]
                groups = [group for each in configs for group in each.get("SecurityGroupIds", ())]
            else:
                nodes = info["Provisioned"]["BrokerNodeGroupInfo"]
                subnets, groups = nodes["ClientSubnets"], nodes["SecurityGroups"]
        return self.side(name, subnets, groups, place)

    def side(self, name: str, subnets: Iterable[str], groups: Iterable[str], place: Location) -> NetworkSide:
        """Interfaces in these subnets with these security groups."""
        found = self.lookups.client("ec2", place).describe_subnets(SubnetIds=list(subnets))["Subnets"]
        return NetworkSide(
            name=name,
            vpc=found[0]["VpcId"],
            groups=self._rules(groups, place),
            ranges={each["SubnetId"]: each["CidrBlock"] for each in found},
        )

    def endpoints(self, vpc: str, place: Location) -> list[ServiceEndpoint]:
        """The interface endpoints of a VPC that have private names."""
        ec2 = self.lookups.client("ec2", place)
        pages = ec2.get_paginator("describe_vpc_endpoints").paginate(Filters=[{"Name": "vpc-id", "Values": [vpc]}])
        return [
            ServiceEndpoint(
                service=each["ServiceName"].rpartition(".")[2],
                groups=self._rules([group["GroupId"] for group in each["Groups"]], place),
            )
            for page in pages
            for each in page["VpcEndpoints"]
            if each["VpcEndpointType"] == "Interface" and each.get("PrivateDnsEnabled")
        ]

    def lead_outward(self, side: NetworkSide, place: Location) -> bool:
        """Whether each subnet has a route out without public addresses: to anything but an internet gateway."""
        ec2 = self.lookups.client("ec2", place)
        pages = ec2.get_paginator("describe_route_tables").paginate(Filters=[{"Name": "vpc-id", "Values": [side.vpc]}])
        tables = [table for page in pages for table in page["RouteTables"]]
        of_subnet = {each.get("SubnetId"): table for table in tables for each in table["Associations"]}
        main = next((table for table in tables for each in table["Associations"] if each.get("Main")), None)
        return all(_leads_outward(of_subnet.get(subnet, main)) for subnet in side.ranges)

    def _rules(self, groups: Iterable[str], place: Location) -> dict[str, tuple[SecurityRule, ...]]:
        if not (wanted := sorted(set(groups))):
            return {}
        found = self.lookups.client("ec2", place).describe_security_groups(GroupIds=wanted)["SecurityGroups"]
        return {each["GroupId"]: tuple(_rules_of(each)) for each in found}


def network_findings(deployment: Deployment, networks: Networks) -> Iterator[ChangeFinding]:
    """What keeps the deployment's connections from being made; what cannot be read is noted."""
    for each in connections(deployment):
        try:
            yield from _findings(each, deployment, networks)
        except (ClientError, BotoCoreError) as exc:
            what = f"the network to {each.brokers} is not checked: {exc}"
            yield ChangeFinding(refused=False, stack=NETWORK, id=each.client, subject=each.client, what=what)


def _findings(connection: Connection, deployment: Deployment, networks: Networks) -> Iterator[ChangeFinding]:
    at = connection.cluster_place
    server = networks.of_cluster(connection.brokers, connection.cluster, at) if at and at in deployment.places else None
    if connection.network is None:
        if server is None:
            return
        client = replace(server, name=f"the {connection.client}")
    else:
        network = connection.network
        client = networks.side(f"the {connection.client}", network.subnets, network.security_groups, connection.place)
    for ports in connection.ports:
        yield from blocked(client, server, ports, brokers=connection.brokers)
    if connection.services:
        there = networks.endpoints(client.vpc, connection.place)
        there += _to_be_made(connection.cluster.vpc, connection, client, networks)
        outward = networks.lead_outward(client, connection.place)
        yield from unserved(client, connection.services, there, outward=outward)


def _to_be_made(
    vpc: Vpc | None, connection: Connection, pollers: NetworkSide, networks: Networks
) -> Iterator[ServiceEndpoint]:
    """The endpoints that the deployment itself makes in the pollers' VPC."""
    if vpc is None or not vpc.endpoints or vpc.id != pollers.vpc:
        return
    groups = dict(networks.side("", vpc.subnets, vpc.security_groups, connection.place).groups)
    groups[_TO_MADE_ENDPOINTS] = tuple(
        SecurityRule(inbound=True, ports=HTTPS_PORTS, peer=group) for group in connection.cluster.msk_groups
    )
    yield from (ServiceEndpoint(service=service, groups=groups) for service in connection.services)


def _rules_of(group: Mapping[str, Any]) -> Iterator[SecurityRule]:
    for key, inbound in (("IpPermissions", True), ("IpPermissionsEgress", False)):
        for each in group[key]:
            if each["IpProtocol"] not in _TCP:
                continue
            whole = each["IpProtocol"] == _ALL
            ports = EVERY_PORT if whole else PortRange(each["FromPort"], each["ToPort"])
            peers = [pair["GroupId"] for pair in each.get("UserIdGroupPairs", ())]
            peers += [range_["CidrIp"] for range_ in each.get("IpRanges", ())]
            peers += [each_list["PrefixListId"] for each_list in each.get("PrefixListIds", ())]
            yield from (SecurityRule(inbound=inbound, ports=ports, peer=peer) for peer in peers)


def _leads_outward(table: Mapping[str, Any] | None) -> bool:
    routes = table["Routes"] if table else ()
    return any(
        each.get("DestinationCidrBlock") == "0.0.0.0/0" and not str(each.get("GatewayId", "")).startswith("igw-")
        for each in routes
    )
