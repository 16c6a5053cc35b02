"""Reads of a flow's source and target cluster, either of which may be down.

A cluster that does not answer makes no command fail: what it alone has is None or left out, and `trouble` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from cli.deployment import DeployedFlows
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.errors import MirrorlessError
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.flow.settings import FlowSettings
from mirrorless.mm2.heartbeats import beat_of

if TYPE_CHECKING:
    from mirrorless.adapters.kafka.offsets import Extent, KafkaOffsets, OpenTransaction
    from mirrorless.flow.settings import ClusterSettings
    from mirrorless.ports.kafka import TopicPartition

_T = TypeVar("_T")


class ClusterReads:
    """Reads of one cluster. After the first that fails, no other is tried, so that the command waits once.

    Attributes:
        trouble: why the cluster does not answer; empty while it does.
    """

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble

    def read(self, request: Callable[[], _T]) -> _T | None:
        """The result of a request; None where the cluster does not answer."""
        if self.trouble:
            return None
        try:
            return request()
        except (MirrorlessError, ImportError) as exc:
            self.trouble = str(exc)
            return None


class ClusterView(ClusterReads):
    """One cluster of a flow, by lanes. It is not contacted before the first read."""

    def __init__(self, offsets: Callable[[], KafkaOffsets]) -> None:
        super().__init__()
        self._offsets = cache(offsets)

    @classmethod
    def source(cls, deployment: DeployedFlows, flow: FlowName) -> ClusterView:
        """The source of a flow."""
        return cls(lambda: offsets_of(deployment.looking(flow).source, flow))

    def partitions(self) -> dict[str, int] | None:
        """Every topic with its number of partitions."""
        return self.read(lambda: self._offsets().partitions())

    def extents(self, lanes: Iterable[Lane]) -> dict[Lane, Extent]:
        """The extent of each lane on the source; lanes that are not there or not known are left out."""
        wanted = _places(lanes)
        found = self.read(lambda: self._offsets().extents(wanted)) or {}
        return {wanted[place]: extent for place, extent in found.items()}

    def extent(self, lane: Lane) -> Extent | None:
        """The extent of one lane on the source."""
        return self.extents([lane]).get(lane)

    def has_lost(self, lane: Lane) -> int | None:
        """The partitions of a lane's topic, where that is on the source and has not this one; else None."""
        count = (self.partitions() or {}).get(lane.topic, 0)
        return count if 0 < count <= lane.partition else None

    def oldest_waiting(self, positions: Mapping[Lane, int]) -> dict[Lane, int | None]:
        """The timestamp of the oldest record at or after each lane's position, in ms since the epoch.

        None where no record waits: only markers and aborted records follow. Lanes that are not known are left out.
        """
        wanted = _places(positions)
        starts = {place: positions[lane] for place, lane in wanted.items()}
        found = (self.read(lambda: self._offsets().oldest_waiting(starts)) or {}) if wanted else {}
        return {wanted[place]: timestamp for place, timestamp in found.items()}

    def open_transactions(self, ends: Mapping[Lane, int]) -> dict[Lane, OpenTransaction]:
        """The first open transaction of each lane that has one, where the cluster tells. Args: ends: of their logs."""
        wanted = _places(ends)
        if wanted and not self.trouble:
            with suppress(MirrorlessError):  # all else that is known of the source stays known
                found = self._offsets().open_transactions({place: ends[lane] for place, lane in wanted.items()})
                return {wanted[place]: each for place, each in found.items()}
        return {}

    def committed(self, group: str, lane: Lane) -> int | None:
        """The offset that the lane's mapping has committed."""
        return self.read(lambda: self._offsets().committed(group, lane.topic, lane.partition))

    def place_advice(self, lane: Lane, group: str | None, to: int, *, reset: bool = True) -> list[str]:
        """Sentences for an operator who lets a lane go on from upstream offset `to`.

        Args:
            lane: the lane.
            group: its mapping's consumer group; None where a schedule reads the topic.
            to: where.
            reset: whether a new generation begins there.
        """
        extent = self.extent(lane)
        committed = self.committed(group, lane) if group is not None else None
        if self.trouble and group is not None:
            return [f"The source does not answer, so compare group {group} with {to} yourself: {self.trouble}"]
        advice = []
        if extent is not None:
            advice.append(f"The source holds upstream offsets {extent.start} to {extent.end} (exclusive).")
        if group is None:
            return [*advice, f"The schedule of {lane.topic} reads from {to} on, within five minutes."]
        return advice + group_advice(lane, group, committed, to, extent, reset=reset)


