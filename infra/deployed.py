"""What AWS has before a deployment: stacks, applications and networks, and what of them is in the way.

Of networks: as EC2 and MSK have them, and which of a deployment's connections they do not let through.

Of stacks: those that the configuration has no longer, wherever they are, and their removal. The CDK's command line
compares each stack of an app with what is deployed, and never looks for more. So a stack that leaves the app stays: the
last flow at a home, the last scheduled topic, a standby, Spark, a part that moved to another region or account. It
would go on replicating. They are looked for in every place that the file names, even for a flow that is disabled, and
that a stack's tags name: a deployment writes all of its places on each of its stacks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import boto3
from botocore.exceptions import BotoCoreError, ClientError, WaiterError

from infra.deployment import PLACES_TAG, Location
from infra.guard.network_rules import (
    EVERY_PORT,
    HTTPS_PORTS,
    NETWORK,
    Connection,
    NetworkSide,
    SecurityRule,
    ServiceEndpoint,
    blocked,
    connections,
    unserved,
)
from infra.guard.verdict import ApplicationState, ChangeFinding
from mirrorless.config.broker_ports import PortRange, is_connection
from mirrorless.errors import Retriable

if TYPE_CHECKING:
    from infra.deployment import Deployment
    from mirrorless.config.cluster import Cluster, Vpc

QUALIFIER: Final = "hnb659fds"
"""Of the roles of `cdk bootstrap`."""

LOOKUP: Final = "lookup"
DEPLOY: Final = "deploy"
EXECUTION: Final = "cfn-exec"
"""The roles of `cdk bootstrap`: that which reads, that which deploys, and CloudFormation's own."""


@dataclass(slots=True)
class Lookups:
    """Reads what is deployed. Each place's role is assumed once."""

    _sessions: dict[tuple[Location, str], Any] = field(default_factory=dict)

    def client(self, service: str, place: Location, *, role: str = LOOKUP) -> Any:
        """A client of a service in a place; raises botocore's errors where its role cannot be assumed."""
        if (place, role) not in self._sessions:
            self._sessions[place, role] = _session(place, role)
        return self._sessions[place, role].client(service, region_name=place.region)

    def stacks(self, place: Location) -> Sequence[DeployedStack]:
        """Every stack in a place, whosesoever.

        Raises:
            Retriable: CloudFormation or STS does not answer, or refuses.
        """
        try:
            pages = self.client("cloudformation", place).get_paginator("describe_stacks").paginate()
            found = [each for page in pages for each in page["Stacks"]]
        except (ClientError, BotoCoreError) as exc:
            raise unread("stacks", place, exc) from exc
        return [
            DeployedStack(
                name=each["StackName"],
                place=place,
                description=each.get("Description", ""),
                tags=tuple((tag["Key"], tag["Value"]) for tag in each.get("Tags", ())),
                protected=each.get("EnableTerminationProtection", False),
            )
            for each in found
            if each["StackStatus"] != "DELETE_COMPLETE"
        ]

    def destroy(self, stack: DeployedStack) -> None:
        """Delete a stack by the deploy role and wait until it is gone; what it retains stays.

        Raises:
            Retriable: it cannot be deleted, or not in time.
        """
        try:
            client = self.client("cloudformation", stack.place, role=DEPLOY)
            if stack.protected:
                client.update_termination_protection(StackName=stack.name, EnableTerminationProtection=False)
            client.delete_stack(StackName=stack.name, RoleARN=_role(stack.place, EXECUTION))
            client.get_waiter("stack_delete_complete").wait(StackName=stack.name)
        except (ClientError, BotoCoreError, WaiterError) as exc:
            hint = f"read the events of the stack in the console of {stack.place}, correct it, and deploy again"
            raise Retriable(f"it was not deleted: {exc}", where=f"stack {stack.name}", hint=hint) from exc

    def template(self, stack: str, place: Location) -> Mapping[str, Any] | None:
        """The template of a stack as CloudFormation has it; None where there is no such stack.

        Raises:
            Retriable: CloudFormation or STS does not answer, or refuses.
        """
        try:
            answer = self.client("cloudformation", place).get_template(StackName=stack)
        except ClientError as exc:
            if exc.response["Error"]["Code"] == "ValidationError" and "does not exist" in str(exc):
                return None
            raise unread(stack, place, exc) from exc
        except BotoCoreError as exc:
            raise unread(stack, place, exc) from exc
        body: Mapping[str, Any] = answer["TemplateBody"]
        return body

    def application(self, name: str, place: Location) -> ApplicationState | None:
        """The state of an EMR Serverless application; None where there is none of this name.

        Raises:
            Retriable: EMR Serverless or STS does not answer, or refuses.
        """
        try:
            pages = self.client("emr-serverless", place).get_paginator("list_applications").paginate()
            found = [each for page in pages for each in page["applications"] if each.get("name") == name]
        except (ClientError, BotoCoreError) as exc:
            raise unread(name, place, exc) from exc
        alive = [each for each in found if each["state"] != "TERMINATED"]
        return ApplicationState(id=alive[0]["id"], state=alive[0]["state"], region=place.region) if alive else None


