"""Rules on MSK Serverless, which is known by the id of its ARN, or by its bootstrap servers.

(https://docs.aws.amazon.com/msk/latest/developerguide/serverless.html)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from mirrorless.config.cluster import Iam
from mirrorless.config.messages import Problem

if TYPE_CHECKING:
    from mirrorless.config.cluster import Cluster
    from mirrorless.config.flow import Flow
    from mirrorless.config.rules import FlowPaths

REPLICAS: Final = (-1, 3)
"""Of each topic; -1 leaves them to the cluster."""

_ID: Final = re.compile(r":cluster/.*-s\d+$")
_HOST: Final = ".kafka-serverless."

_FACTORS: Final = {
    "heartbeats.topic.replication.factor": "heartbeats_topic_replication_factor",
    "checkpoints.topic.replication.factor": "checkpoints_topic_replication_factor",
    "offset-syncs.topic.replication.factor": "offset_syncs_topic_replication_factor",
}
"""Keys of topics that may be made on either end, and their settings."""


def is_serverless(cluster: Cluster) -> bool:
    """Whether a cluster is one of MSK Serverless."""
    return bool(_ID.search(cluster.msk_arn or "")) or any(_HOST in server for server in cluster.bootstrap)


def problems_with_serverless(cluster: Cluster) -> Iterator[Problem]:
    """Find another authentication than the only one that MSK Serverless has."""
    if is_serverless(cluster) and not isinstance(cluster.authentication, Iam):
        what = f"MSK Serverless has IAM only, and this is `{cluster.authentication.type}`"
        path = ("clusters", cluster.alias, "authentication", "type")
        yield Problem(path=path, what=what, hint="write `authentication: {type: iam}`")


def problems_with_replicas(flow: Flow, paths: FlowPaths) -> Iterator[Problem]:
    """Find numbers of replicas that MSK Serverless refuses: topics would not be created."""
    settings = flow.settings
    wanted = {"replication.factor": settings.replication_factor} if is_serverless(flow.target) else {}
    if is_serverless(flow.source) or is_serverless(flow.target):
        wanted |= {key: getattr(settings, name) for key, name in _FACTORS.items()}
    for key, factor in wanted.items():
        if factor not in REPLICAS:
            what = f"MSK Serverless keeps three replicas, and refuses to create topics with {factor}"
            yield Problem(
                path=paths.of(flow, key), what=what, hint=f"write `{key}: -1`, which leaves it to the cluster"
            )
