"""What does the target cluster say, where it can be reached? Like the source, it may be the very thing that is down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mirrorless.errors import MirrorlessError
from mirrorless.mm2.internal_records import Heartbeat
from mirrorless.policy import HEARTBEATS_TOPIC
from mirrorless.scheduled.settings import ControlSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatTimes:
    """When the newest heartbeats of a flow were written, ms since the epoch; None where there is none."""

    emitted: int | None = None
    """By the flow's own schedule, on the target: the schedule runs, and the target takes records."""
    replicated: int | None = None
    """On the source, and seen on the target: the flow carries records from end to end."""
    enabled: bool = True
    trouble: str = ""
    """Why the target does not answer; then nothing is known."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "enabled": self.enabled,
            "emitted_at": self.emitted,
            "replicated_at": self.replicated,
            "target_trouble": self.trouble,
        }


def heartbeats_of(settings: ControlSettings) -> HeartbeatTimes:
    """Look at the ends of the heartbeats topics on a flow's target."""
    if settings.heartbeats_seconds is None:
        return HeartbeatTimes(enabled=False)
    flow = settings.name
    try:
        from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- commands without Kafka start sooner

        target = KafkaOffsets(settings.flow.target, flow=str(flow))
        own = Heartbeat(source=flow.source, target=flow.target, timestamp=0)
        return HeartbeatTimes(
            emitted=target.newest(HEARTBEATS_TOPIC, key=own.key()),
            # Whichever flow wrote it on the source: this one has carried it over.
            replicated=target.newest(settings.policy.remote_topic(flow.source, HEARTBEATS_TOPIC)),
        )
    except (MirrorlessError, ImportError) as exc:
        return HeartbeatTimes(trouble=str(exc))
