"""`mirrorless lanes show FLOW TOPIC PARTITION OFFSET`: a record of the source, such as one that was refused."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cli.args import BadInput
from cli.deployment import DeployedFlows
from cli.output import lane_as_json, moment, print_json
from mirrorless.records.record import Record, size_of

SHOWN_BYTES = 256
"""Of a key, a value or a header; `--to` writes a whole value."""

LINE_BYTES = 16


def run_show(arguments: argparse.Namespace) -> int:
    """Show one record. Only the source is read; nothing is committed."""
    from mirrorless.adapters.kafka.offsets import KafkaOffsets  # noqa: PLC0415 -- commands without Kafka start sooner

    deployment = DeployedFlows.of(arguments)
    lane = deployment.lane(arguments.flow, arguments.topic, arguments.partition)
    source = KafkaOffsets(deployment.settings(lane.flow).source, flow=str(lane.flow))
    record = source.record_from((lane.topic, lane.partition), arguments.offset)
    if record is None or record.offset != arguments.offset:
        following = _following(None if record is None else record.offset, asked=arguments.offset)
        raise BadInput(
            f"the source has no record there that read_committed readers see; {following}",
            where=lane.at(arguments.offset),
            hint="it may be a transaction's marker, aborted, removed by compaction or by retention",
        )
    if arguments.to is not None:
        _write(Path(arguments.to), record.value)
    if arguments.json:
        print_json(lane_as_json(lane) | as_json(record))
        return 0
    print(f"{lane.at(record.offset)}: {size_of(record):,} bytes, written {_written(record)}")
    for line in described(record):
        print(f"  {line}")
    if arguments.to is not None:
        print(f"The value is in {arguments.to}.")
    return 0


def _following(found: int | None, *, asked: int) -> str:
    """Where the search for a record ended: beyond the end of the log it begins at the oldest record."""
    if found is None:
        return "none follows"
    return f"the next record is at {found}" if found > asked else f"the log ends before it, and begins at {found}"


def as_json(record: Record) -> dict[str, Any]:
    """A record for programs: bytes in hexadecimal, the first of them; null is null."""
    return {
        "upstream_offset": record.offset,
        "timestamp": record.timestamp,
        "bytes": size_of(record),
        "headers": [
            {"name": name, "bytes": None if value is None else len(value), "hex": _hex(value)}
            for name, value in record.headers
        ],
        "key_bytes": None if record.key is None else len(record.key),
        "key_hex": _hex(record.key),
        "value_bytes": None if record.value is None else len(record.value),
        "value_hex": _hex(record.value),
    }


def described(record: Record) -> Iterator[str]:
    """Lines about a record for people."""
    yield from _dumped("key", record.key)
    for name, value in record.headers:
        yield from _dumped(f"header {name}", value)
    yield from _dumped("value", record.value)


def _dumped(what: str, content: bytes | None) -> Iterator[str]:
    if content is None:
        yield f"{what}: null"
        return
    more = f", the first {SHOWN_BYTES} of them" if len(content) > SHOWN_BYTES else ""
    yield f"{what}: {len(content):,} bytes{more}"
    for start in range(0, min(len(content), SHOWN_BYTES), LINE_BYTES):
        line = content[start : min(start + LINE_BYTES, SHOWN_BYTES)]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)  # noqa: PLR2004 -- printable ASCII
        yield f"  {start:04x}  {line.hex(' '):<{3 * LINE_BYTES - 1}}  {text}"


def _hex(content: bytes | None) -> str | None:
    return None if content is None else content[:SHOWN_BYTES].hex()


def _written(record: Record) -> str:
    return moment(record.timestamp) if record.timestamp >= 0 else "without a timestamp"


def _write(path: Path, value: bytes | None) -> None:
    if value is None:
        raise BadInput("the record has no value to write: it is a tombstone", where=str(path))
    try:
        with path.open("xb") as file:
            file.write(value)
    except OSError as exc:
        raise BadInput(f"the value cannot be written: {exc.strerror}", where=str(path)) from exc
