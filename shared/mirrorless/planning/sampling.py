"""Rates of topics from samples: log ends at several moments, and a few records of each topic.

An offset is not always a record: transactions leave markers, and compaction leaves gaps. How many records there are to
an offset is taken from the records that were read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Final, Protocol

from mirrorless.errors import Retriable
from mirrorless.planning.rates import TYPICAL_RECORD_BYTES, TopicRate
from mirrorless.ports.kafka import TopicPartition

LOOKS: Final = 6
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
        wait: until the next look; it may show progress.

    Raises:
        Retriable: the cluster does not answer, or one of the topics went away.
    """
    places = [(topic, partition) for topic, count in partitions.items() for partition in range(count)]
    looks = [EndsAt(seconds=clock(), ends=source.ends(places))]
    begun = looks[0].seconds
    for part in range(1, LOOKS + 1):
        wait(max(0.0, begun + seconds * part / LOOKS - clock()))
        looks.append(EndsAt(seconds=clock(), ends=source.ends(places)))
    last = looks[-1].ends
    if missing := [topic for topic in partitions if not any((topic, p) in last for p in range(partitions[topic]))]:
        raise Retriable(f"the ends of {len(missing)} topics are not known, {missing[0]} among them", where="source")
    samples = source.sample(ranges_to_sample(partitions, looks))
    return _measured(partitions, looks, samples)


def ranges_to_sample(partitions: Mapping[str, int], looks: Sequence[EndsAt]) -> dict[TopicPartition, tuple[int, int]]:
    """The newest offsets of the partitions of each topic that grew most, if they hold any."""
    first, last = looks[0].ends, looks[-1].ends
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
    partitions: Mapping[str, int], looks: Sequence[EndsAt], samples: Mapping[str, RecordSample]
) -> SampledRates:
    elapsed = looks[-1].seconds - looks[0].seconds
    sizes = [sample.bytes / sample.records for sample in samples.values() if sample.records]
    typical = fmean(sizes) if sizes else TYPICAL_RECORD_BYTES
    topics, unseen = [], []
    for topic, count in partitions.items():
        places = [(topic, partition) for partition in range(count)]
        grown = _sum_grown(places, looks[0], looks[-1])
        sample = samples.get(topic, RecordSample())
        if grown and not sample.records:
            unseen.append(topic)
        average = sample.bytes / sample.records if sample.records else typical
        density = sample.records / sample.offsets if sample.offsets else 1.0
        records = grown * density / elapsed if elapsed else 0.0
        fastest = max(
            (
                _sum_grown(places, a, b) * density / (b.seconds - a.seconds)
                for a, b in pairwise(looks)
                if b.seconds > a.seconds
            ),
            default=0.0,
        )
        # Records without a byte are still records: a rate of bytes above 0 keeps them in the plan.
        size = max(1.0, average)
        topics.append(
            TopicRate(
                topic=topic,
                partitions=count,
                records_per_second=records,
                bytes_per_second=records * size,
                average_record_bytes=size,
                peak_bytes_per_second=max(records, fastest) * size,
                largest_record_bytes=sample.largest,
                average_batch_bytes=sample.batch_bytes / sample.batches if sample.batches else 0.0,
            )
        )
    return SampledRates(topics=tuple(topics), seconds=elapsed, unseen=tuple(unseen))


def _sum_grown(places: Iterable[TopicPartition], before: EndsAt, after: EndsAt) -> int:
    return sum(_grown(place, before.ends, after.ends) for place in places)


def _grown(
    place: TopicPartition,
    before: Mapping[TopicPartition, tuple[int, int]],
    after: Mapping[TopicPartition, tuple[int, int]],
) -> int:
    """Offsets that were added. A partition that was missing once, or was created anew, counts as silent."""
    if place not in before or place not in after:
        return 0
    return max(0, after[place][1] - before[place][1])
