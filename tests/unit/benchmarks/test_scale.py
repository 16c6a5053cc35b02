"""What a scenario took is the sum over its processes, its exit code is kept, and every row of the table can be run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.benchmarks import harness
from tests.benchmarks.harness import Scenario
from tests.benchmarks.table import SCENARIOS

WORK = "sum(range(40_000_000))"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}]); sys.exit(3)"


def test_the_cpu_of_a_child_counts_and_the_exit_code_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "SAMPLE_SECONDS", 0.02)

    code, took = harness.measured([sys.executable, "-c", PARENT])

    assert code == 3
    assert took["cpu_seconds"] > 0.2
    assert took["resident_mb"] > 5


def test_a_part_that_failed_keeps_its_last_good_entry_and_one_that_has_run_is_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    report.write_text('{"no-such-part": {"commit": "before"}}')
    good = {"translation": SCENARIOS["translation"]}
    small = SCENARIOS["translation"].small.split()

    assert harness.run_all({**good, "no-such-part": SCENARIOS["kills"]}, small, report, resume=False) == 1
    kept = json.loads(report.read_text())
    assert kept.keys() == {"no-such-part", "translation"}
    assert kept["no-such-part"] == {"commit": "before"}
    assert kept["translation"].keys() == {"command", "commit", "seconds", "cpu_seconds", "resident_mb"}
    assert "failed: no-such-part" in capfd.readouterr().err

    assert harness.run_all(good, small, report, resume=True) == 0
    assert "translation: has run on" in capfd.readouterr().out


def test_a_part_that_measures_itself_has_its_own_figures_in_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measures_itself(command: list[str]) -> tuple[int, dict[str, float]]:
        Path(command[command.index("--figures") + 1]).write_text('{"cpu_seconds": 1.5}')
        return 0, {"seconds": 2.0, "cpu_seconds": 9.0, "resident_mb": 1}

    monkeypatch.setattr(harness, "measured", measures_itself)

    assert harness.run_all({"own": SCENARIOS["rounds"]}, (), tmp_path / "report.json", resume=False) == 0

    kept = json.loads((tmp_path / "report.json").read_text())["own"]
    assert (kept["seconds"], kept["cpu_seconds"]) == (2.0, 1.5)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_of_the_table_has_its_function_and_every_option_that_it_names(name: str) -> None:
    scenario = SCENARIOS[name]
    given = scenario.given(scenario.small.split())
    assert given.keys() == {each.partition("=")[0] for each in f"{scenario.options} {scenario.small}".split()}
    with pytest.raises(ValueError, match="no option speed"):
        scenario.given(["speed=1"])


def test_an_option_is_read_as_what_its_default_is() -> None:
    row = Scenario(run="backfill:parts", group="page", about="", options="records=10 only=bare,records batch_kb=16")
    assert row.given(()) == {"records": 10, "only": ("bare", "records"), "batch_kb": (16,)}
