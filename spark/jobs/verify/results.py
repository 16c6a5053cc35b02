"""The results of a verification in its run's folder: what is proved of each part of a lane, and every finding.

parts/<lane>#<part>.json            what was found in a part: a run that goes on does not read it again
findings/<lane>#<part>.parquet      its findings, where it has some
lanes.parquet                       the counts of every lane
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from mirrorless.jobs.request import lane_file
from mirrorless.ports.stores import JobFiles
from mirrorless.verify.explanation import LeftOvers
from mirrorless.verify.findings import Counts, Finding, LaneVerdict
from mirrorless.verify.parts import LanePart
from mirrorless.verify.task import VerifyTask
from spark.jobs.parquet_rows import write_rows

if TYPE_CHECKING:
    import pyarrow as pa

PARTS: Final = "parts"
LANES: Final = "lanes.parquet"


def part_file(task: VerifyTask, name: str) -> str:
    """The name of the file with what was found in a part."""
    return lane_file(task.topic, task.partition, PARTS, end=f"#{name}.json")


def write_part(files: JobFiles, task: VerifyTask, part: LanePart) -> LanePart:
    """Keep what was found in a part; what the driver needs of it.

    Raises:
        Retriable: the folder's store does not take it.
    """
    write_findings(files, task, part.name, part.verdict.findings)
    part.verdict.show()
    part.left_count = len(part.left)
    files.write(part_file(task, part.name), msgspec.json.encode(part))
    return light(part)


def light(part: LanePart) -> LanePart:
    """A part without its records that have no partner: the folder has them."""
    return msgspec.structs.replace(part, left=LeftOvers())


def read_part(files: JobFiles, task: VerifyTask, name: str) -> LanePart | None:
    """What was found in a part before; None where it was not done yet."""
    text = files.read(part_file(task, name))
    return None if text is None else msgspec.json.decode(text, type=LanePart)


def write_findings(files: JobFiles, task: VerifyTask, name: str, findings: Sequence[Finding]) -> None:
    """Write findings of a lane, where there are some. Args: name: what they are of, unique in the lane."""
    if not findings:
        return
    rows = [
        {
            "topic": task.topic,
            "partition": task.partition,
            "kind": each.kind,
            "generation": each.generation,
            "upstream_first": None if each.upstream is None else each.upstream.first,
            "upstream_next": None if each.upstream is None else each.upstream.next,
            "downstream_first": None if each.downstream is None else each.downstream.first,
            "downstream_next": None if each.downstream is None else each.downstream.next,
            "records": each.records,
            "what": each.what,
        }
        for each in findings
    ]
    write_rows(
        files, lane_file(task.topic, task.partition, "findings", end=f"#{name}.parquet"), rows, _findings_schema()
    )


def write_lanes(files: JobFiles, verdicts: Sequence[LaneVerdict]) -> None:
    """Write the counts of every lane."""
    plain = (
        "topic",
        "partition",
        "state",
        "error",
        "generation",
        "position",
        "read",
        "bytes",
        "seconds",
        "cpu_seconds",
    )
    rows = [
        {name: getattr(each, name) for name in plain}
        | msgspec.to_builtins(each.counts)
        | {"notes": "; ".join(each.notes)}
        for each in verdicts
    ]
    write_rows(files, LANES, rows, _lanes_schema())


def _findings_schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 -- where there are rows

    offsets = ("upstream_first", "upstream_next", "downstream_first", "downstream_next")
    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("kind", pa.string()),
            ("generation", pa.int64()),
            *((name, pa.int64()) for name in offsets),
            ("records", pa.int64()),
            ("what", pa.string()),
        ]
    )


def _lanes_schema() -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415 -- where there are rows

    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("state", pa.string()),
            ("error", pa.string()),
            *((name, pa.int64()) for name in ("generation", "position", "read", "bytes")),
            *((name, pa.float64()) for name in ("seconds", "cpu_seconds")),
            *((name, pa.int64()) for name in Counts.__struct_fields__),
            ("notes", pa.string()),
        ]
    )
