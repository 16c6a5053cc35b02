"""One cluster's consumer groups: classic ones and those of KIP-848.

Librdkafka 2.16 has two faults in its requests to a group's coordinator, and both kill the process. One is met where a
request times out, and `coordinators` has none such. The other is met where a coordinator has moved, and is worked
around below; what is left of it costs one invocation, which the schedule makes up for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from mirrorless.adapters.kafka.admin import DENIED, MOVING, SETTLE_SECONDS, WarmAdmin, first_cause
from mirrorless.adapters.kafka.client import MARGIN_SECONDS, answer, seconds_left
from mirrorless.adapters.kafka.coordinators import altered, deleted, described, offsets_of
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import ClusterSettings
from mirrorless.ports.kafka import GroupIsActive, GroupState, OffsetAndMetadata, TopicPartition

CHUNK: Final = 100
"""Groups under way at a time. The client reads the offsets of one group in one request."""

STABLE_SECONDS: Final = 1.0
"""How long a transaction that commits offsets is waited for; an application's takes some milliseconds."""

_ACTIVE: Final = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,  # what brokers answer, for both kinds of group
        KafkaError.NON_EMPTY_GROUP,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
    }
)
"""Refusals that mean: only a member may commit."""

_RIGHTS = "let this function Describe the cluster's topics and groups, and Read those that it syncs"


class KafkaGroups:
    """Implements `mirrorless.ports.kafka.Groups`, with one warm admin client."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what the client calls itself in the brokers' logs."""
        self._admin = WarmAdmin(cluster, f"{flow}|groups")
        self._where = f"{flow} {cluster.alias} at {cluster.bootstrap}"

    def names(self, deadline: Deadline) -> list[str]:
        """See `Groups.names`. The client itself leaves out what is not of the consumer protocol."""
        return sorted(self._listed(deadline))

    def states(self, groups: Iterable[str], deadline: Deadline) -> dict[str, GroupState]:
        """See `Groups.states`. A group that cannot be described counts as active: nothing is committed for it."""
        wanted = list(dict.fromkeys(groups))
        if not wanted:
            return {}
        listed = self._listed(deadline)
        # No broker lists the groups of a moving coordinator, so each one that seems absent is described by name.
        unlisted = [group for group in wanted if listed.get(group, "absent") == "absent"]

        def call(client: AdminClient, keys: list[str], _: float) -> Mapping[str, Future[Any]]:
            return described(client, keys)

        answers, failures = self._admin.call_each(unlisted, call, deadline, chunk=CHUNK)
        named = {group: _state(each.state) for group, each in answers.items()}
        for group, error in failures.items():
            named[group] = "absent" if error.code() == KafkaError.GROUP_ID_NOT_FOUND else "active"
        return {group: named[group] if group in named else listed[group] for group in wanted}

    def static(self, groups: Iterable[str], deadline: Deadline) -> set[str]:
        """Those of some groups that have members, all of them static: brokers keep one that was closed."""

        def call(client: AdminClient, keys: list[str], _: float) -> Mapping[str, Future[Any]]:
            return described(client, keys)

        answers, _ = self._admin.call_each(groups, call, deadline, chunk=CHUNK)
        return {
            group
            for group, each in answers.items()
            if each.members and all(member.group_instance_id for member in each.members)
        }

    def committed(
        self, groups: Iterable[str], deadline: Deadline
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """See `Groups.committed`.

        Offsets that belong to an open transaction are waited for, up to `STABLE_SECONDS`. A group that still has such
        offsets then is absent from the answer: without them it would look as if it had not been there.
        """
        found, unstable = self._committed(groups, deadline)
        give_up = time.monotonic() + STABLE_SECONDS
        while unstable and time.monotonic() < give_up and deadline() > MARGIN_SECONDS:
            time.sleep(0.05)  # between two looks at a condition with a deadline
            more, unstable = self._committed(unstable, deadline)
            found |= more
        return found

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: Deadline) -> None:
        """See `Groups.commit`.

        Raises:
            GroupIsActive: it has members; the broker refused everything.
            Retriable: some places were refused, and those that are not named were committed; or the outcome is unknown.
        """
        if not offsets:
            return
        where = f"{self._where} group {group}"
        wanted = [ClientPartition(*place, to.offset, to.metadata) for place, to in sorted(offsets.items())]
        answers = self._alter(group, wanted, where, deadline)
        begun = deadline()
        # A moving coordinator refuses everything for certain, so a repeated request decides nothing anew.
        while {at.error.code() for at in answers if at.error is not None} & MOVING:
            self._admin.discard()
            if deadline() < max(begun - SETTLE_SECONDS, MARGIN_SECONDS):
                break
            time.sleep(0.1)  # between two looks at a condition with a deadline
            answers = self._alter(group, wanted, where, deadline)
        refused = {f"{at.topic}-{at.partition}": at.error for at in answers if at.error is not None}
        for error in refused.values():
            if error.code() in _ACTIVE:  # other places may have other errors; none was committed
                raise _refused(error, "its offsets", where)
        for error in refused.values():
            raise _refused(error, ", ".join(list(refused)[:5]) + (", …" if len(refused) > 5 else ""), where)  # noqa: PLR2004 -- a sentence's worth

    def _listed(self, deadline: Deadline) -> dict[str, GroupState]:
        """Every group that some broker lists, with its state: one request per broker, whatever there is."""

        def call(client: AdminClient, keys: list[str], seconds: float) -> Mapping[str, Future[Any]]:
            listing = client.list_consumer_groups(request_timeout=seconds)
            # A broker that is not heard has groups, too, and they must not look as if they were gone. The client
            # documents exceptions here, and gives what they would carry.
            for error in answer(listing, lambda: seconds).errors:
                raise error if isinstance(error, KafkaException) else KafkaException(error)
            return dict.fromkeys(keys, listing)

        answers, failures = self._admin.call_each([self._where], call, deadline, chunk=1)
        if failures:
            raise Retriable(f"the cluster did not list its groups: {first_cause(failures.values())}", where=self._where)
        return {group.group_id: _state(group.state) for found in answers.values() for group in found.valid}

    def _alter(
        self, group: str, wanted: list[ClientPartition], where: str, deadline: Deadline
    ) -> list[ClientPartition]:
        """The places, each with the broker's error if it has one."""
        try:
            seconds_left(deadline)  # nothing is begun where no time is left
            done = altered(self._admin.client(), group, wanted)
            places: list[ClientPartition] = answer(done, deadline).topic_partitions
        except KafkaException as exc:
            if exc.args[0].code() not in _ACTIVE:
                self._admin.discard()
            raise _refused(exc.args[0], "its offsets", where) from exc
        return places

    def _committed(
        self, groups: Iterable[str], deadline: Deadline
    ) -> tuple[dict[str, dict[TopicPartition, OffsetAndMetadata]], list[str]]:
        """What the groups committed, and the groups with offsets in an open transaction."""

        def call(client: AdminClient, keys: list[str], _: float) -> Mapping[str, Future[Any]]:
            return {key: self._offsets_of(client, key, each, deadline) for key, each in described(client, keys).items()}

        answers, failures = self._admin.call_each(groups, call, deadline, chunk=CHUNK)
        self._raise_if_silent(answers, failures, "list committed offsets")
        unknown = [group for group, error in failures.items() if error.code() == KafkaError.GROUP_ID_NOT_FOUND]
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {group: {} for group in unknown}
        unstable = []
        for group, each in answers.items():
            errors = {at.error.code() for at in each.topic_partitions if at.error is not None}
            if not errors:
                found[group] = {
                    (at.topic, at.partition): OffsetAndMetadata(at.offset, at.metadata or "")
                    for at in each.topic_partitions
                    if at.offset >= 0
                }
            elif errors == {KafkaError.UNSTABLE_OFFSET_COMMIT}:
                unstable.append(group)
        return found, unstable

    @staticmethod
    def _offsets_of(client: AdminClient, group: str, description: Future[Any], deadline: Deadline) -> Future[Any]:
        """Request what a group committed, if its coordinator has just described it; else the description's failure.

        Librdkafka 2.16 kills the process when a broker answers OffsetFetch of an admin client with NOT_COORDINATOR,
        as it does while a coordinator moves (https://github.com/confluentinc/librdkafka/issues/5040). A description
        gets the same answer and survives it, so what is left of the danger is the instant between the two.
        """
        try:
            answer(description, deadline)
        except KafkaException as exc:
            failed: Future[Any] = Future()  # the description itself may come yet, and is no answer about offsets
            failed.set_exception(exc)
            return failed
        return offsets_of(client, group)

    def _raise_if_silent(self, answers: Mapping[str, object], failures: Mapping[str, KafkaError], what: str) -> None:
        """Raise where no group was answered for, and not because of the groups themselves: the cluster is silent."""
        silent = [error for error in failures.values() if error.code() not in {*DENIED, KafkaError.GROUP_ID_NOT_FOUND}]
        if silent and not answers:
            raise Retriable(f"the cluster did not {what}: {first_cause(silent)}", where=self._where)


