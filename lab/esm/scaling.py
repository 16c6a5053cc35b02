"""How many pollers a mapping has, and how fast one of them goes. No clock, no socket.

AWS looks at the lag every minute, and adds or removes pollers within three; it does not document how many at once. A
provisioned poller delivers 5 MB a second at most.
(https://docs.aws.amazon.com/lambda/latest/dg/kafka-scaling-modes.html)
"""

from __future__ import annotations

from dataclasses import dataclass


def wanted_pollers(pollers: int, *, lag: int, lag_before: int, minimum: int, maximum: int) -> int:
    """Twice as many while a lag does not fall, one fewer while there is none.

    Args:
        pollers: that there are.
        lag: offsets to go, over all partitions.
        lag_before: the same at the last look.
        minimum: of the mapping's settings.
        maximum: the same, or the topic's partitions where these are fewer.
    """
    wanted = pollers
    if lag and lag >= lag_before:
        wanted = pollers * 2
    elif not lag:
        wanted = pollers - 1
    return max(minimum, min(wanted, maximum))


@dataclass(slots=True, kw_only=True)
class Throughput:
    """The pace of one poller's new payloads.

    Attributes:
        bytes_per_second: of their records; 0 for no limit.
        ready_at: when the next payload may go, on the monotonic clock.
    """

    bytes_per_second: float
    ready_at: float = 0.0

    def spend(self, size: int, now: float) -> None:
        """A payload of this size goes now."""
        if self.bytes_per_second:
            self.ready_at = max(now, self.ready_at) + size / self.bytes_per_second
