"""The digest proves a copy: whatever is changed, however little, it is another one."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mirrorless.protocol.digest import digest, fingerprint
from mirrorless.records.record import Headers, Record

contents = st.none() | st.binary(max_size=6)
headers = st.lists(st.tuples(st.text(max_size=3), contents), max_size=3)
records = st.builds(
    Record,
    offset=st.integers(0, 2**40),
    timestamp=st.integers(-1, 2**50),
    headers=headers,
    key=contents,
    value=contents,
)


@dataclass(frozen=True)
class Known:
    """A pinned sequence: whoever computes the digest, in whatever language and year, gets these bytes."""

    records: tuple[Record, ...]
    digest: str


KNOWN = Known(
    records=(
        Record(offset=41, timestamp=1763686800123, headers=[("trace", b"ab"), ("trace", None)], key=b"k", value=b"v"),
        Record(offset=43, timestamp=-1, headers=[], key=None, value=b""),
        Record(offset=44, timestamp=1763686800200, headers=[("größe", b"")], key=b"", value=None),
    ),
    digest="9838f736b21b4c3369cc278e8df6cd8c79ac508dc3bc34ffdbb3c6cc3f0992ef",
)


def content(record: Record) -> tuple[object, ...]:
    return record.timestamp, record.key, record.value, record.headers


def test_the_digest_of_a_known_sequence_never_changes() -> None:
    """Digests are stored in offset maps; another encoding would need another tag."""
    assert digest(KNOWN.records).hex() == KNOWN.digest


@given(st.lists(records, max_size=5), st.lists(records, max_size=5))
def test_two_sequences_have_one_digest_only_if_they_are_the_same(first: list[Record], second: list[Record]) -> None:
    same = [content(each) for each in first] == [content(each) for each in second]

    assert (digest(first) == digest(second)) == same


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_any_change_of_a_record_and_any_two_in_each_others_place_change_the_digest(
    batch: list[Record], data: st.DataObject
) -> None:
    at, other = data.draw(st.tuples(*[st.integers(0, len(batch) - 1)] * 2))
    changed, swapped = list(batch), list(batch)
    changed[at] = data.draw(st.sampled_from(_changes(batch[at])))
    swapped[at], swapped[other] = batch[other], batch[at]

    assert digest(changed) != digest(batch)
    assert (digest(swapped) == digest(batch)) == (content(batch[at]) == content(batch[other]))


@given(st.lists(records, max_size=5), st.integers(1, 9))
def test_offsets_are_not_part_of_the_digest(batch: list[Record], shift: int) -> None:
    """A reader of the target has downstream offsets only, and must come to the same bytes."""
    assert digest([replace(each, offset=each.offset + shift) for each in batch]) == digest(batch)


@given(records)
def test_a_fingerprint_shows_every_change_of_key_value_and_headers(record: Record) -> None:
    for changed in _changes(record):
        same = changed.timestamp != record.timestamp
        assert (fingerprint(changed) == fingerprint(record)) == same


def _changes(record: Record) -> list[Record]:
    """The record with exactly one thing changed."""
    return [
        replace(record, timestamp=record.timestamp + 1),
        *(replace(record, key=each) for each in _other_contents(record.key)),
        *(replace(record, value=each) for each in _other_contents(record.value)),
        *(replace(record, headers=each) for each in _other_headers(record.headers)),
        *([replace(record, key=record.value, value=record.key)] if record.key != record.value else []),
    ]


def _other_contents(content: bytes | None) -> list[bytes | None]:
    if content is None:
        return [b"", b"\0"]
    flips = [content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :] for i in range(len(content))]
    return [None, content + b"\0", *flips]


def _other_headers(headers: Headers) -> list[Headers]:
    changed: list[Headers] = [[*headers, ("", None)], [*headers, ("", b"")]]
    for i, (name, value) in enumerate(headers):
        rest = headers[:i], headers[i + 1 :]
        changed.append([*rest[0], *rest[1]])
        changed.append([*rest[0], (f"{name}x", value), *rest[1]])
        changed += [[*rest[0], (name, each), *rest[1]] for each in _other_contents(value)]
    return changed + ([headers[::-1]] if headers != headers[::-1] else [])
