"""The audit: every record once, in order, byte for byte, and every offset translated; both clusters read whole.

Per topic-partition, and in total:

    source, target   visible records (read_committed) on either side
    lost, duplicated, reordered, different   see `verify.comparison`: each fault is of exactly one kind
    mistranslated    upstream offsets that the map places wrongly or does not find back, see `count_mistranslated`

Records are equal when their key, value, headers (in order) and timestamp are, as bytes; null is not empty. The
timestamp's type is not compared: the target never rewrites a timestamp, so there it is always the creator's. What a
topic's rule leaves out is expected nowhere, and what it masks is expected masked, see `lab.audit.expected_copies`.

The audit reads the clusters and the map, and nothing from the forwarder. It presumes that nothing was compacted or
expired between the copy and the audit: that would look like a loss. What it expects of a remote topic that was deleted
or truncated on purpose is in `lab.audit.log_changes`.

After a failover and a failback, the source's records without its orphans and the remote topic's must be the same, in
the same order. An orphan must be where its policy says: in the topic of orphans, or once more on the source, and so on
the target.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal, NamedTuple, cast

from confluent_kafka import KafkaException
from rich.table import Table

from lab.audit.expected_copies import ExpectedCopies
from lab.audit.log_changes import UNCHANGED, LogChanges, compare_lane
from lab.audit.topic_reader import as_it_is, read_topic, read_whole, stable_ends
from lab.cloud import FlowMapping, Lab, addresses
from lab.waiting import wait_for
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head
from mirrorless.chain.run import Link
from mirrorless.config.flow import Flow
from mirrorless.errors import Retriable
from mirrorless.jobs.request import Policy
from mirrorless.ports.stores import Chains
from mirrorless.protocol.translate import OffsetMap, Translation
from mirrorless.reconcile.tasks import ORPHANS_SUFFIX
from mirrorless.verify.comparison import Comparison, RecordAt, compare

OF_RECORDS = ("lost", "duplicated", "reordered", "different")
FINDINGS = (*OF_RECORDS, "mistranslated")

PAGE = 500
"""Links read at a time."""
SAMPLE = 4
"""Offsets of each lane that are translated through the store."""
GAP_ENDS = 1000
STATES = {
    "record": {"exact"},
    "gap": {"next_record"},
    "end": {"exact"},
    "beyond": {"exact", "ahead_of_replication"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAudit:
    """What the audit found in one topic-partition."""

    flow: str
    topic: str
    partition: int
    source: int
    target: int
    lost: int
    duplicated: int
    reordered: int
    different: int
    mistranslated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAudit:
    """What the audit found in one topic of one flow."""

    rows: list[PartitionAudit]
    upstream: Mapping[int, Sequence[int]]
    """Upstream offsets of the visible records, by partition, in order."""
    upstream_of: Mapping[int, Mapping[int, int]]
    """By partition: the downstream offset of each record that arrived, and the upstream offset of its original."""


def audit_topic(
    lab: Lab, flow: Flow, topic: str, *, changes: LogChanges = UNCHANGED, copies: ExpectedCopies | None = None
) -> TopicAudit:
    """Audit one topic of a flow of the lab, everything replicated. See `audit`."""
    chains = DynamoDbChains(lab.dynamodb.client(), lab.tables.offset_map)
    return audit(flow, topic, chains, changes=changes, copies=copies)


def audit(
    flow: Flow,
    topic: str,
    chains: Chains,
    *,
    seed: int = 0,
    changes: LogChanges = UNCHANGED,
    copies: ExpectedCopies | None = None,
) -> TopicAudit:
    """Read the topic and its remote topic whole, compare them, and translate every offset.

    Args:
        flow: with clusters at addresses that answer.
        topic: its name on the source.
        chains: the store of the offset map.
        seed: of the sample of offsets that is translated through the store.
        changes: what outsiders did to the remote topic, and what the source has lost.
        copies: what the topic's rule makes of its records; None without a rule.

    Raises:
        Retriable: a cluster or the store fails, or an open transaction hides records.
        LookupError: the source topic is not there.
    """
    remote_topic = flow.remote_topic(topic)
    source_cluster, target_cluster = addresses(flow.source), addresses(flow.target)
    source_ends, target_ends = stable_ends(source_cluster, topic), stable_ends(target_cluster, remote_topic)
    if not source_ends:
        raise LookupError(f"{flow.name}: there is no topic {topic} at {source_cluster} to audit")
    written = read_topic(source_cluster, topic, source_ends, copies.of_source if copies else as_it_is)
    arrived = read_topic(target_cluster, remote_topic, target_ends, copies.of_target if copies else as_it_is)
    rows = []
    originals: dict[int, dict[int, int]] = {}
    for partition in sorted(written.keys() | arrived.keys()):
        lane = Lane(flow.name, topic, partition)
        upstream, point = written.get(partition, []), changes.resets.get(partition)
        downstream = changes.arrived(partition, arrived.get(partition, []))
        lost, copied = changes.lost.get(partition, ()), changes.copied.get(partition, 0)
        found = compare_lane(upstream, downstream, point, lost, copied=copied)
        first = 0 if point is None else point.upstream
        originals[partition] = {target.offset: source.offset for source, target in found.pairs}
        offsets, end = [each.offset for each in upstream if each.offset >= first], source_ends.get(partition, 0)
        mistranslated = _mistranslated(chains, lane, offsets, found, end=end, seed=seed, begin=first)
        rows.append(_row(lane, (len(upstream), len(downstream)), [found], mistranslated=mistranslated))
    return TopicAudit(
        rows=rows,
        upstream={partition: [each.offset for each in records] for partition, records in written.items()},
        upstream_of=originals,
    )


def audit_failover(
    flow: Flow, topic: str, policy: Policy, orphans: Mapping[int, Sequence[RecordAt]], chains: Chains
) -> TopicAudit:
    """Read a topic on both sides after a failover and a failback, and account for every record.

    Its upstream offsets are those without the orphans, which a group meets elsewhere or not at all, by their policy.

    Args:
        flow: with clusters that answer.
        topic: on the source.
        policy: of its orphans.
        orphans: as they were seen on the source before the reconcile, by partition.
        chains: the store of the offset map.

    Raises:
        Retriable: a cluster fails, or an open transaction hides records.
    """
    source, target, remote = addresses(flow.source), addresses(flow.target), flow.remote_topic(topic)
    ends = stable_ends(source, topic)
    there = read_whole(target, remote)
    aside = read_whole(target, remote + ORPHANS_SUFFIX) if policy == "quarantine" else {}
    rows, kept, originals = list[PartitionAudit](), dict[int, list[int]](), dict[int, dict[int, int]]()
    for partition, written in sorted(read_topic(source, topic, ends).items()):
        lane = Lane(flow.name, topic, partition)
        mine, arrived = orphans.get(partition, []), there.get(partition, [])
        gone = {each.offset for each in mine}
        rest = [each for each in written if each.offset not in gone]
        found = [compare(rest, arrived), *([compare(mine, aside.get(partition, []))] if policy == "quarantine" else [])]
        missing = Counter(each.content for each in mine) - Counter(each.content for each in rest)
        kept[partition] = [each.offset for each in rest]
        originals[partition] = {target.offset: source.offset for source, target in found[0].pairs}
        mistranslated = _mistranslated(chains, lane, kept[partition], found[0], end=ends[partition])
        lost = missing.total() if policy == "replay" else 0
        rows.append(_row(lane, (len(written), len(arrived)), found, mistranslated=mistranslated, lost=lost))
    return TopicAudit(rows=rows, upstream=kept, upstream_of=originals)


def _mistranslated(
    chains: Chains, lane: Lane, upstream: Sequence[int], found: Comparison, *, end: int, seed: int = 0, begin: int = 0
) -> int:
    places = {source.offset: target.offset for source, target in found.pairs}
    seed += lane.partition
    return count_mistranslated(chains, lane, upstream=upstream, places=places, end=end, seed=seed, begin=begin)


def _row(
    lane: Lane, records: tuple[int, int], found: Iterable[Comparison], *, mistranslated: int, lost: int = 0
) -> PartitionAudit:
    sums = Counter(lost=lost)
    for each in found:
        sums.update({finding: getattr(each, finding) for finding in OF_RECORDS})
    return PartitionAudit(
        flow=str(lane.flow),
        topic=lane.topic,
        partition=lane.partition,
        source=records[0],
        target=records[1],
        **{finding: sums[finding] for finding in OF_RECORDS},
        mistranslated=mistranslated,
    )


# Offset translation compared with the places of records: every upstream offset of a lane


class LoadedChains:
    """The newest generation of one lane's chain, read once. It has the reads of `Chains`, and no writes."""

    def __init__(self, chains: Chains, lane: Lane) -> None:
        self._head = chains.heads([lane])[lane]
        self._links: list[Link] = []
        at = -1
        while page := chains.after(lane, self._head.generation, at, limit=PAGE):
            self._links += page
            at = page[-1].position
        self._positions = [link.position for link in self._links]

    def heads(self, lanes: Iterable[Lane]) -> dict[Lane, Head]:
        """See `Chains.heads`."""
        return dict.fromkeys(lanes, self._head)

    def at_or_before(
        self,
        lane: Lane,  # noqa: ARG002  the port's arguments
        generation: int,  # noqa: ARG002  same
        upstream: int,
        *,
        head: Head | None = None,  # noqa: ARG002  same
    ) -> Link | None:
        """See `Chains.at_or_before`."""
        count = bisect_right(self._positions, upstream)
        return self._links[count - 1] if count else None

    def after(
        self,
        lane: Lane,  # noqa: ARG002  same
        generation: int,  # noqa: ARG002  same
        upstream: int,
        *,
        limit: int,
        head: Head | None = None,  # noqa: ARG002  same
    ) -> list[Link]:
        """See `Chains.after`."""
        first = bisect_right(self._positions, upstream)
        return self._links[first : first + limit]

    def offset_map(self) -> OffsetMap:
        """The product's own translation on these links; it only reads."""
        return OffsetMap(cast("Chains", self))


