"""The checks before a backfill: findings that make it pointless or harmful.

Pure: facts about lanes and topics come in, findings come out. `force` passes over warnings; a job that would lose
records or put them out of order is refused in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorless.backfill.plan import RequestedRange
from mirrorless.chain.lane_state import Lease, Stop
from mirrorless.jobs.archive import LaneSurvey
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.plan import CheckFinding, Severity
from mirrorless.jobs.request import BackfillOptions

BACKFILLED: Final = "backfilled"
"""The reason of a stop that a backfill leaves where a lane is not joined to its mapping; the next backfill ends it."""

Configs = Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFacts:
    """One partition, before the job begins."""

    topic: str
    partition: int
    requested: RequestedRange
    extent: OffsetRange
    """What the log holds, to its stable end."""
    live: int | None = None
    """The upstream offset at which the flow's own lane begins, where the range ends there."""
    position: int = 0
    begins: int | None = None
    """The first upstream offset that the chain has a record of; None where it has none."""
    before: bool = False
    """Whether a requested record stands below `begins`."""
    generation: int = 0
    stop: Stop | None = None
    lease: Lease | None = None
    oldest: int | None = None
    """The timestamp of the first requested record, ms since the epoch."""
    bytes: int = 0
    """Left to copy."""
    survey: LaneSurvey | None = None
    """Of the archive, where the records come from one."""
    foreign: int | None = None
    """Of a lane that has written nothing yet: where on the target a record stands all the same; None for nowhere."""

    @property
    def where(self) -> str:
        """The lane for the operator: `orders-3`."""
        return f"{self.topic}-{self.partition}"

    @property
    def is_empty(self) -> bool:
        """Whether nothing is requested of it, whatever of that was copied already."""
        return self.requested.range.first >= self.requested.range.next


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic on both sides."""

    topic: str
    write_topic: str
    source: Configs
    target: Configs | None
    """None where it is not there yet: then it gets the configuration of the source."""
    is_remote: bool = False
    """Whether `write_topic` is the remote topic of some topic of this flow."""


def check_all(
    lanes: Sequence[LaneFacts],
    topics: Sequence[TopicFacts],
    options: BackfillOptions,
    *,
    replication_factor: int,
    holder: str,
    now: int,
) -> list[CheckFinding]:
    """Every finding, refusals first."""
    found = [*_options(topics, options)]
    for topic in topics:
        its = [lane for lane in lanes if lane.topic == topic.topic]
        found += _retention(topic, its, now)
        found += _sizes(topic)
        found += _timestamps(topic, its, options, now)
        found += _foreign(topic, its, options)
    found += _space(lanes, options, replication_factor)
    for lane in lanes:
        found += _history(lane, options)
        found += _archived(lane)
        found += _live(lane, options.into)
        found += _held(lane, holder, now)
    found += _nothing(lanes, options)
    order = {"refuse": 0, "warn": 1, "info": 2}
    return sorted(found, key=lambda each: order[each.severity])


def expires_at(lane: LaneFacts, topic: TopicFacts) -> int | None:
    """The time at which the source's retention takes the first requested record, ms since the epoch; None for never."""
    kept = _limit(topic.source.get("retention.ms"))
    if kept is None or lane.oldest is None or lane.oldest <= 0 or "delete" not in _policy(topic.source):
        return None
    return lane.oldest + kept


def _options(topics: Sequence[TopicFacts], options: BackfillOptions) -> Iterator[CheckFinding]:
    if options.into is None:
        return
    if len(topics) > 1:
        yield _finding(
            "refuse",
            "into",
            options.into,
            "several topics cannot go into one topic: their records would mix. Start a job for each",
        )
    for topic in topics:
        if topic.is_remote:
            yield _finding(
                "refuse",
                "into",
                options.into,
                "this is a remote topic of the flow, and the forwarder writes to it: name a topic of its own",
            )


def _retention(topic: TopicFacts, lanes: Sequence[LaneFacts], now: int) -> Iterator[CheckFinding]:
    """Find limits by which the broker would delete the copy within minutes."""
    target, source = _effective(topic), topic.source
    if "compact" in _policy(target) and "compact" not in _policy(source):
        yield _finding(
            "refuse",
            "cleanup.policy",
            topic.write_topic,
            "the target compacts this topic and the source does not: all but the last record of each key would "
            "go. Set cleanup.policy on the target as it is on the source",
        )
    if "delete" not in _policy(target):
        return
    ages = [now - lane.oldest for lane in lanes if lane.oldest is not None and lane.oldest > 0]
    keeps, kept = _limit(target.get("retention.ms")), _limit(source.get("retention.ms"))
    if keeps is not None and ages and max(ages) > keeps:
        also = kept is not None and kept <= keeps and "delete" in _policy(source)
        yield _finding(
            "info" if also else "refuse",
            "retention.ms",
            topic.write_topic,
            f"the oldest record is {_time(max(ages))} old and the target keeps {_time(keeps)}: "
            + (
                "the source is about to delete such records too"
                if also
                else "the broker would delete the copy within minutes. Raise retention.ms on the target"
            ),
        )
    most_bytes, had = _limit(target.get("retention.bytes")), _limit(source.get("retention.bytes"))
    most = max((lane.bytes for lane in lanes), default=0)
    if most_bytes is not None and most > most_bytes and not (had is not None and had <= most_bytes):
        yield _finding(
            "refuse",
            "retention.bytes",
            topic.write_topic,
            f"a partition would get {_size(most)} and the target keeps {_size(most_bytes)} of it: the broker would "
            "delete the beginning. Raise retention.bytes on the target",
        )


