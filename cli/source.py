"""What does the source cluster say, where it can be reached? It may be the very thing that is down.

Nothing here fails because of that: the answer is then None, and `trouble` says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cli.deployment import Deployment
from mirrorless.errors import MirrorlessError
from mirrorless.lane import FlowName, Lane

if TYPE_CHECKING:
    from mirrorless.adapters.kafka_offsets import Extent, KafkaOffsets


class SourceView:
    """One flow's source cluster. After its first silence it is not asked again, so that nobody waits twice.

    Attributes:
        trouble: why the source did not answer; empty while it does.
    """

    def __init__(self, offsets: KafkaOffsets | None, trouble: str = "") -> None:
        self._offsets = offsets
        self.trouble = trouble

    @classmethod
    def of(cls, deployment: Deployment, flow: FlowName) -> SourceView:
        """The source of a flow. Nothing is asked yet, but a secret may be read."""
        from mirrorless.adapters.kafka_offsets import KafkaOffsets  # noqa: PLC0415 -- commands without Kafka start sooner

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
        if committed is None:
            told.append(f"Group {group} has committed nothing here: its mapping begins where `start` says.")
        elif committed <= to:
            told.append(f"Group {group} has committed {committed}: the mapping will deliver {to} by itself.")
        else:
            told.append(
                f"Group {group} has committed {committed}, above {to}: its mapping will not deliver what lies between. "
                f"Disable the mapping, move the group back (kafka-consumer-groups.sh --group {group} --topic "
                f"{lane.topic}:{lane.partition} --reset-offsets --to-offset {to} --execute), enable the mapping."
            )
        return told
