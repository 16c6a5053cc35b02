"""The difference between a record and its original, in words and without content.

Reports are kept, and read by people who may not read the records: a difference names the part, the place and sizes.
"""

from __future__ import annotations

from mirrorless.protocol.digest import fingerprint
from mirrorless.record import Headers, Record
from mirrorless.run import Run


def differs(original: Record, copy: Record) -> str:
    """Every part that differs; empty when none does."""
    parts = []
    if original.key != copy.key:
        parts.append(_bytes("key", original.key, copy.key))
    if original.value != copy.value:
        parts.append(_bytes("value", original.value, copy.value))
    if original.headers != copy.headers:
        parts.append(_headers(original.headers, copy.headers))
    if original.timestamp != copy.timestamp:
        parts.append(f"timestamp {original.timestamp} has become {copy.timestamp}")
    return "; ".join(parts)


def suspicion(run: Run, records: list[Record]) -> str:
    """The evidence about a run whose digest does not hold, where the originals are gone."""
    evidence = ["the digest of its run does not hold, and the source does not have the originals any more"]
    outside = [each.offset for each in records if not run.oldest_timestamp <= each.timestamp <= run.newest_timestamp]
    if outside:
        evidence.append(
            f"{len(outside)} timestamps are outside of the run's, the first at downstream offset {outside[0]}"
        )
    if records and records[-1].offset == run.last_downstream:
        same = fingerprint(records[-1]) == run.fingerprint
        evidence.append(f"its last record is {'the right one' if same else 'another one'} by key, value and headers")
    return "; ".join(evidence)


def _bytes(name: str, original: bytes | None, copy: bytes | None) -> str:
    if original is None or copy is None or not original or not copy:
        return f"{name} {_size(original)} has become {_size(copy)}"
    shorter = min(len(original), len(copy))
    at = next((i for i in range(shorter) if original[i] != copy[i]), shorter)
    sizes = (
        f"of {len(original)} bytes" if len(original) == len(copy) else f"{len(original)} bytes have become {len(copy)}"
    )
    return f"{name} differs from byte {at} on, {sizes}"


def _size(value: bytes | None) -> str:
    if value is None:
        return "null"
    return f"of {len(value)} bytes" if value else "empty"


def _headers(original: Headers, copy: Headers) -> str:
    names, copied = [name for name, _ in original], [name for name, _ in copy]
    if names == copied:
        at = next(i for i, (one, other) in enumerate(zip(original, copy, strict=True)) if one != other)
        return f"header {at + 1} of {len(names)}: " + _bytes("value", original[at][1], copy[at][1])
    if sorted(names) == sorted(copied):
        return "headers stand in another order"
    return f"{len(names)} headers have become {len(copied)}, or have other names"
