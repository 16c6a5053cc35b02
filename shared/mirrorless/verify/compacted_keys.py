"""Compacted topics are compared by the latest value of each key: older values may be gone.

The two sides are compacted independently, so a digest over offsets cannot hold. Both keep the latest value of a key. A
tombstone that one side has removed already is equal to one that still stands there.

The target is read first and the source after it, to its end: no key can seem ahead. A key whose latest value on the
source is not replicated yet is recognized, and is not judged. Keys are held by hashes, a range of these in each
reading: one reading, where there are no more than can be held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Literal, NamedTuple

from mirrorless.records.record import Record
from mirrorless.verify.comparison import CONTENT_BYTES, RecordAt
from mirrorless.verify.findings import LaneVerdict

HELD_KEYS: Final = 2_000_000
"""Of both sides together, at about 300 bytes each; more of them take more readings."""

KEY_SPACE: Final = 2 ** (8 * CONTENT_BYTES)

KeyVerdict = Literal["same", "pending", "missing", "different", "expired", "not provable"]


class Latest(NamedTuple):
    """The last record of a key on one side."""

    offset: int
    content: bytes
    """See `comparison.content`."""
    tombstone: bool
    pending: bool = False
    """On the source: it has no copy yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Reasons why the latest value of a key may be gone from one side alone."""

    source: bool = False
    """Whether it also deletes old records by time or size."""
    target: bool = False
    """Likewise."""
    behind: bool = False
    """Records of the source were not replicated yet: among them may have been a tombstone that it has removed since."""


def judge_key(source: Latest | None, target: Latest | None, expiry: Expiry) -> KeyVerdict:
    """Judge whether a key's latest values are the same."""
    if source is not None and source.pending:
        return "pending"
    there = source is not None and not source.tombstone
    copied = target is not None and not target.tombstone
    if there and copied and source is not None and target is not None:
        return "same" if source.content == target.content else "different"
    if there:
        # Retention may have taken the copy; a tombstone in its place it cannot have left.
        return "different" if target is not None else "expired" if expiry.target else "missing"
    if copied:
        return "not provable" if source is None and (expiry.source or expiry.behind) else "different"
    if source is not None and target is not None and source.content != target.content:
        return "different"
    return "same"


_WORDS = {
    (True, True): "its key's latest value on the source is another one",
    (True, False): "the source has a value for its key, and the target's is deleted",
    (False, True): "its key is deleted on the source, and has a value on the target",
    (False, False): "its key is deleted on both sides, by different records",
}


def take_key(verdict: LaneVerdict, source: Latest | None, target: Latest | None, expiry: Expiry) -> None:
    """Count a key that is not the same on both sides."""
    match judge_key(source, target, expiry):
        case "missing":
            verdict.find_one("missing", source, target, "the source has a value for its key, and the target has none")
        case "different":
            there = source is not None and not source.tombstone
            copied = target is not None and not target.tombstone
            verdict.find_one("different", source, target, _WORDS[there, copied])
        case "expired":
            verdict.counts.expired += 1
        case "not provable":
            verdict.counts.not_provable += 1
        case "pending":
            verdict.counts.keys_pending += 1
        case "same":
            pass


@dataclass(slots=True, kw_only=True)
class HeldKeys:
    """The latest records of some keys on both sides: those whose hash is in a range, as many as may be held."""

    first: int
    width: int
    source: dict[int, Latest] = field(default_factory=dict)
    target: dict[int, Latest] = field(default_factory=dict)

    def take(self, records: Iterable[Record], side: dict[int, Latest]) -> None:
        """Take the next records of a side. A compacted topic takes none without a key, and removes older ones."""
        for record in records:
            if record.key is None:
                continue
            lot = int.from_bytes(sha256(record.key).digest()[:CONTENT_BYTES]) - self.first
            if 0 <= lot < self.width:
                side[lot] = Latest(record.offset, RecordAt.of(record).content, record.value is None)
                if len(self.source) + len(self.target) > HELD_KEYS:
                    self._hold_fewer()

    def _hold_fewer(self) -> None:
        while len(self.source) + len(self.target) > HELD_KEYS:
            self.width //= 2
            for side in (self.source, self.target):
                for each in [each for each in side if each >= self.width]:
                    del side[each]

    def judge(self, verdict: LaneVerdict, expiry: Expiry, position: int) -> None:
        """Judge all of them. Args: position: upstream; what stands there or behind has no copy yet."""
        lots = self.source.keys() | self.target.keys()
        for lot in lots:
            ours = self.source.get(lot)
            pending = ours is not None and ours.offset >= position
            take_key(verdict, ours._replace(pending=True) if ours and pending else ours, self.target.get(lot), expiry)
        verdict.counts.keys += len(lots)


def every_key(
    target: Callable[[], Iterable[Iterable[Record]]], source: Callable[[], Iterable[Iterable[Record]]]
) -> Iterator[HeldKeys]:
    """All keys of both sides, some in each reading. Args: target, source: read a side from its first record on."""
    first, width = 0, KEY_SPACE
    while first < KEY_SPACE:
        held = HeldKeys(first=first, width=width)
        for records in target():
            held.take(records, held.target)
        for records in source():
            held.take(records, held.source)
        yield held
        first, width = first + held.width, held.width
