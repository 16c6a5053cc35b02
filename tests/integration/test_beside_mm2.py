"""The comparison with the real MM2, end to end, in its smallest profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.beside_mm2.__main__ import JSON, PAGE, main

pytestmark = pytest.mark.integration


def test_both_sides_copy_the_same_records_and_the_report_has_every_round(tmp_path: Path) -> None:
    assert main(["--profile", "smoke", "--out", str(tmp_path), "--keep", str(tmp_path / "docs")]) == 0
    found = json.loads((tmp_path / JSON).read_bytes())
    assert found["unmeasured"] == []
    assert [(each["side"], each["round"]) for each in found["measurements"]] == [
        ("Mirrorless", 1),
        ("MM2 exactly once, tuned", 1),
    ]
    for each in found["measurements"]:
        assert each["figures"]["records"] == 6_000
        assert each["figures"]["cpu_s"] > 0
    assert found["summary"]["cpu_ratio_100B"] > 0
    assert found["summary"]["p99_ratio_1000rps"] is None
    for page in (tmp_path / PAGE, tmp_path / "docs" / "benchmarks" / PAGE):
        assert "Mirrorless beside MirrorMaker 2" in page.read_text()
    assert "benchmarks/bench-report.json" in (tmp_path / "docs" / "reference" / "benchmarks.md").read_text()