class Expected(NamedTuple):
    """What the map has to answer about one upstream offset."""

    upstream: int
    downstream: int
    kind: Literal["record", "gap", "end", "beyond"]
    """
    record  it stands there, and is found back from there
    gap     no record: the next one that exists
    end     right behind the last record: the end of the map, and back from there
    beyond  what lies between there and the stable end: the end of the map, whether or not a batch came by since
    """


def expectations(upstream: Sequence[int], places: Mapping[int, int], *, end: int, begin: int = 0) -> Iterator[Expected]:
    """Every upstream offset of a lane from `begin` up to `end`, with its true place downstream.

    Records without a partner have no place, nor has a gap before one: those are findings of another kind.
    """
    at = begin
    after_last: int | None = None
    for offset in upstream:
        place = places.get(offset)
        after_last = None if place is None else place + 1
        if place is not None:
            for gap in _thinned(range(at, offset)):
                yield Expected(gap, place, "gap")
            yield Expected(offset, place, "record")
        at = offset + 1
    if after_last is not None:
        yield Expected(at, after_last, "end")
        for beyond in _thinned(range(at + 1, end + 1)):
            yield Expected(beyond, after_last, "beyond")


def count_mistranslated(
    chains: Chains,
    lane: Lane,
    *,
    upstream: Sequence[int],
    places: Mapping[int, int],
    end: int,
    seed: int,
    begin: int = 0,
) -> int:
    """How many upstream offsets the map places wrongly, or does not find back; each counts once.

    Args:
        chains: the store.
        lane: whose chain translates.
        upstream: offsets of the lane's visible records, growing.
        places: those of them that arrived, each with its downstream offset.
        end: the source's last stable offset.
        seed: of the sample that goes through the store.
        begin: the first upstream offset of the chain's newest generation.
    """
    expected = list(expectations(upstream, places, end=end, begin=begin))
    loaded = LoadedChains(chains, lane).offset_map()
    wrong = {each.upstream for each in expected if not _holds(loaded, lane, each)}
    stored = OffsetMap(chains)
    sample = Random(seed).sample(expected, min(SAMPLE, len(expected)))  # noqa: S311 -- a sample, not a secret
    return len(wrong | {each.upstream for each in sample if not _holds(stored, lane, each)})