def _places(lanes: Iterable[Lane]) -> dict[TopicPartition, Lane]:
    return {(lane.topic, lane.partition): lane for lane in lanes}


def offsets_of(cluster: ClusterSettings, flow: FlowName) -> KafkaOffsets:
    """The client that does not log a failed connection; the functions' clients do."""
    from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- commands without Kafka start sooner

    return KafkaOffsets(cluster, flow=str(flow))


def group_advice(
    lane: Lane, group: str, committed: int | None, to: int, extent: Extent | None, *, reset: bool = True
) -> list[str]:
    """Whether the mapping will deliver from exactly `to` on, and what to do if it will not.

    Above it, records would be missed. Below it, a new generation has no run to compare redelivered records with, and a
    map may have lost its runs: the lane would stop again.
    """
    if committed is None:
        below = (
            "" if extent is not None and extent.start >= to else f" If that is below {to}, move the group there first."
        )
        return [f"Group {group} has committed nothing here: its mapping begins where `start` says.{below}"]
    if committed == to or (extent is not None and committed < to <= extent.start):
        return [f"Group {group} has committed {committed}: its mapping will deliver from {to} on by itself."]
    if committed > to:
        wrong = f"above {to}: its mapping may not deliver what lies between"
    elif reset:
        wrong = f"below {to}: its mapping will deliver records that are not in the new generation, and stop again"
    else:
        wrong = f"below {to}: its mapping delivers what was replicated, and stops again where the map has lost that"
    kafka = f"--group {group} --topic {lane.topic}:{lane.partition} --reset-offsets --to-offset {to} --execute"
    return [
        f"Group {group} has committed {committed}, {wrong}.",
        f"So disable the mapping, move the group (kafka-consumer-groups.sh {kafka}), and enable the mapping again.",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatTimes:
    """When the newest heartbeats of a flow were written, ms since the epoch; None where there is none."""

    emitted: int | None = None
    """By the flow's own schedule, on the target: the schedule runs, and the target takes records."""
    replicated: int | None = None
    """On the source, and seen on the target: the flow carries records from end to end."""
    enabled: bool = True
    trouble: str = ""
    """Why the newest heartbeats could not be read; then nothing is known."""
    answers: bool = True
    """Whether the target answered at all; a topic that is just being made may have no leader yet."""


def heartbeats_of(settings: FlowSettings) -> HeartbeatTimes:
    """Read the newest records of the heartbeats topics on a flow's target."""
    if not settings.emit_heartbeats_enabled:
        return HeartbeatTimes(enabled=False)
    flow = settings.name
    answers = False
    try:
        target = offsets_of(settings.target, flow)
        there = target.partitions()
        answers, remote = True, settings.policy.remote_topic(flow.source, HEARTBEATS_TOPIC)
        own = beat_of(flow, settings.policy.prefix)
        return HeartbeatTimes(
            emitted=target.newest(HEARTBEATS_TOPIC, key=own.key()) if HEARTBEATS_TOPIC in there else None,
            # Whichever flow wrote it on the source, this flow has replicated it.
            replicated=target.newest(remote) if remote in there else None,
        )
    except (MirrorlessError, ImportError) as exc:
        return HeartbeatTimes(trouble=str(exc), answers=answers)