def _state(state: ConsumerGroupState) -> GroupState:
    if state is ConsumerGroupState.EMPTY:
        return "empty"
    # Brokers call a group dead that they have never heard of.
    return "absent" if state is ConsumerGroupState.DEAD else "active"


def _refused(error: KafkaError, what: str, where: str) -> GroupIsActive | Retriable:
    if error.code() in _ACTIVE:
        return GroupIsActive(
            f"only its members may commit: {error.str()} ({error.name()})",
            where=where,
            hint="stop the group's consumers on this cluster, if it is meant to follow the other one",
        )
    hint = _RIGHTS if error.code() in DENIED else ""
    return Retriable(f"the cluster did not commit {what}: {error.str()} ({error.name()})", where=where, hint=hint)


class KafkaShadowGroups(KafkaGroups):
    """Implements `mirrorless.failover.work.ShadowGroups`."""

    def __init__(self, cluster: ClusterSettings, *, flow: str) -> None:
        """Args: flow: part of what the clients call themselves in the brokers' logs."""
        super().__init__(cluster, flow=flow)
        self._deleting = WarmAdmin(cluster, f"{flow}|drill")

    def delete(self, groups: Iterable[str], deadline: Deadline) -> None:
        """See `ShadowGroups.delete`."""

        def call(client: AdminClient, keys: list[str], _: float) -> Mapping[str, Future[Any]]:
            return deleted(client, keys)

        _, failures = self._deleting.call_each(list(groups), call, deadline, chunk=CHUNK)
        failed = {name: error for name, error in failures.items() if error.code() != KafkaError.GROUP_ID_NOT_FOUND}
        if failed:
            raise Retriable(
                f"{len(failed)} groups of the drill were not deleted: {first_cause(failed.values())}",
                where=self._where,
                hint="the operator needs DELETE on groups `mirrorless.drill.*`; then run the same command again",
            )
