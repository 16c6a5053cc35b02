"""A backfill meets a live mapping without a gap and without an overlap: on the lab, by the real driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.backfill_live import run

pytestmark = pytest.mark.integration


def test_a_backfill_and_a_live_mapping_meet_with_every_record_once_and_in_order(tmp_path: Path) -> None:
    found = run(tmp_path, records=12_000, partitions=12, kills=0)
    faults = {what: found["audit"][what] for what in ("lost", "duplicated", "reordered", "different", "mistranslated")}
    assert faults == dict.fromkeys(faults, 0)
    assert found["audit"]["records"] == 12_000 + found["live"]
    job = found["jobs"][0]
    assert (job["done"], job["lanes"]) == (12, 12)
    assert job["records"] >= 12_000
