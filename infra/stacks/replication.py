"""The replication stack: the forwarder of every flow of one region and account, and mappings of named topics.

The endpoints of their networks come first: pollers look for them as soon as there is a mapping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.constructs.endpoints import Endpoints, ways
from infra.constructs.forwarder import Forwarder
from infra.stacks import PlacedStack

if TYPE_CHECKING:
    from constructs import Construct

    from infra.deployment import Deployment, Location


class ReplicationStack(PlacedStack):
    """The replication stack of one place."""

    def __init__(self, scope: Construct, *, deployment: Deployment, place: Location) -> None:
        """Args: place: where the flows' functions live."""
        super().__init__(
            scope, "replication", deployment=deployment, place=place, description="forwards records of source topics"
        )
        flows = deployment.living_at(place)
        endpoints = [Endpoints(self, way, region=place.region) for way in ways(flows)]
        for flow in flows:
            Forwarder(self, deployment=deployment, flow=flow, after=endpoints)