def _role(place: Location, role: str) -> str:
    return place.iam_arn(f"role/cdk-{QUALIFIER}-{role}-role-{place.account}-{place.region}")


def _session(place: Location, role: str) -> Any:
    sts = boto3.client("sts", region_name=place.region)
    lent = sts.assume_role(RoleArn=_role(place, role), RoleSessionName="mirrorless-deploy")
    return boto3.Session(
        aws_access_key_id=lent["Credentials"]["AccessKeyId"],
        aws_secret_access_key=lent["Credentials"]["SecretAccessKey"],
        aws_session_token=lent["Credentials"]["SessionToken"],
        region_name=place.region,
    )


def unread(what: str, place: Location, exc: Exception) -> Retriable:
    """The error of something that AWS does not show."""
    hint = f"take credentials that may assume the lookup role of `cdk bootstrap` in {place}, as deploy.md says"
    return Retriable(f"what is deployed cannot be read: {exc}", where=f"{what} in {place}", hint=hint)


DESCRIBED: Final = "Mirrorless: "
"""How the description of each of our stacks begins."""

REMOVED_IN_ORDER: Final = (
    ("standby", "control"),  # nothing is found or started any more, and the mappings of found topics go
    ("pull", "monitoring"),
    ("mappings", "replication"),
    ("spark",),
    ("state",),  # its tables and its bucket are retained
)
"""Kinds of stacks: each rests on those behind it."""

_KINDS: Final = "|".join(kind + (r"-\d+" if kind == "mappings" else "") for kinds in REMOVED_IN_ORDER for kind in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedStack:
    """A stack as CloudFormation lists it.

    Attributes:
        name: its name in its place.
        place: where it is.
        description: for the console.
        tags: of the stack itself.
        protected: whether it refuses to be deleted.
    """

    name: str
    place: Location
    description: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    protected: bool = False

    @property
    def places(self) -> frozenset[Location]:
        """The places of its deployment that its tags name."""
        named = " ".join(value for name, value in self.tags if name.startswith(PLACES_TAG)).split()
        return frozenset(Location(*place.split("/", 1)) for place in named if "/" in place)

    def kind(self, deployment: str) -> str | None:
        """Its kind, without a number; None where it is no stack of this deployment."""
        found = re.fullmatch(f"{re.escape(deployment)}-({_KINDS})-{self.place.region}", self.name)
        if found is None or not self.description.startswith(DESCRIBED):
            return None
        return re.sub(r"-\d+$", "", found[1])


class StackLookups(Protocol):
    """The stacks that AWS has."""

    def stacks(self, place: Location) -> Sequence[DeployedStack]:
        """Every stack in a place; raises Retriable where they cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftStacks:
    """What a look at all places has found.

    Attributes:
        stacks: those that have left, in the order in which they are removed.
        unread: the reason for each place that could not be looked at, and that nothing is deployed to.
    """

    stacks: tuple[DeployedStack, ...]
    unread: tuple[tuple[Location, str], ...]

    def findings(self) -> Iterator[ChangeFinding]:
        """Places that nobody has looked at: one may hold a stack that goes on replicating."""
        for place, why in self.unread:
            yield ChangeFinding(
                refused=True,
                stack=str(place),
                id=str(place),
                subject=f"place {place}",
                what="cannot be looked at, and stacks of this deployment may be left in it",
                why=f"what is left there goes on replicating. {why}",
                instead="take credentials that may assume its lookup role; if nothing was ever deployed there, accept "
                "it by its name",
            )


def left_stacks(deployment: Deployment, present: Collection[tuple[str, Location]], lookups: StackLookups) -> LeftStacks:
    """Look for the stacks of a deployment that its app has no longer.

    Args:
        deployment: what the file says now.
        present: the name and the place of each stack of the app.
        lookups: what AWS has.

    Raises:
        Retriable: a place of the deployment cannot be read.
    """
    named = (
        Location(account=cluster.account, region=cluster.region)
        for cluster in deployment.configuration.clusters.values()
        if cluster.account and cluster.region
    )
    waiting = {*deployment.places, *named}
    seen: set[Location] = set()
    left: list[DeployedStack] = []
    unread: list[tuple[Location, str]] = []
    while waiting:
        place = min(waiting)
        seen.add(place)
        try:
            ours = [each for each in lookups.stacks(place) if each.kind(deployment.settings.name)]
        except Retriable as error:
            if place in deployment.places:
                raise
            unread.append((place, str(error)))
            ours = []
        left += [each for each in ours if (each.name, place) not in present]
        waiting = waiting.union(*(each.places for each in ours)) - seen
    return LeftStacks(
        stacks=tuple(sorted(left, key=lambda each: (_rank(each, deployment.settings.name), each.place, each.name))),
        unread=tuple(unread),
    )


def _rank(stack: DeployedStack, deployment: str) -> int:
    kind = stack.kind(deployment)
    return next(rank for rank, kinds in enumerate(REMOVED_IN_ORDER) if kind in kinds)


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
