"""The demonstration is the first thing that a stranger runs: it shows what it says, and leaves nothing running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
FINDINGS = ("lost", "duplicated", "reordered", "different", "mistranslated")


def test_the_demonstration_breaks_two_things_moves_a_group_and_finds_nothing_missing_or_read_twice(
    tmp_path: Path,
) -> None:
    report = tmp_path / "report.json"

    ended = subprocess.run(
        [sys.executable, "-m", "lab", "demo", "--records", "3000", "--seconds", "12", "--report", str(report)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "fault 1" in ended.stdout
    assert "fault 2" in ended.stdout
    told = json.loads(report.read_text())
    assert {finding: told["totals"][finding] for finding in FINDINGS} == dict.fromkeys(FINDINGS, 0)
    assert told["totals"]["records"] == sum(row["source"] for row in told["rows"]) > 3000
    assert {row["flow"] for row in told["rows"]} == {"us-east->eu-west", "eu-west->us-east"}
    assert {row["topic"] for row in told["rows"]} == {"orders", "payments", "customers", "audit-log"}
    group = told["groups"]
    assert (group["reread"], group["skipped"], group["strays"]) == (0, 0, 0)
    # It read on both sides, and each record on one of them.
    assert group["read_on"].keys() == {"us-east", "eu-west"}
    assert all(group["read_on"].values())
    read = {"orders", "payments"}
    assert sum(group["read_on"].values()) == group["records"]
    rows = [row for row in told["rows"] if row["flow"] == "us-east->eu-west" and row["topic"] in read]
    assert group["records"] == sum(row["source"] for row in rows)
