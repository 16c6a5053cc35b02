"""Entries in their packed form."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mirrorless.chain.entry import (
    NO_ENTRY,
    Entry,
    Place,
    Slice,
    pack_heads,
    pack_links,
    unpack_heads,
    unpack_links,
)
from mirrorless.chain.lane import Lane
from mirrorless.chain.run import Link, Reset, Run, Span
from mirrorless.records.origin import rows_of
from tests.support.chains import FLOW

OFFSETS = st.integers(0, 2**62)
AT = 1_763_686_800_123


@st.composite
def links(draw: st.DrawFn, partition: int) -> Link:
    """A run with spans and gaps, or a reset."""
    lane, generation, position = Lane(FLOW, "orders", partition), draw(st.integers(0, 2**31)), draw(OFFSETS)
    if draw(st.booleans()):
        to, reason = draw(st.integers(0, 2**31)), draw(st.text())
        return Reset(
            lane=lane,
            generation=generation,
            position=position,
            to_generation=to,
            next=draw(OFFSETS),
            reason=reason,
            at=AT,
        )
    spans, upstream, downstream = [], position, draw(OFFSETS)
    for gap, marker, length in draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)))):
        spans.append(Span(upstream + gap, downstream + marker, length))
        upstream, downstream = upstream + gap + length, downstream + marker + length
    size = draw(OFFSETS)
    passed = draw(st.none() | st.integers(0, size))  # None: by records
    return Run(
        lane=lane,
        generation=generation,
        position=position,
        next=upstream + draw(st.integers(0, 9)),
        spans=tuple(spans),
        state="committed",
        writer="writer",
        attempt="attempt",
        fingerprint=draw(st.binary(max_size=8)),
        digest=draw(st.binary(max_size=32)),
        oldest_timestamp=draw(st.integers(-1, 2**42)),
        newest_timestamp=draw(st.integers(-1, 2**42)),
        records=sum(span.length for span in spans),
        bytes=size,
        digest_of="records" if passed is None else "batches",
        passed_bytes=passed or 0,
        quarantined=tuple(sorted(draw(st.sets(st.integers(position, position + 99))))),
        returned=rows_of(sorted(draw(st.sets(st.integers(position, position + 99))))) if passed is None else (),
        request="request",
        settled_at=AT,
        examined=draw(st.just(value=True)),
        throttled_ms=4_200,
    )


@given(st.data())
def test_an_entry_is_unpacked_as_it_was_packed(data: st.DataObject) -> None:
    number = data.draw(st.integers(0, 2**40))
    before = st.integers(0, number - 1) if number else st.nothing()
    partitions = data.draw(st.sets(st.integers(16, 31), min_size=1))
    own = data.draw(st.sets(st.sampled_from(sorted(partitions)), min_size=1))
    entry = Entry(
        slice=Slice(FLOW, "orders", 1),
        number=number,
        state="committed",
        writer="writer",
        attempt="attempt",
        request="request",
        settled_at=AT,
        examined=True,
        throttled_ms=4_200,
        links={partition: data.draw(links(partition)) for partition in own},
        previous={partition: data.draw(before | st.just(NO_ENTRY)) for partition in own},
        heads={
            partition: Place(data.draw(OFFSETS), data.draw(OFFSETS), data.draw(before | st.just(NO_ENTRY)))
            for partition in partitions - own
        },
    )

    unpacked = unpack_links(pack_links(entry), replace(entry, links={}, previous={}, heads={}))

    assert (unpacked.links, unpacked.previous) == (entry.links, entry.previous)
    assert unpack_heads(pack_heads(entry), number) == entry.heads
