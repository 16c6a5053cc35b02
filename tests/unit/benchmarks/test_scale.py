"""What a large run took is the sum over its processes, and its exit code is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.benchmarks import scale

WORK = "sum(range(40_000_000))"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}]); sys.exit(3)"


def test_the_cpu_of_a_child_counts_and_the_exit_code_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SAMPLE_SECONDS", 0.02)

    code, took = scale.measured([sys.executable, "-c", PARENT])

    assert code == 3
    assert took["cpu_seconds"] > 0.2
    assert took["resident_mb"] > 5


def test_a_part_that_failed_keeps_its_last_good_entry_and_one_that_has_run_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    monkeypatch.setattr(scale, "PARTS", {"good": ("platform",), "bad": ("no_such_module",)})
    monkeypatch.setattr(sys, "argv", ["scale", "--report", str(report)])

    assert scale.main() == 1
    kept = json.loads(report.read_text())
    assert kept.keys() == {"good"}
    assert kept["good"].keys() == {"command", "commit", "seconds", "cpu_seconds", "resident_mb"}
    assert "failed: bad" in capfd.readouterr().err

    monkeypatch.setattr(sys, "argv", ["scale", "--report", str(report), "--resume", "--part", "good"])
    assert scale.main() == 0
    assert "good: has run on" in capfd.readouterr().out


def test_a_part_that_measures_itself_has_its_own_figures_in_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = tmp_path / "measures_itself.py"
    module.write_text(
        "import sys; open(sys.argv[sys.argv.index('--figures') + 1], 'w').write('{\"cpu_seconds\": 1.5}')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(scale, "PARTS", {"own": ("measures_itself",)})
    monkeypatch.setattr(scale, "OWN_FIGURES", {"own"})
    monkeypatch.setattr(sys, "argv", ["scale", "--report", str(tmp_path / "report.json")])

    assert scale.main() == 0

    kept = json.loads((tmp_path / "report.json").read_text())["own"]
    assert kept.keys() == {"command", "commit", "cpu_seconds", "seconds", "resident_mb"}
    assert kept["cpu_seconds"] == 1.5