def _sizes(topic: TopicFacts) -> Iterator[CheckFinding]:
    target, source = _number(_effective(topic), "max.message.bytes"), _number(topic.source, "max.message.bytes")
    if target is not None and source is not None and target < source:
        yield _finding(
            "warn",
            "max.message.bytes",
            topic.write_topic,
            f"the target takes batches up to {_size(target)} and the source up to {_size(source)}: a record in between "
            "stops its lane. Raise max.message.bytes on the target",
        )


def _timestamps(
    topic: TopicFacts, lanes: Sequence[LaneFacts], options: BackfillOptions, now: int
) -> Iterator[CheckFinding]:
    target = _effective(topic)
    ages = [now - lane.oldest for lane in lanes if lane.oldest is not None and lane.oldest > 0]
    allowed = _limit(target.get("message.timestamp.before.max.ms"))
    if allowed is not None and ages and max(ages) > allowed:
        yield _finding(
            "refuse",
            "message.timestamp.before.max.ms",
            topic.write_topic,
            f"the oldest record is {_time(max(ages))} old and the target refuses records older than {_time(allowed)}. "
            "Raise message.timestamp.before.max.ms on the target",
        )
    if target.get("message.timestamp.type") == "LogAppendTime":
        by_time = "timestamp" in {options.start.kind, options.end.kind}
        yield _finding(
            "warn",
            "message.timestamp.type",
            topic.write_topic,
            "the target replaces timestamps by its own (LogAppendTime): the copy does not keep them"
            + (", so the bounds of this job mean nothing there" if by_time else "")
            + ". Set message.timestamp.type=CreateTime on the target",
        )


def _foreign(topic: TopicFacts, lanes: Sequence[LaneFacts], options: BackfillOptions) -> Iterator[CheckFinding]:
    """Find records on the target that others have written: an earlier replicator's copies, or an application's."""
    places = [f"{lane.partition} @ {lane.foreign}" for lane in lanes if lane.foreign is not None]
    if places:
        yield _finding(
            "info" if options.beside else "refuse",
            "foreign records",
            topic.write_topic,
            f"it has records that this flow has not written, from partition and downstream offset {', '.join(places)} "
            "on: what is copied stands behind them, and comes twice where they are another replicator's copies"
            + ("" if options.beside else ". Delete the topic on the target, or say `--beside`"),
        )


def _space(lanes: Sequence[LaneFacts], options: BackfillOptions, replication_factor: int) -> Iterator[CheckFinding]:
    if options.free_gb is None:
        return
    needed = sum(lane.bytes for lane in lanes) * max(1, replication_factor)
    if needed > options.free_gb * 1e9:
        yield _finding(
            "refuse",
            "free space",
            "the target",
            f"{_size(needed)} would be written with all copies, and {options.free_gb:g} GB are free. Copy less, or "
            "give the brokers more",
        )


def _nothing(lanes: Sequence[LaneFacts], options: BackfillOptions) -> Iterator[CheckFinding]:
    """Find ranges in which there is nothing, of logs that hold something."""
    empty = [lane for lane in lanes if lane.is_empty and (lane.extent.first < lane.extent.next or options.archive)]
    weight: Severity = "refuse" if lanes and len(empty) == len(lanes) else "info"
    furthest = max((lane.extent.next for lane in lanes), default=0)
    for lane in empty:
        if lane.live is not None:
            yield _finding(
                weight,
                "range",
                lane.where,
                f"nothing is older than the flow's own lane, which begins at upstream offset {lane.live}: up to there "
                f"history goes into {options.into}. To copy what is replicated once more, give the end: "
                f"`--to offset:{furthest}`",
            )
        elif lane.extent.first < lane.extent.next:
            yield _finding(
                weight,
                "range",
                lane.where,
                "nothing lies between the bounds: the log holds upstream offsets "
                f"{lane.extent.first} to {lane.extent.next - 1}",
            )
        elif weight == "refuse":
            yield _finding(weight, "range", lane.where, "the archive has no record of this lane")


