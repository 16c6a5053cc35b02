"""Every row of the table runs, and a comparison does not flatter: pairs stay pairs, and what is missing is said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

from tests.benchmarks import harness
from tests.benchmarks.beside_mm2.report import (
    Measurement,
    Results,
    Run,
    counted,
    open_results,
    page,
    ratios,
    summary,
    verdict,
)
from tests.benchmarks.ground import REPOSITORY
from tests.benchmarks.table import SCENARIOS

WORK = "sum(range(40_000_000))"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}]); sys.exit(3)"
OURS, MM2 = "Mirrorless", "MM2 exactly once, tuned"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_of_the_table_has_its_function_and_every_option_that_it_names(name: str) -> None:
    scenario = SCENARIOS[name]
    given = scenario.given(scenario.small.split())
    assert given.keys() == {each.partition("=")[0] for each in f"{scenario.options} {scenario.small}".split()}
    assert scenario.about
    with pytest.raises(ValueError, match="no option speed"):
        scenario.given(["speed=1"])


def test_the_cpu_of_a_child_counts_and_the_exit_code_is_the_programs() -> None:
    code, took = harness.measured([sys.executable, "-c", PARENT])

    assert code == 3
    assert took["cpu_seconds"] > 0.2
    assert took["resident_mb"] > 5


def test_a_part_that_failed_keeps_its_last_good_entry_and_one_that_has_run_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(command: list[str]) -> tuple[int, dict[str, float]]:
        Path(command[command.index("--figures") + 1]).write_text('{"cpu_seconds": 1.5}')
        return int("kills" in command), {"seconds": 2.0, "cpu_seconds": 9.0}

    monkeypatch.setattr(harness, "measured", measured)
    report, parts = tmp_path / "report.json", {name: SCENARIOS[name] for name in ("rounds", "kills")}
    report.write_text('{"kills": {"commit": "before"}}')

    assert harness.run_all(parts, (), report, resume=False) == 1

    kept = json.loads(report.read_text())
    assert kept["kills"] == {"commit": "before"}
    assert (kept["rounds"]["seconds"], kept["rounds"]["cpu_seconds"]) == (2.0, 1.5), "its own figures count"
    assert harness.run_all({"rounds": parts["rounds"]}, (), report, resume=True) == 0
    assert "rounds: has run on" in capsys.readouterr().out


def measured(side: str, turn: int, value: float, *, case: str = "100B-x6", failed: str = "") -> Measurement:
    figures = {} if failed else {"records_per_cpu_s": value}
    return Measurement(
        kind="throughput", against=MM2, case=case, round=turn, side=side, figures=figures, failed=failed, at=1
    )


def opened(path: Path, *found: Measurement, resume: bool = False) -> Results:
    results = open_results(path, profile="full", say=lambda _: None, resume=resume)
    for each in found:
        results.add(each)
    return results


def test_a_ratio_is_formed_within_each_round_before_the_median_is_taken_and_none_where_a_side_failed() -> None:
    values = ((100.0, 50.0), (10.0, 10.0), (90.0, 30.0))
    rounds = [each for turn, pair in enumerate(values, 1) for each in map(measured, (OURS, MM2), (turn, turn), pair)]

    found = ratios([*rounds, measured(OURS, 4, 100), measured(MM2, 4, 0, failed="it died"), measured(MM2, 5, 50)])

    (only,) = found
    assert (only.per_round, only.median, only.low, only.high) == ((2.0, 1.0, 3.0), 2.0, 1.0, 3.0)
    assert only.ahead
    assert summary(found)["cpu_ratio_100B"] == 2.0
    assert set(summary([]).values()) == {None}


def test_what_is_slower_or_behind_in_any_case_is_named_at_the_head(tmp_path: Path) -> None:
    recovery = [
        Measurement(kind="recovery", against=MM2, case="target broker killed", round=1, side=side, figures=figures)
        for side, figures in ((OURS, {"seconds": 36.0}), (MM2, {"seconds": 15.0}))
    ]
    slower = opened(tmp_path / "slower.json", *recovery)
    pairs = [measured(*each, case=case) for case in ("10000B-x24", "100B-x6") for each in ((OURS, 1, 15), (MM2, 1, 20))]
    behind = opened(tmp_path / "behind.json", *pairs[:2])
    first = opened(tmp_path / "first.json", *pairs)

    assert slower.run.summary["recovery_ratio_target_broker"] == 2.4
    assert "a killed target broker: seconds until its lag is gone" in verdict(slower.run)
    assert f"throughput 10000B-x24, Mirrorless over {MM2}, records_per_cpu_s 0.75" in verdict(behind.run)
    assert "Behind MM2 in: records per CPU-second, 100B-x6" in verdict(first.run)


def test_the_file_is_whole_after_each_measurement_and_a_resumed_run_tries_again_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    opened(path, measured(OURS, 1, 100), measured(MM2, 1, 0, failed="it died"))
    assert [each.get("failed", "") for each in json.loads(path.read_bytes())["measurements"]] == ["", "it died"]

    again = opened(path, resume=True)

    assert again.has("throughput", MM2, "100B-x6", 1, [OURS])
    assert not again.has("throughput", MM2, "100B-x6", 1, [OURS, MM2])
    again.add(measured(MM2, 1, 50))
    kept = json.loads(path.read_bytes())
    assert kept["summary"]["cpu_ratio_100B"] == 2.0
    assert [each.get("failed", "") for each in kept["measurements"]] == ["", "it died", ""]


def test_what_could_not_be_measured_stands_in_the_report_with_its_reason(tmp_path: Path) -> None:
    results = opened(tmp_path / "report.json", measured(OURS, 1, 10), measured(MM2, 1, 20))

    def dies() -> dict[str, dict[str, float]]:
        raise TimeoutError("it stands still")

    pairs = {OURS: (MM2, "MM2 exactly once"), MM2: (MM2,)}
    assert not results.measure(dies, kind="recovery", case="killed", turn=1, sides=pairs)
    with results.attempting("pipe"):
        raise RuntimeError("no kcat")
    results.write()

    failed = [(each.side, each.against, each.failed) for each in results.run.measurements if each.failed]
    why = "TimeoutError: it stands still"
    assert failed == [(OURS, MM2, why), (OURS, "MM2 exactly once", why), (MM2, MM2, why)]
    assert "5 measurements, 3 of them failed" in verdict(results.run)
    text = page(results.run, raw="raw.json")
    assert "Not measured: pipe: RuntimeError: no kcat" in text
    assert "| records per CPU-second | **100B-x6: 0.50 (0.50 to 0.50)**; 1000B-x6: not measured" in text


def test_the_page_of_the_documentation_is_what_its_raw_figures_say() -> None:
    run = msgspec.json.decode((REPOSITORY / "docs/benchmarks/bench-report.json").read_bytes(), type=Run)
    assert run.summary == summary(ratios(run.measurements)) | counted(run.measurements)
    text = (REPOSITORY / "docs/reference/benchmarks.md").read_text()
    assert text == page(run, raw="../benchmarks/bench-report.json")
