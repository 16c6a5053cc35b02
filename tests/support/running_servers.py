"""Servers that outlive a test session: every mutant is tested in a process of its own, and none starts a broker."""

from __future__ import annotations

import json
import os
from typing import Any, Final

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster

ADDRESSES: Final = "MIRRORLESS_TEST_SERVERS"
"""The variable that names them: JSON of `bootstrap` by alias, and `dynamodb`, an endpoint."""


def addresses(clusters: tuple[KafkaCluster, KafkaCluster], dynamodb: DynamoDbLocal) -> str:
    """The value of the variable for servers that run."""
    return json.dumps(
        {"clusters": {cluster.alias: cluster.bootstrap for cluster in clusters}, "dynamodb": dynamodb.endpoint}
    )


def running_clusters() -> tuple[KafkaCluster, KafkaCluster] | None:
    """Source and target of the variable; None where it is not set."""
    if ADDRESSES not in os.environ:
        return None
    source, target = (RunningCluster(*named) for named in json.loads(os.environ[ADDRESSES])["clusters"].items())
    return source, target


def running_dynamodb() -> DynamoDbLocal | None:
    """DynamoDB Local of the variable; None where it is not set."""
    return RunningDynamoDb(json.loads(os.environ[ADDRESSES])["dynamodb"]) if ADDRESSES in os.environ else None


class RunningCluster(KafkaCluster):
    """A cluster of another process, which alone starts and stops it."""

    def __init__(self, alias: str, bootstrap: str) -> None:
        """Nothing is started."""
        self.alias, self.bootstrap, self.direct = alias, bootstrap, bootstrap

    def start(self) -> None:
        """Nothing: it runs."""


class RunningDynamoDb(DynamoDbLocal):
    """A DynamoDB Local of another process, which alone starts and stops it."""

    def __init__(self, endpoint: str) -> None:
        """Nothing is started."""
        self.endpoint = endpoint
        self._own_client: Any = None

    @property
    def _address(self) -> str:
        return self.endpoint

    def start(self) -> None:
        """Nothing: it runs."""
