"""Rates of topics, measured or from a file.

The file is CSV, one topic in a row, below a row with these names:

    topic,partitions,records_per_second,bytes_per_second,average_record_bytes,peak_bytes_per_second
    orders,6,1200,1200000,1000,3000000

A last column, `average_batch_bytes`, may follow.

Rates of topics from samples: log ends at several moments, and a few records of each topic.

An offset is not always a record: transactions leave markers, and compaction leaves gaps. How many records there are to
an offset is taken from the records that were read.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import inf, log
from statistics import fmean
from typing import Any, Final, Protocol

from mirrorless.cost.bill import ReplicationLoad
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.policy import is_legal_topic
from mirrorless.ports.kafka import TopicPartition

MAPPED_RECORD_BYTES: Final = 4_400_000
"""Of the largest record that fits into an event, about: it is base64 in 6 MB of JSON."""

TYPICAL_RECORD_BYTES: Final = 1_000
"""Taken where no record of a topic was seen."""

_TOLERANCE: Final = 0.1
"""By which bytes a second may differ from records times their average, since each is rounded."""

_STEP: Final = 1.25
"""Two rates that differ by less are taken for the same."""

_MOST: Final = 1e15
"""Of any rate: more is a slip of the pen, and would overflow."""

_REPORTED: Final = 20
"""Bad rows that an error names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRate:
    """What a topic carries. Bytes are those of keys, values and headers, uncompressed."""

    topic: str
    partitions: int
    records_per_second: float
    bytes_per_second: float
    average_record_bytes: float
    peak_bytes_per_second: float
    """In the part of the window with the most."""
    largest_record_bytes: int = 0
    """Of those that were read; 0 where none was."""
    average_batch_bytes: float = 0.0
    """Of its producers' batches as they lie in the log, compressed; 0 where that is not known."""

    @property
    def needs_schedule(self) -> bool:
        """Whether it has records that no event of a mapping can carry."""
        return max(self.largest_record_bytes, self.average_record_bytes) > MAPPED_RECORD_BYTES

    def load(self) -> ReplicationLoad:
        """The topic as a workload of the cost model."""
        return whole([self])


COLUMNS: Final = tuple(each.name for each in fields(TopicRate))[:6]
"""Of the file."""

BATCH_COLUMN: Final = "average_batch_bytes"
"""May follow them."""


class InvalidRates(ConfigurationError):
    """A file of rates has bad rows; the message names each with its line."""


def read_rates(
    text: str, *, origin: str, refused: Callable[[str], str | None] = lambda _: None
) -> tuple[TopicRate, ...]:
    """Read the rates of a file.

    Args:
        text: the file's.
        origin: its name, for errors.
        refused: says why the flow does not replicate a topic; None where it does.

    Raises:
        InvalidRates: with every bad row.
    """
    problems: list[str] = []
    rows = _rows(text, problems)
    if not rows:
        raise _invalid(problems or ["line 1: the file is empty"], origin)
    line, header = rows[0]
    names = tuple(header)
    if names not in (COLUMNS, (*COLUMNS, BATCH_COLUMN)):
        raise _invalid([f"line {line}: the first row must be {','.join(COLUMNS)}"], origin)
    found: dict[str, tuple[int, TopicRate]] = {}
    for line, cells in rows[1:]:
        try:
            rate = _rate(cells, names, refused)
        except ValueError as exc:
            problems.append(f"line {line}: {exc}")
            continue
        if rate.topic in found:
            problems.append(f"line {line}: topic {rate.topic!r} has a row already, on line {found[rate.topic][0]}")
        else:
            found[rate.topic] = line, rate
    if not found and not problems:
        problems.append(f"line {rows[-1][0]}: no topic follows the names of the columns")
    if problems:
        raise _invalid(problems, origin)
    return tuple(rate for _, rate in found.values())


def flow_loads(rates: Iterable[TopicRate]) -> list[ReplicationLoad]:
    """The workloads of topics. Those that differ by less than a step are one: a flow may have thousands."""
    alike: dict[tuple[int, ...], list[TopicRate]] = {}
    for rate in rates:
        load = rate.load()
        kind = (rate.partitions, *(_step(each) for each in (load.records_per_topic, load.record_bytes, load.peak)))
        alike.setdefault(kind, []).append(rate)
    return [whole(topics) for topics in alike.values()]


