"""The upstream offset behind the last record that the target has, found in the source's log by the records themselves.

For a lane whose map no longer says where it ends. The last records of the remote partition are held against the
source's: by all that they are, and by those before them where one stands at several places. Records that the flow left
out may lie between.

Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorless.records.record import Headers, Record

TAIL: Final = 20
"""Records of the target that are compared, at most."""

LEFT_OUT: Final = 100
"""Records of the source that may lie between those."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the last record of a tail stands in the source's log: at the first offset, and at others up to the last."""

    first: int
    last: int

    @property
    def one(self) -> bool:
        """Whether there is one place."""
        return self.first == self.last


def places_of(tail: Sequence[Record], source: Iterable[Record], *, timed: bool) -> Places | None:
    """The upstream offsets of a tail's last record with the most of the tail before them; None where it is not there.

    Args:
        tail: the last records of the target, in order; one at least.
        source: the records of the source as they are copied, in order.
        timed: whether timestamps count. A remote topic with `LogAppendTime` has others.
    """
    wanted = [_content(record, timed=timed) for record in tail]
    before: deque[_Content] = deque(maxlen=len(tail) + LEFT_OUT)
    found, most = None, 0
    for record in source:
        content = _content(record, timed=timed)
        before.append(content)
        if content != wanted[-1]:
            continue
        alike = _alike(before, wanted)
        if alike > most or found is None:
            found, most = Places(record.offset, record.offset), alike
        elif alike == most:
            found = Places(found.first, record.offset)
    return found


_Content = tuple[int, bytes | None, bytes | None, Headers]


def _content(record: Record, *, timed: bool) -> _Content:
    return record.timestamp if timed else 0, record.key, record.value, record.headers


def _alike(before: deque[_Content], wanted: Sequence[_Content]) -> int:
    """How many of the last records are found before a place, in their order."""
    left = len(wanted)
    for content in reversed(before):
        if left and content == wanted[left - 1]:
            left -= 1
    return len(wanted) - left