def _history(lane: LaneFacts, options: BackfillOptions) -> Iterator[CheckFinding]:
    """Find requested records that are gone."""
    if lane.survey is None and lane.position > lane.extent.next:
        yield _finding(
            "refuse",
            "source",
            lane.where,
            f"the lane stands at {lane.position} and the source ends at {lane.extent.next}: the topic was deleted and "
            "created again, or truncated. Reset the lane first, and plan again",
        )
    if lane.requested.first < lane.extent.first and lane.requested.first >= lane.position:
        yield _finding(
            "refuse",
            "start",
            lane.where,
            f"upstream offset {lane.requested.first} was requested, and the log begins at {lane.extent.first}. Start "
            "at earliest, or read the rest from an archive first",
        )
    if options.into is None and lane.survey is None and lane.requested.first > lane.extent.next:
        yield _finding(
            "refuse",
            "start",
            lane.where,
            f"upstream offset {lane.requested.first} was requested, and the log ends at {lane.extent.next}: what comes "
            f"between would be left out. Start at or below {lane.extent.next}, or leave out the partition",
        )
    if options.start.kind == "earliest" and 0 < lane.position < lane.extent.first:
        yield _finding(
            "warn",
            "retention",
            lane.where,
            f"the lane stands at {lane.position} and the source begins at {lane.extent.first}: what lies between is "
            "gone from the source, and will be listed as lost. Read it from an archive first, if there is one",
        )


def _archived(lane: LaneFacts) -> Iterator[CheckFinding]:
    """Find records that an archive lacks, or has twice."""
    survey = lane.survey
    if survey is None:
        return
    if not survey.records:
        yield _finding("info", "archive", lane.where, "the archive has no record of the requested range")
    if survey.missing:
        yield _finding("warn", "archive", lane.where, survey.what_is_missing)
    if len(survey.clusters) > 1:
        yield _finding(
            "warn",
            "archive",
            lane.where,
            f"the archive has records of several clusters: {', '.join(survey.clusters)}. Read a folder of one of them",
        )
    if survey.copies:
        yield _finding(
            "info", "archive", lane.where, f"{survey.copies:,} rows repeat an offset; each record is copied once"
        )


def _live(lane: LaneFacts, into: str | None) -> Iterator[CheckFinding]:
    """Find records that would be put before a lane's copies, or left out behind them."""
    other = "Give the job a topic of its own for them (`into`)" if into is None else "Name another topic for them"
    wanted = lane.requested.range
    if wanted.first >= wanted.next:
        return
    if lane.generation > 0 and lane.begins is not None and lane.begins > wanted.first:
        yield _finding(
            "info",
            "live lane",
            lane.where,
            f"the lane was reset; what lies below its position {lane.position} stays as it is on the target",
        )
    elif lane.before:
        yield _finding(
            "refuse",
            "live lane",
            lane.where,
            ("the lane is live since" if into is None else f"{into} has this lane from")
            + f" upstream offset {lane.begins}, and older records cannot be put before it in order. {other}",
        )
    start = max(lane.position, lane.extent.first)
    if lane.position > 0 and wanted.first > start:
        yield _finding(
            "refuse",
            "start",
            lane.where,
            f"the lane stands at {lane.position} and the job would begin at {wanted.first}: what lies between would be "
            f"left out. Start at or below {start}" + ("" if into is None else ", or name another topic"),
        )


def _held(lane: LaneFacts, holder: str, now: int) -> Iterator[CheckFinding]:
    if lane.stop is not None and lane.stop.reason != BACKFILLED:
        yield _finding(
            "refuse",
            "stopped",
            lane.where,
            f"the lane is stopped at {lane.stop.upstream_offset} ({lane.stop.reason}): {lane.stop.detail}. Resolve "
            "that first: `mirrorless lanes stopped` says how",
        )
    if lane.lease is not None and lane.lease.keeps_out(holder, now):
        yield _finding(
            "refuse",
            "lease",
            lane.where,
            f"job run {lane.lease.holder} has the lane for another {_time(lane.lease.until - now)}. Wait for it; if "
            "it is dead, release the lane (docs/how-to/on-call.md)",
        )


def _finding(severity: Severity, check: str, where: str, text: str) -> CheckFinding:
    return CheckFinding(severity=severity, check=check, where=where, text=text)


def _effective(topic: TopicFacts) -> Configs:
    """The configuration that the target's topic has, or will have."""
    return topic.source if topic.target is None else topic.target


def _policy(configs: Configs) -> set[str]:
    return {each.strip() for each in (configs.get("cleanup.policy") or "delete").split(",")}


def _limit(value: str | None) -> int | None:
    """A limit; None where there is none."""
    return None if value is None or int(value) < 0 else int(value)


def _number(configs: Configs, name: str) -> int | None:
    value = configs.get(name)
    return int(value) if value else None


def _time(ms: int) -> str:
    for unit, length in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000)):
        if ms >= 2 * length:
            return f"{ms / length:,.0f} {unit}"
    return f"{ms / 1000:,.0f} s"


def _size(size: float) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= length:
            return f"{size / length:,.1f} {unit}"
    return f"{size:,.0f} bytes"


def worst(findings: Iterable[CheckFinding]) -> str:
    """All of them as one text for an error."""
    return "; ".join(f"{each.where}: {each.text}" for each in findings)