def whole(rates: Sequence[TopicRate]) -> ReplicationLoad:
    """Topics as one workload that they share evenly."""
    size = sum(rate.bytes_per_second for rate in rates)
    records = sum(rate.records_per_second for rate in rates)
    return ReplicationLoad(
        mb_per_second=size / 1e6,
        record_bytes=size / records if records else TYPICAL_RECORD_BYTES,
        topics=len(rates),
        partitions=max(1, round(sum(rate.partitions for rate in rates) / len(rates))),
        peak=sum(rate.peak_bytes_per_second for rate in rates) / size if size else 1.0,
    )


def _step(value: float) -> int:
    return round(log(value) / log(_STEP)) if value > 0 else -1_000_000


def _rows(text: str, problems: list[str]) -> list[tuple[int, list[str]]]:
    """The rows that are not empty, with their lines; where the text is no CSV, a problem more."""
    reader = csv.reader(text.removeprefix("\ufeff").splitlines(keepends=True), strict=True)
    found = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                found.append((reader.line_num, cells))
    except csv.Error as exc:
        problems.append(f"line {reader.line_num}: this is not CSV: {exc}")
    return found


def _rate(cells: Sequence[str], names: Sequence[str], refused: Callable[[str], str | None]) -> TopicRate:
    """One row.

    Raises:
        ValueError: saying what is wrong with it.
    """
    if len(cells) != len(names):
        raise ValueError(f"{len(cells)} values instead of {len(names)}")
    topic, partitions = cells[:2]
    if not is_legal_topic(topic):
        raise ValueError(f"{topic!r} is no name of a topic")
    if cause := refused(topic):
        raise ValueError(f"topic {topic!r}: {cause}")
    if not re.fullmatch(r"[1-9]\d{0,5}", partitions, re.ASCII):
        raise ValueError(f"partitions: {partitions!r} is no whole number from 1 on")
    numbers: dict[str, Any] = dict(map(_number, names[2:], cells[2:]))
    rate = TopicRate(topic=topic, partitions=int(partitions), **numbers)
    records, size, average = rate.records_per_second, rate.bytes_per_second, rate.average_record_bytes
    if (records > 0) != (size > 0):
        raise ValueError("records_per_second and bytes_per_second: one of them is 0 and the other is not")
    if abs(size - records * average) > _TOLERANCE * size + 1:
        of_records = f"{records:g} records a second of {average:g} bytes are {records * average:g}"
        raise ValueError(f"bytes_per_second is {size:g}, and {of_records}")
    if (peak := rate.peak_bytes_per_second) < size:
        raise ValueError(f"peak_bytes_per_second is {peak:g}, which is less than bytes_per_second, {size:g}")
    return rate


def _number(name: str, cell: str) -> tuple[str, float]:
    try:
        value = float(cell)
    except ValueError:
        value = inf
    if not 0 <= value <= _MOST or "_" in cell:
        raise ValueError(f"{name}: {cell!r} is no number from 0 on")
    return name, value


def _invalid(problems: Sequence[str], origin: str) -> InvalidRates:
    more = f"; and {len(problems) - _REPORTED} more" if len(problems) > _REPORTED else ""
    hint = f"correct the rows; the columns are {','.join(COLUMNS)}, and {BATCH_COLUMN} if you like"
    return InvalidRates("; ".join(problems[:_REPORTED]) + more, where=origin, hint=hint)


READS: Final = 6
"""Parts of a window; the one with the most bytes is the peak."""

SAMPLED_PARTITIONS: Final = 3
"""Of a topic, from which records are read."""

