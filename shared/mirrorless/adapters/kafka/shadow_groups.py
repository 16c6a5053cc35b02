"""The consumer groups of a drill, on the target: like any others, and deleted afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from mirrorless.adapters.kafka.admin import WarmAdmin, first_cause
from mirrorless.adapters.kafka.groups import CHUNK, KafkaGroups
from mirrorless.errors import Retriable
from mirrorless.ports.kafka import Deadline
from mirrorless.settings import ClusterSettings


class KafkaShadowGroups(KafkaGroups):
    """Implements `mirrorless.failover.effects.ShadowGroups`."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what the clients call themselves in the brokers' logs."""
        super().__init__(cluster, flow=flow)
        self._deleting = WarmAdmin(cluster, f"{flow}|drill")

    def delete(self, groups: Iterable[str], deadline: Deadline) -> None:
        """See `ShadowGroups.delete`."""

        def call(client: AdminClient, keys: list[str], seconds: float) -> Mapping[str, Future[Any]]:
            return client.delete_consumer_groups(keys, request_timeout=seconds)

        _, failures = self._deleting.call_each(list(groups), call, deadline, chunk=CHUNK)
        failed = {name: error for name, error in failures.items() if error.code() != KafkaError.GROUP_ID_NOT_FOUND}
        if failed:
            raise Retriable(
                f"{len(failed)} groups of the drill were not deleted: {first_cause(failed.values())}",
                where=self._where,
                hint="the operator needs DELETE on groups `mirrorless.drill.*`; then run the same command again",
            )
