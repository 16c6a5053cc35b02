"""Networks as EC2 and MSK have them, and what of a deployment's connections they do not let through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.guard.connections import Connection, connections
from infra.guard.network_rules import (
    EVERY_PORT,
    HTTPS_PORTS,
    NETWORK,
    NetworkSide,
    SecurityRule,
    ServiceEndpoint,
    blocked,
    unserved,
)
from infra.guard.verdict import ChangeFinding
from mirrorless.config.broker_ports import PortRange, is_connection

if TYPE_CHECKING:
    from infra.deployed.lookups import Lookups
    from infra.deployment import Deployment, Location
    from mirrorless.config.cluster import Cluster, Vpc

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
