"""The control plane of event source mappings: create, update, delete, list.

The requests and answers are Lambda's own, by the API's names; calls answer at once and work goes on behind, as with
HTTP 202. What only a lab can offer (waiting, watching, breaking) comes after `stop`.
"""

from __future__ import annotations

import threading
import time
import uuid as uuids
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer

from lab.esm.access import check_access, client_access
from lab.esm.behaviour import LabBehaviour
from lab.esm.mapping import Mapping
from lab.esm.mapping_api import (
    FunctionName,
    ResourceConflictError,
    ResourceInUseError,
    ResourceNotFoundError,
    check_poller_group,
    consumer_group,
    settings_of_create,
    settings_of_update,
)
from lab.esm.poller import ASSIGNOR
from lab.waiting import wait_for

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Callable
    from pathlib import Path

    from lab.esm.access import ReadSecret
    from lab.esm.mapping_api import Settings
    from lab.esm.mapping_log import Fault
    from lab.functions.invocation import Invoker

_REBALANCE_S = 20.0
_LOOK_EVERY_S = 0.02


class EventSourceMappings:
    """Lambda's event source mappings for Kafka, over real consumer groups.

    Args:
        functions: invokers by function name; the lab has one version of each, whichever alias is named.
        folder: where each mapping's log `<UUID>.jsonl` is written.
        behaviour: what AWS does not document.
        read_secret: the text of a secret by its ARN or name; left out, all clusters are the lab's own, in plaintext.
    """

    def __init__(
        self,
        *,
        functions: collections.abc.Mapping[str, Invoker],
        folder: Path,
        behaviour: LabBehaviour | None = None,
        read_secret: ReadSecret | None = None,
    ) -> None:
        self._functions = functions
        self._folder = folder
        self._behaviour = behaviour or LabBehaviour()
        self._read_secret = read_secret
        self._mappings: dict[str, Mapping] = {}
        self._lock = threading.Lock()

    def create(self, **request: Any) -> dict[str, Any]:
        """CreateEventSourceMapping: the configuration, in state Creating.

        Raises:
            ValidationError: a field breaks the API's model (400).
            InvalidParameterValueError: fields contradict each other or the mapping's kind, or the poller group
                is full (400).
            ResourceNotFoundError: no such function or cluster (404).
            ResourceConflictError: the consumer group is mapped to this event source already (409).
        """
        settings = settings_of_create(request)
        uuid = str(uuids.uuid4())
        group_id = consumer_group(settings) or uuid
        bootstrap = ",".join(settings["SelfManagedEventSource"]["Endpoints"]["KAFKA_BOOTSTRAP_SERVERS"])
        access = self._access(settings)
        function = self._function(settings)
        with self._lock:
            for other in self._mappings.values():
                if other.identity == (bootstrap, group_id):
                    raise ResourceConflictError(
                        f'An event source mapping with event source ("{bootstrap}"), consumerGroupId ("{group_id}") '
                        f"already exists. Please update or delete the existing mapping with UUID {other.uuid}"
                    )
            check_poller_group(settings, (other.settings for other in self._mappings.values()))
            mapping = Mapping(
                uuid=uuid,
                settings=settings,
                bootstrap=bootstrap,
                access=access,
                group_id=group_id,
                function=function,
                folder=self._folder,
                behaviour=self._behaviour,
            )
            self._mappings[uuid] = mapping
        return mapping.begin("Creating", delay_s=self._behaviour.creation_delay_s)

    def update(self, uuid: str, /, **request: Any) -> dict[str, Any]:
        """UpdateEventSourceMapping: polling stops, and starts again with the new settings from what is committed.

        Raises:
            ResourceInUseError: the mapping is being created, updated or deleted (400).
            ResourceNotFoundError: no such mapping or function (404).
            ValidationError: a field breaks the API's model (400).
            InvalidParameterValueError: a field can be set at creation only, fields contradict each other, or the poller
                group is full (400).
        """
        with self._lock:
            mapping = self._settled(uuid)
            settings = settings_of_update(mapping.settings, {"UUID": uuid, **request})
            check_poller_group(settings, (other.settings for other in self._mappings.values() if other is not mapping))
            mapping.access = self._access(settings)
            mapping.function = self._function(settings)
            before, mapping.settings = mapping.settings["Enabled"], settings
            state = "Updating" if before == settings["Enabled"] else "Disabling" if before else "Enabling"
            return mapping.begin(state, delay_s=self._behaviour.update_delay_s)

    def delete(self, uuid: str) -> dict[str, Any]:
        """DeleteEventSourceMapping: state Deleting until the pollers have left the group, then it is gone.

        Raises:
            ResourceInUseError: the mapping is being created, updated or deleted (400).
            ResourceNotFoundError: no such mapping (404).
        """
        with self._lock:
            mapping = self._settled(uuid)
            return mapping.end(then=lambda: self._remove(uuid))

    def get(self, uuid: str) -> dict[str, Any]:
        """GetEventSourceMapping.

        Raises:
            ResourceNotFoundError: no such mapping (404).
        """
        return self._mapping(uuid).configuration()

    def list(self) -> list[dict[str, Any]]:
        """ListEventSourceMappings, unpaged."""
        with self._lock:
            mappings = [*self._mappings.values()]
        return [mapping.configuration() for mapping in mappings]

    def tags(self, uuid: str) -> dict[str, str]:
        """ListTags, of a mapping.

        Raises:
            ResourceNotFoundError: no such mapping (404).
        """
        return dict(self._mapping(uuid).settings.get("Tags", {}))

    def tag(self, uuid: str, tags: collections.abc.Mapping[str, str]) -> None:
        """TagResource, of a mapping; polling goes on undisturbed.

        Raises:
            ResourceNotFoundError: no such mapping (404).
        """
        with self._lock:
            mapping = self._known(uuid)
            mapping.settings = {**mapping.settings, "Tags": {**mapping.settings.get("Tags", {}), **tags}}

    def untag(self, uuid: str, keys: collections.abc.Iterable[str]) -> None:
        """UntagResource, of a mapping.

        Raises:
            ResourceNotFoundError: no such mapping (404).
        """
        gone = set(keys)
        with self._lock:
            mapping = self._known(uuid)
            left = {key: value for key, value in mapping.settings.get("Tags", {}).items() if key not in gone}
            mapping.settings = {**mapping.settings, "Tags": left}

    def stop(self) -> None:
        """Stop all pollers and wait for them. Consumer groups and committed offsets stay on the clusters."""
        with self._lock:
            mappings = [*self._mappings.values()]
            self._mappings.clear()
        for mapping in mappings:
            mapping.begin_stop()
        for mapping in mappings:
            mapping.close()

    def wait_enabled(self, uuid: str, *, timeout_s: float = 30.0) -> None:
        """Wait until the pollers have every partition of the topic, and know where to begin.

        Raises:
            TimeoutError: with what is missing.
        """
        mapping = self._mapping(uuid)
        if wait_for(lambda: not mapping.polls_everything(), seconds=timeout_s, every=_LOOK_EVERY_S):
            found = f"state {mapping.state}, {mapping.log.last_result}, see {mapping.log.path}"
            raise TimeoutError(f"mapping {uuid} does not poll all partitions after {timeout_s} s: {found}")

    def lag(self, uuid: str) -> dict[int, int]:
        """Offsets between what is committed and the end of each partition; 0 means that nothing is left to do.

        Control markers behind the last record do not count once the poller has read past them.
        """
        return self._mapping(uuid).lag()

    def committed(self, uuid: str) -> dict[int, int]:
        """The group's committed offsets, from the cluster; a partition without one is absent."""
        return self._mapping(uuid).committed()

    def metrics(self, uuid: str) -> dict[str, int]:
        """Counters by AWS's metric names: Polled, Invoked, FailedInvoke, Dropped, Committed, CommitError and so on."""
        return self._mapping(uuid).log.counts()

    def hold(self, uuid: str) -> None:
        """Invoke no new batch until `release`; what is under way goes on."""
        self._mapping(uuid).faults.held.set()

    def release(self, uuid: str) -> None:
        """End `hold`."""
        self._mapping(uuid).faults.held.clear()

    def lose_ack(self, uuid: str) -> None:
        """Let the poller crash between the next success and its commit: a new session redelivers from the commits."""
        self._arm(uuid, "lose_ack")

    def duplicate_batch(self, uuid: str, *, concurrently: bool = False) -> None:
        """Invoke the next batch twice: one after the other, or both at the same time."""
        self._arm(uuid, "duplicate_concurrently" if concurrently else "duplicate")

    def commit_failure(self, uuid: str) -> None:
        """Let the next commit fail; the one after it covers its positions."""
        self._arm(uuid, "commit_failure")

    def rebalance(self, uuid: str) -> None:
        """Let a stranger join the consumer group, and leave it again: invocations under way become zombies.

        Raises:
            TimeoutError: the group gave the stranger no assignment.
        """
        mapping = self._mapping(uuid)
        joined = threading.Event()
        stranger = Consumer(
            {
                **mapping.access(),
                "bootstrap.servers": mapping.bootstrap,
                "group.id": mapping.group_id,
                "client.id": "stranger",
                "enable.auto.commit": False,
                "partition.assignment.strategy": ASSIGNOR,
                "session.timeout.ms": int(self._behaviour.session_timeout_s * 1000),
                "heartbeat.interval.ms": 250,
            },
            logger=mapping.log.client_log,
        )

        stranger.subscribe([mapping.settings["Topics"][0]], on_assign=lambda *_: joined.set())
        deadline = time.monotonic() + _REBALANCE_S
        try:
            while not joined.is_set():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"group {mapping.group_id} did not rebalance within {_REBALANCE_S} s")
                stranger.poll(_LOOK_EVERY_S)
        finally:
            stranger.close()

    def _arm(self, uuid: str, fault: Fault) -> None:
        self._mapping(uuid).faults.arm(fault)

    def _mapping(self, uuid: str) -> Mapping:
        with self._lock:
            return self._known(uuid)

    def _known(self, uuid: str) -> Mapping:
        try:
            return self._mappings[uuid]
        except KeyError as exc:
            raise ResourceNotFoundError(f"The resource you requested does not exist: mapping {uuid}") from exc

    def _settled(self, uuid: str) -> Mapping:
        mapping = self._known(uuid)
        if mapping.state not in ("Enabled", "Disabled"):
            raise ResourceInUseError(f"Cannot change the event source mapping {uuid} because it is {mapping.state}")
        return mapping

    def _remove(self, uuid: str) -> None:
        with self._lock:
            self._mappings.pop(uuid, None)

    def _function(self, settings: Settings) -> tuple[FunctionName, Invoker]:
        named = FunctionName.of(settings["FunctionName"])
        if named.name not in self._functions:
            raise ResourceNotFoundError(f"Function not found: {settings['FunctionName']}")
        return named, self._functions[named.name]

    def _access(self, settings: Settings) -> Callable[[], dict[str, Any]]:
        """The authentication of a mapping's clients; it is checked now, with its secrets."""
        check_access(settings)
        client_access(settings, self._read_secret)
        return lambda: client_access(settings, self._read_secret)