def _thinned(gap: range) -> Iterable[int]:
    """All of a gap; of a huge one, as retention leaves behind, both ends."""
    return gap if len(gap) <= 2 * GAP_ENDS else (*gap[:GAP_ENDS], *gap[-GAP_ENDS:])


def _holds(offsets: OffsetMap, lane: Lane, expected: Expected) -> bool:
    there = offsets.downstream(lane, expected.upstream)
    if there.offset != expected.downstream or there.state not in STATES[expected.kind]:
        return False
    if expected.kind in {"gap", "beyond"}:
        return True
    back = offsets.upstream(lane, expected.downstream)
    if expected.kind == "record":
        return back == Translation(offset=expected.upstream, state="exact")
    # The way back from the end leads to the lane's position: quarantined records may lie before it.
    return back.state == "exact" and back.offset is not None and back.offset >= expected.upstream


# Before an audit, and after it


def wait_until_replicated(
    lab: Lab, mappings: Iterable[FlowMapping], *, deadline: float, over: threading.Event | None = None
) -> None:
    """Wait until every mapping has committed everything that its source topic holds; producers are done.

    Args:
        lab: where the mappings run.
        mappings: those to wait for.
        deadline: on the clock of `time.monotonic`.
        over: set to end the wait before.

    Raises:
        TimeoutError: naming the mapping and its lag by partition, or what its cluster says.
    """
    for mapping in mappings:
        if obstacle := wait_for(partial(_obstacle, lab, mapping), seconds=deadline - time.monotonic(), over=over):
            raise TimeoutError(f"{mapping.flow} {mapping.topic} is not replicated in time: {obstacle}")


