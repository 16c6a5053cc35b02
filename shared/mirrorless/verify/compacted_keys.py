"""The verification of compacted topics by the latest value of each key: older values may be gone.

The two sides are compacted independently, so a digest over offsets cannot hold. Both keep the latest value of a key. A
tombstone that one side has removed already is equal to one that still stands there.

The target is read first, beyond the position of the chain that was read before; the source after it, to its end. So a
key whose latest value on the source is not replicated yet is recognized, and is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.verify.findings import Finding, LaneVerdict

KeyVerdict = Literal["same", "pending", "missing", "different", "expired", "not provable"]


class Latest(NamedTuple):
    """The last record of a key on one side."""

    offset: int
    content: bytes
    """See `comparison.content`."""
    tombstone: bool
    pending: bool = False
    """On the source: at or above the lane's position."""


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
            _find(verdict, "missing", source, target, "the source has a value for its key, and the target has none")
        case "different":
            there = source is not None and not source.tombstone
            copied = target is not None and not target.tombstone
            _find(verdict, "different", source, target, _WORDS[there, copied])
        case "expired":
            verdict.counts.expired += 1
        case "not provable":
            verdict.counts.not_provable += 1
        case "pending":
            verdict.counts.keys_pending += 1
        case "same":
            pass


def _find(
    verdict: LaneVerdict,
    kind: Literal["missing", "different"],
    source: Latest | None,
    target: Latest | None,
    what: str,
) -> None:
    verdict.find(
        Finding(
            kind=kind,
            generation=verdict.generation,
            upstream=None if source is None else OffsetRange(source.offset, source.offset + 1),
            downstream=None if target is None else OffsetRange(target.offset, target.offset + 1),
            records=1,
            what=what,
        )
    )
