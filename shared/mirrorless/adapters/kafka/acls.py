"""One cluster's ACLs, read whole and written one by one: failures are reported per binding."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from mirrorless.adapters.kafka.admin import WarmAdmin
from mirrorless.adapters.kafka.client import answer, is_principal_of, seconds_left, translated
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.topics.acls import Acl

BATCH: Final = 1000
"""Bindings in one request; a controller takes at most 10,000 changes at once."""

_DOWN: Final = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001 -- the client's public constants look so
        KafkaError._TRANSPORT,  # noqa: SLF001 -- same
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 -- same
        KafkaError.REQUEST_TIMED_OUT,
    }
)
"""The cluster is silent, and what it did of the request is not known."""

_MAY_LOOK: Final = "allow the flow to DESCRIBE the cluster, or set sync.topic.acls.enabled: false"

_CLUSTER: Final = "CLUSTER"
"""Kafka's word. librdkafka calls the same number `BROKER`, after its use for configs."""


class KafkaAcls:
    """Implements `mirrorless.topics.acls.Acls` on one cluster, by a client that is opened when a round is due."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        # The calls show whether the cluster answers; log_level 0 keeps librdkafka's own lines from the terminal.
        self._admin = WarmAdmin(cluster, f"{flow}|acls", {"log_level": 0})
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"
        self._cluster = cluster

    def is_ours(self, principal: str) -> bool:
        """See `Acls.is_ours`."""
        return is_principal_of(self._cluster, principal)

    def read(self, deadline: Deadline) -> frozenset[Acl] | None:
        """See `Acls.read`."""
        try:
            found = self._all(deadline)
            # confluent-kafka 2.16 answers with an empty list too where the broker answered with an error: not to know
            # that would revoke everything. So it counts only where we may look, and there is something to look at.
            if found or not self._has_authorizer(deadline):
                return found or None
            return self._all(deadline)
        except KafkaException as exc:
            error = exc.args[0]
            if error.code() == KafkaError.SECURITY_DISABLED:
                return None
            self._admin.discard()
            hint = _MAY_LOOK if error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED else ""
            what = f"the cluster did not list its ACLs: {error.str()} ({error.name()})"
            raise Retriable(what, where=self._where, hint=hint) from exc

    def _all(self, deadline: Deadline) -> frozenset[Acl]:
        """Every binding that the client lists."""
        everything = AclBindingFilter(
            ResourceType.ANY,
            None,  # type: ignore[arg-type]  # the client's types forget that a filter may leave out names
            ResourcePatternType.ANY,
            None,  # type: ignore[arg-type]  # same
            None,  # type: ignore[arg-type]  # same
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        future = self._admin.client().describe_acls(everything, request_timeout=seconds_left(deadline))
        return frozenset(map(_acl, answer(future, deadline)))

    def _has_authorizer(self, deadline: Deadline) -> bool:
        """Whether the cluster has an authorizer.

        Raises:
            Retriable: when it has one that does not let us look.
        """
        future = self._admin.client().describe_cluster(
            include_authorized_operations=True, request_timeout=seconds_left(deadline)
        )
        cluster = answer(future, deadline)
        if AclOperation.DESCRIBE not in (cluster.authorized_operations or ()):
            raise Retriable("the cluster does not let us look at its ACLs", where=self._where, hint=_MAY_LOOK)
        resource = ConfigResource(ResourceType.BROKER, str(cluster.nodes[0].id))
        try:
            futures = self._admin.client().describe_configs([resource], request_timeout=seconds_left(deadline))
            authorizer = answer(futures[resource], deadline).get("authorizer.class.name")
        except KafkaException as exc:
            if exc.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                return True  # who turns us away is an authorizer
            raise
        # A service that hides the setting is not a cluster without an authorizer.
        return authorizer is None or authorizer.value != ""

    def create(self, acls: Collection[Acl], deadline: Deadline) -> dict[Acl, str]:
        """See `Acls.create`."""
        failed: dict[Acl, str] = {}
        for batch in _batches(acls):
            bindings = [AclBinding(*_words(acl)) for acl in batch]
            with translated("create ACLs", self._where):
                futures = self._admin.client().create_acls(bindings, request_timeout=seconds_left(deadline))
            failed |= self._refusals(batch, futures.values(), deadline)
        return failed

    def delete(self, acls: Collection[Acl], deadline: Deadline) -> dict[Acl, str]:
        """See `Acls.delete`."""
        failed: dict[Acl, str] = {}
        for batch in _batches(acls):
            filters = [AclBindingFilter(*_words(acl)) for acl in batch]
            with translated("delete ACLs", self._where):
                futures = self._admin.client().delete_acls(filters, request_timeout=seconds_left(deadline))
            failed |= self._refusals(batch, futures.values(), deadline)
        return failed

    def _refusals(self, batch: list[Acl], futures: Iterable[Future[Any]], deadline: Deadline) -> dict[Acl, str]:
        failed = {}
        for acl, future in zip(batch, futures, strict=True):
            try:
                answer(future, deadline)
            except KafkaException as exc:
                error = exc.args[0]
                if error.code() in _DOWN:
                    self._admin.discard()
                    raise Retriable(
                        f"the cluster did not say what became of {acl}: {error}", where=self._where
                    ) from exc
                failed[acl] = _why(error)
        return failed


def _batches(acls: Collection[Acl]) -> Iterable[list[Acl]]:
    ordered = sorted(acls)
    return (ordered[start : start + BATCH] for start in range(0, len(ordered), BATCH))


def _acl(binding: AclBinding) -> Acl:
    return Acl(
        resource=_CLUSTER if binding.restype == ResourceType.BROKER else ResourceType(binding.restype).name,
        pattern=ResourcePatternType(binding.resource_pattern_type).name,
        name=binding.name,
        principal=binding.principal,
        host=binding.host,
        permission=AclPermissionType(binding.permission_type).name,
        operation=AclOperation(binding.operation).name,
    )


def _words(
    acl: Acl,
) -> tuple[ResourceType, str, ResourcePatternType, str, str, AclOperation, AclPermissionType]:
    """A binding as the client's constructors take it, in their order."""
    return (
        ResourceType.BROKER if acl.resource == _CLUSTER else ResourceType[acl.resource],
        acl.name,
        ResourcePatternType[acl.pattern],
        acl.principal,
        acl.host,
        AclOperation[acl.operation],
        AclPermissionType[acl.permission],
    )


def _why(error: KafkaError) -> str:
    hint = ""
    if error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
        hint = ": allow the flow to ALTER the cluster, or set sync.topic.acls.enabled: false"
    return f"{error.str()} ({error.name()}){hint}"
