"""`lanes show`: a record as people and programs get it."""

from __future__ import annotations

import pytest

from cli.lane_record import SHOWN_BYTES, _following, as_json, described
from mirrorless.record import Record

POISON = Record(
    offset=42,
    timestamp=1_763_700_000_000,
    headers=[("kind", b"\xff\x00A"), ("kind", None), ("empty", b"")],
    key=b"",
    value=bytes(range(256)) * 4,
)


def test_null_and_empty_are_told_apart_and_bytes_are_not_interpreted() -> None:
    lines = list(described(POISON))

    assert lines[:5] == [
        "key: 0 bytes",
        "header kind: 3 bytes",
        f"  0000  {'ff 00 41':<47}  ..A",
        "header kind: null",
        "header empty: 0 bytes",
    ]
    assert lines[5] == f"value: 1,024 bytes, the first {SHOWN_BYTES} of them"
    assert lines[6] == "  0000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  ................"
    assert lines[10].endswith("@ABCDEFGHIJKLMNO")
    assert len(lines) == 6 + SHOWN_BYTES // 16


def test_programs_get_sizes_and_hexadecimal() -> None:
    assert as_json(POISON) == {
        "upstream_offset": 42,
        "timestamp": 1_763_700_000_000,
        "bytes": 1_024 + 4 + 3 + 4 + 5,
        "headers": [
            {"name": "kind", "bytes": 3, "hex": "ff0041"},
            {"name": "kind", "bytes": None, "hex": None},
            {"name": "empty", "bytes": 0, "hex": ""},
        ],
        "key_bytes": 0,
        "key_hex": "",
        "value_bytes": 1_024,
        "value_hex": bytes(range(256)).hex(),
    }
    assert as_json(Record(offset=0, timestamp=-1, headers=[]))["value_hex"] is None


@pytest.mark.parametrize(
    ("found", "words"),
    [(None, "none follows"), (12, "the next record is at 12"), (0, "the log ends before it, and begins at 0")],
)
def test_an_offset_behind_the_end_is_not_followed_by_the_oldest_record(found: int | None, words: str) -> None:
    assert _following(found, asked=10) == words
