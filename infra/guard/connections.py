"""Connections that a deployment makes, by the networks that they go between: plain values, before anything is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from infra.deployment import Location
from mirrorless.config.broker_ports import PortRange, polled_ports, ports_of
from mirrorless.config.cluster import secrets_of
from mirrorless.naming import PULL, STANDBY

if TYPE_CHECKING:
    from infra.deployment import Deployment, FlowDeployment
    from mirrorless.config.cluster import Cluster, Vpc


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
    parts = [("forward", flow.flow.home.vpc)]
    parts += [(PULL, flow.flow.pull_home.vpc)] if flow.has(PULL) else []
    parts += [(STANDBY, flow.flow.target.vpc)] if flow.has(STANDBY) else []
    parts += [("jobs", flow.flow.target.vpc)] if jobs else []
    for part, network in parts:
        for cluster in (source, flow.flow.target) if network else ():
            place = flow.place_of(part)
            client = f"{'jobs' if part == 'jobs' else 'functions'} in {place.region}"
            yield Connection(client=client, place=place, network=network, cluster=cluster, ports=ports_of(cluster))
