"""What does the source cluster say, where it can be reached? It may be the very thing that is down.

Nothing here fails because of that: the answer is then None, and `trouble` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from cli.deployment import DeployedFlows
from mirrorless.errors import MirrorlessError
from mirrorless.lane import FlowName, Lane

if TYPE_CHECKING:
    from mirrorless.adapters.kafka.offsets import Extent, KafkaOffsets


class SourceView:
    """One flow's source cluster. After its first silence it is not asked again, so that nobody waits twice.

    Attributes:
        trouble: why the source did not answer; empty while it does.
    """

    def __init__(self, offsets: KafkaOffsets | None, trouble: str = "") -> None:
        self._offsets = offsets
        self.trouble = trouble

    @classmethod
    def of(cls, deployment: DeployedFlows, flow: FlowName) -> SourceView:
        """The source of a flow. Nothing is asked yet, but a secret may be read."""
        from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- commands without Kafka start sooner

        try:
            return cls(KafkaOffsets(deployment.settings(flow).source, flow=str(flow)))
        except (MirrorlessError, ImportError) as exc:
            return cls(None, str(exc))

    def partitions(self) -> dict[str, int] | None:
        """Every topic with its number of partitions."""
        if self._offsets is None or self.trouble:
            return None
        try:
            return self._offsets.partitions()
        except MirrorlessError as exc:
            self.trouble = str(exc)
            return None

    def extents(self, lanes: Iterable[Lane]) -> dict[Lane, Extent]:
        """What the source holds of each lane; lanes that it does not have, or does not tell of, are left out."""
        if self._offsets is None or self.trouble:
            return {}
        wanted = {(lane.topic, lane.partition): lane for lane in lanes}
        try:
            return {wanted[key]: extent for key, extent in self._offsets.extents(wanted).items()}
        except MirrorlessError as exc:
            self.trouble = str(exc)
            return {}

    def extent(self, lane: Lane) -> Extent | None:
        """What the source holds of one lane."""
        return self.extents([lane]).get(lane)

    def oldest_waiting(self, positions: Mapping[Lane, int]) -> dict[Lane, int | None]:
        """When the oldest record was written that stands at or after each lane's position, ms since the epoch.

        None where no record waits: only markers and aborted records follow. What is not known is left out.
        """
        if self._offsets is None or self.trouble or not positions:
            return {}
        wanted = {(lane.topic, lane.partition): lane for lane in positions}
        try:
            found = self._offsets.oldest_waiting({key: positions[lane] for key, lane in wanted.items()})
            return {wanted[key]: timestamp for key, timestamp in found.items()}
        except MirrorlessError as exc:
            self.trouble = str(exc)
            return {}

    def committed(self, group: str, lane: Lane) -> int | None:
        """The offset that the lane's mapping has committed."""
        if self._offsets is None or self.trouble:
            return None
        try:
            return self._offsets.committed(group, lane.topic, lane.partition)
        except MirrorlessError as exc:
            self.trouble = str(exc)
            return None

    def group_told(self, lane: Lane, group: str, to: int) -> list[str]:
        """What an operator who resets a lane must know about the mapping's consumer group."""
        committed, extent = self.committed(group, lane), self.extent(lane)
        if self.trouble:
            return [f"The source does not answer, so compare group {group} with {to} yourself: {self.trouble}"]
        told = []
        if extent is not None:
            told.append(f"The source holds upstream offsets {extent.start} to {extent.end} (exclusive).")
        told += group_advice(lane, group, committed, to, extent)
        return told


def group_advice(lane: Lane, group: str, committed: int | None, to: int, extent: Extent | None) -> list[str]:
    """Whether the mapping will deliver from exactly `to` on, and what to do if it will not.

    Above it, records would be missed. Below it, the new generation has no run to hold redelivered records against, so
    the lane would stop again.
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
    else:
        wrong = f"below {to}: its mapping will deliver records that the new generation does not know, and stop again"
    kafka = f"--group {group} --topic {lane.topic}:{lane.partition} --reset-offsets --to-offset {to} --execute"
    return [
        f"Group {group} has committed {committed}, {wrong}.",
        f"So disable the mapping, move the group (kafka-consumer-groups.sh {kafka}), and enable the mapping again.",
    ]
