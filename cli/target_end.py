"""`lanes reset --to target`: where the source goes on behind the last record that the target has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cli.args import BadInput
from cli.clusters import deadline
from cli.deployment import DeployedFlows
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.lanes.target_end import TAIL, places_of
from mirrorless.ports.kafka import TopicPartition
from mirrorless.records.origin import OriginRule
from mirrorless.records.record import Record, size_of

ANSWER_SECONDS = 60.0
"""For each question to a cluster."""

LOOK_BACK = (50, 1_000, 20_000)
"""Offsets before the end of the remote partition among which its last records are looked for: markers and records that
were aborted stand in between."""

AT_ONCE = 500
"""Offsets of the first read; each is four times as long as the one before, while what it brings stays small."""

SMALL_BYTES = 1_000_000

Ranges = Callable[[int, int], list[Record]]
"""The records of one partition in a half-open range of offsets."""


def behind_target(deployment: DeployedFlows, lane: Lane, stop: Stop | None, since: int) -> int:
    """The upstream offset behind the last record that the target has of a lane.

    Args:
        deployment: of the flow.
        lane: which is not written to meanwhile.
        stop: of the lane.
        since: the upstream offset below which all was replicated for certain.

    Raises:
        BadInput: it cannot be found.
        Retriable: a cluster does not answer.
    """
    from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- commands without Kafka start sooner
    from mirrorless.adapters.kafka.records import KafkaRecords  # noqa: PLC0415 -- same
    from mirrorless.adapters.kafka.topics import KafkaTopics  # noqa: PLC0415 -- same

    settings = deployment.settings(lane.flow)
    place, remote = (lane.topic, lane.partition), (settings.remote_topic(lane.topic), lane.partition)
    if settings.delivery == "at_least_once" and stop is not None and stop.reason == "broken":
        raise _unknown(lane, "without transactions, what was written behind records that are gone stands there too")
    flow = str(lane.flow)
    extent = KafkaOffsets(settings.source, flow=flow).extents([place]).get(place)
    ends = KafkaRecords(settings.target, flow=flow, client_role="operator").ends([remote], deadline(ANSWER_SECONDS))
    if extent is None or remote not in ends:
        raise _unknown(lane, f"the {'source' if extent is None else 'target'} does not show this partition")
    start, stable, high_watermark = ends[remote]
    if stable < high_watermark:
        raise _unknown(
            lane,
            f"an open transaction hides the end of {remote[0]}-{remote[1]} from {stable} on",
            hint="wait for a minute; if it stays, see `mirrorless status`",
        )
    rule = settings.origin_rule(lane.topic)
    tail = _tail(_ranges(deployment, lane, remote, of_target=True), start, stable, rule)
    if not tail and start == 0:
        return extent.start  # the target never had a record of it, or was made anew
    if not tail:
        raise _unknown(lane, "the target's retention has removed all that it had of this lane")
    read = _ranges(deployment, lane, place, of_target=False)
    first = max(since, extent.start)
    timed = KafkaTopics(settings.source, flow=flow, role="operator").offsets_at(
        [place], tail[-1].timestamp, deadline(ANSWER_SECONDS)
    )
    found = None
    if (at := timed.get(place, -1)) >= 0:
        # No record of this time lies before; those of the tail before it may.
        found = places_of(tail, _records(read, max(first, at - AT_ONCE), extent.end, rule), timed=True)
    found = found or places_of(tail, _records(read, first, extent.end, rule), timed=False)
    if found is None:
        raise _unknown(lane, f"the last record that the target has is not on the source from {first} on")
    if not found.one:
        raise _unknown(lane, f"the last records that the target has stand at {found.first}, and again at {found.last}")
    return found.first + 1


def _unknown(lane: Lane, what: str, *, hint: str = "") -> BadInput:
    return BadInput(
        f"--to target cannot be resolved: {what}",
        where=str(lane),
        hint=hint or "compare both logs, and name the upstream offset as a number",
    )


def _ranges(deployment: DeployedFlows, lane: Lane, place: TopicPartition, *, of_target: bool) -> Ranges:
    from mirrorless.adapters.kafka.record_ranges import KafkaRecordRanges  # noqa: PLC0415 -- see above

    settings = deployment.settings(lane.flow)
    reader = KafkaRecordRanges(settings.target if of_target else settings.source, flow=str(lane.flow))

    def read(first: int, end: int) -> list[Record]:
        return [each for _, some in reader.ranges({place: (first, end)}, deadline(ANSWER_SECONDS)) for each in some]

    return read


def _tail(read: Ranges, start: int, end: int, rule: OriginRule | None) -> Sequence[Record]:
    """The last records of the remote partition; where others produce to it too, of those that were copied."""
    for back in (*LOOK_BACK, end - start):
        first = max(start, end - back)
        some = [each for each in (read(first, end) if first < end else ()) if rule is None or rule.is_copy(each)]
        if some or first == start:
            return some[-TAIL:]
    return ()


def _records(read: Ranges, first: int, end: int, rule: OriginRule | None) -> Iterator[Record]:
    """The source's records as they are copied."""
    size = AT_ONCE
    while first < end:
        some = read(first, min(end, first + size))
        yield from some if rule is None else rule.split(some)[0]
        first += size
        size *= 4 if sum(map(size_of, some)) < SMALL_BYTES else 1