SAMPLED_OFFSETS: Final = 50
"""The newest of each such partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSample:
    """Some records of one topic."""

    records: int = 0
    offsets: int = 0
    """Between the first and the last of them, in each partition."""
    bytes: int = 0
    """Of keys, values and headers."""
    largest: int = 0
    batches: int = 0
    """That hold some of them; 0 where none could be read whole."""
    batch_bytes: int = 0
    """Of those batches, as they lie in the log."""


class RateSource(Protocol):
    """The source cluster, as far as a sample needs it. Its methods raise Retriable where it does not answer."""

    def ends(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """The first offset of each partition and the end that `read_committed` sees; one that is gone is left out."""
        ...

    def sample(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[str, RecordSample]:
        """Records of each topic in ranges of offsets [first, end); a topic that showed none in time is left out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsAt:
    """The ends of logs at one moment."""

    seconds: float
    """On any clock."""
    ends: Mapping[TopicPartition, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRates:
    """Rates that were measured."""

    topics: tuple[TopicRate, ...]
    seconds: float
    """Of the window, from its first list of ends to its last."""
    unseen: tuple[str, ...]
    """Topics with new offsets of which no record was read: a typical size was taken."""


def sample_rates(
    source: RateSource,
    partitions: Mapping[str, int],
    *,
    seconds: float,
    clock: Callable[[], float],
    wait: Callable[[float], None],
) -> SampledRates:
    """Measure the rates of topics.

    Args:
        source: their cluster.
        partitions: of each topic.
        seconds: of the window.
        clock: seconds, steady.
        wait: until the next read; it may show progress.

    Raises:
        Retriable: the cluster does not answer, or one of the topics went away.
    """
    places = [(topic, partition) for topic, count in partitions.items() for partition in range(count)]
    reads = [EndsAt(seconds=clock(), ends=source.ends(places))]
    begun = reads[0].seconds
    for part in range(1, READS + 1):
        wait(max(0.0, begun + seconds * part / READS - clock()))
        reads.append(EndsAt(seconds=clock(), ends=source.ends(places)))
    last = reads[-1].ends
    if missing := [topic for topic in partitions if not any((topic, p) in last for p in range(partitions[topic]))]:
        raise Retriable(f"the ends of {len(missing)} topics are not known, {missing[0]} among them", where="source")
    samples = source.sample(ranges_to_sample(partitions, reads))
    return _measured(partitions, reads, samples)


def ranges_to_sample(partitions: Mapping[str, int], reads: Sequence[EndsAt]) -> dict[TopicPartition, tuple[int, int]]:
    """The newest offsets of the partitions of each topic that grew most, if they hold any."""
    first, last = reads[0].ends, reads[-1].ends
    found: dict[TopicPartition, tuple[int, int]] = {}
    for topic, count in partitions.items():
        places = [(topic, partition) for partition in range(count) if (topic, partition) in last]
        held = [place for place in places if last[place][1] > last[place][0]]
        held.sort(key=lambda place: _grown(place, first, last), reverse=True)
        for place in held[:SAMPLED_PARTITIONS]:
            start, end = last[place]
            found[place] = (max(start, end - SAMPLED_OFFSETS), end)
    return found


def _measured(
    partitions: Mapping[str, int], reads: Sequence[EndsAt], samples: Mapping[str, RecordSample]
) -> SampledRates:
    sizes = [sample.bytes / sample.records for sample in samples.values() if sample.records]
    typical = fmean(sizes) if sizes else TYPICAL_RECORD_BYTES
    seen = {topic: samples.get(topic, RecordSample()) for topic in partitions}
    topics = tuple(_measured_rate(topic, count, reads, seen[topic], typical) for topic, count in partitions.items())
    unseen = tuple(rate.topic for rate in topics if rate.records_per_second and not seen[rate.topic].records)
    return SampledRates(topics=topics, seconds=reads[-1].seconds - reads[0].seconds, unseen=unseen)


def _measured_rate(
    topic: str, partitions: int, reads: Sequence[EndsAt], sample: RecordSample, typical: float
) -> TopicRate:
    places = [(topic, partition) for partition in range(partitions)]
    density = sample.records / sample.offsets if sample.offsets else 1.0
    whole_and_parts = ((reads[0], reads[-1]), *pairwise(reads))
    records = [
        sum(_grown(place, a.ends, b.ends) for place in places) * density / (b.seconds - a.seconds)
        for a, b in whole_and_parts
        if b.seconds > a.seconds
    ] or [0.0]
    # Records without a byte are still records: a rate of bytes above 0 keeps them in the plan.
    size = max(1.0, sample.bytes / sample.records if sample.records else typical)
    return TopicRate(
        topic=topic,
        partitions=partitions,
        records_per_second=records[0],
        bytes_per_second=records[0] * size,
        average_record_bytes=size,
        peak_bytes_per_second=max(records) * size,
        largest_record_bytes=sample.largest,
        average_batch_bytes=sample.batch_bytes / sample.batches if sample.batches else 0.0,
    )


def _grown(
    place: TopicPartition,
    before: Mapping[TopicPartition, tuple[int, int]],
    after: Mapping[TopicPartition, tuple[int, int]],
) -> int:
    """Offsets that were added. A partition that was missing once, or was created anew, counts as silent."""
    if place not in before or place not in after:
        return 0
    return max(0, after[place][1] - before[place][1])