def _obstacle(lab: Lab, mapping: FlowMapping) -> str:
    """Why a mapping is not done; empty when it is."""
    try:
        lag = lab.mappings.lag(mapping.uuid)
    except KafkaException as exc:
        return str(exc)  # a killed broker is on its way back; the deadline decides
    if not lag:
        return "its partitions are not known yet"
    left = {partition: offsets for partition, offsets in lag.items() if offsets}
    return f"offsets to go, by partition: {left}" if left else ""


class TopicArrival:
    """The records of one topic, whose producers are done, and how far their positions are, whoever replicates them."""

    def __init__(self, lab: Lab, flow: Flow, topic: str, *, over: threading.Event) -> None:
        """Args: flow: with clusters at addresses that nothing stands before. over: set to end a wait before."""
        self._over = over
        self._flow = flow
        self._topic = topic
        self._chains = DynamoDbChains(lab.dynamodb.client(), lab.tables.offset_map)
        self._last: Mapping[int, int] | None = None
        """The offset behind the last visible record of each partition."""

    def wait(self, deadline: float) -> None:
        """Wait until everything is replicated.

        Args:
            deadline: on the clock of `time.monotonic`.

        Raises:
            TimeoutError: with the offsets that are missing, or what a server says.
        """
        if obstacle := wait_for(self._obstacle, seconds=deadline - time.monotonic(), every=0.2, over=self._over):
            raise TimeoutError(f"{self._flow.name} {self._topic} is not replicated in time: {obstacle}")

    def _obstacle(self) -> str:
        """Why the topic is not replicated; empty when it is."""
        try:
            if self._last is None:
                self._last = self._visible()
            lanes = {partition: Lane(self._flow.name, self._topic, partition) for partition in self._last}
            heads = self._chains.heads(lanes.values())
        except Retriable as exc:
            return str(exc)  # a killed server is on its way back; the deadline decides
        left = {
            partition: f"{heads[lane].position} of {self._last[partition]}"
            for partition, lane in lanes.items()
            if heads[lane].position < self._last[partition]
        }
        return f"positions, by partition: {left}" if left else ""

    def _visible(self) -> dict[int, int]:
        source = addresses(self._flow.source)
        records = read_topic(source, self._topic, stable_ends(source, self._topic))
        return {partition: found[-1].offset + 1 for partition, found in records.items() if found}


def totals(rows: Iterable[PartitionAudit]) -> dict[str, int]:
    """`records` of the source, and each kind of finding, over all rows."""
    rows = list(rows)
    sums = {finding: sum(getattr(row, finding) for row in rows) for finding in FINDINGS}
    return {"records": sum(row.source for row in rows), **sums}


def table(rows: Iterable[PartitionAudit]) -> Table:
    """The rows and their totals, for a terminal: what is not 0 stands out."""
    rows = list(rows)
    shown = Table(title="every record, read back from both clusters", title_justify="left", show_footer=True)
    shown.add_column("flow", "total", no_wrap=True)
    shown.add_column("topic-partition", no_wrap=True)
    sums = totals(rows)
    for name, count in (("source", sums["records"]), ("target", sum(row.target for row in rows))):
        shown.add_column(name, f"{count:,}", justify="right")
    for finding in FINDINGS:
        shown.add_column(finding, _marked(sums[finding]), justify="right")
    for row in rows:
        findings = (_marked(getattr(row, finding)) for finding in FINDINGS)
        shown.add_row(row.flow, f"{row.topic}-{row.partition}", f"{row.source:,}", f"{row.target:,}", *findings)
    return shown


def _marked(count: int) -> str:
    return f"[bold red]{count:,}[/]" if count else "0"
