"""A region is lost and comes back: the drill that a stranger runs accounts for every record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[2]
DRILL = (sys.executable, "-m", "lab", "failover", "--quick", "--records", "3000")
NOTHING = ("lost", "duplicated", "reordered", "different", "mistranslated", "reread", "skipped")


@pytest.mark.soak(
    "tests/integration/spark/test_failover.py::test_a_lost_source_costs_what_the_report_names_and_nothing_is_read_twice",
    "tests/integration/spark/test_reconcile.py::test_quarantined_orphans_are_copied_once_beside_the_remote_topic",
    "tests/unit/failover/test_killed_and_run_again.py::test_a_failback_leaves_everything_as_it_was_wherever_it_is_killed",
)
def test_after_an_outage_a_reconcile_and_a_failback_every_record_is_accounted_for(tmp_path: Path) -> None:
    report, page = tmp_path / "report.json", tmp_path / "report.html"

    ended = subprocess.run(
        [*DRILL, "--report", str(report), "--page", str(page)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(report.read_text())
    totals = told["totals"]
    assert {finding: totals[finding] for finding in NOTHING} == dict.fromkeys(NOTHING, 0)
    assert totals["orphans"] == totals["orphans_made"] > 0
    assert 0 < totals["copied_back_ratio"] < 0.5  # only the difference
    assert {topic["policy"] for topic in told["topics"]} == {"replay", "quarantine"}
    assert "<html" in page.read_text()
