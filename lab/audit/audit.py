"""The audit: every record once, in order, byte for byte, and every offset translated; both clusters read whole.

Per topic-partition, and in total:

    source, target   visible records (read_committed) on either side
    lost, duplicated, reordered, different   see `verify.comparison`: each fault is of exactly one kind
    mistranslated    upstream offsets that the map places wrongly or does not find back, see `lab.audit.translations`

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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from confluent_kafka import KafkaException
from rich.table import Table

from lab.audit.expected_copies import ExpectedCopies
from lab.audit.log_changes import UNCHANGED, LogChanges, compare_lane
from lab.audit.topic_reader import as_it_is, read_topic, read_whole, stable_ends
from lab.audit.translations import count_mistranslated
from lab.cloud import FlowMapping, Lab, addresses
from lab.waiting import wait_for
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.chain.lane import Lane
from mirrorless.config.flow import Flow
from mirrorless.errors import Retriable
from mirrorless.jobs.request import Policy
from mirrorless.ports.stores import Chains
from mirrorless.reconcile.copy_tasks import ORPHANS_SUFFIX
from mirrorless.verify.comparison import Comparison, RecordAt, compare

OF_RECORDS = ("lost", "duplicated", "reordered", "different")
FINDINGS = (*OF_RECORDS, "mistranslated")


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
        mistranslated = count_mistranslated(
            chains,
            lane,
            upstream=[each.offset for each in upstream if each.offset >= first],
            places={source.offset: target.offset for source, target in found.pairs},
            begin=first,
            end=source_ends.get(partition, 0),
            seed=seed + partition,
        )
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
        mistranslated = count_mistranslated(
            chains,
            lane,
            upstream=kept[partition],
            places={source.offset: target.offset for source, target in found[0].pairs},
            end=ends[partition],
            seed=partition,
        )
        lost = missing.total() if policy == "replay" else 0
        rows.append(_row(lane, (len(written), len(arrived)), found, mistranslated=mistranslated, lost=lost))
    return TopicAudit(rows=rows, upstream=kept, upstream_of=originals)


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
