"""A comparison must not flatter: pairs stay pairs, every round is kept, and what is missing is said."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.benchmarks.beside_mm2.backlog import is_steady
from tests.benchmarks.beside_mm2.mm2 import EXACTLY_ONCE_TUNED, MirrorMaker
from tests.benchmarks.beside_mm2.pages import page, verdict
from tests.benchmarks.beside_mm2.ratios import conclude, counted, ratios, summary
from tests.benchmarks.beside_mm2.records import shape
from tests.benchmarks.beside_mm2.results import Measurement, Results, Run, open_results
from tests.benchmarks.ground import REPOSITORY, Ground

MM2 = "MM2 exactly once, tuned"


def measured(side: str, turn: int, value: float, *, case: str = "100B-x6", failed: str = "") -> Measurement:
    figures = {} if failed else {"records_per_cpu_s": value}
    return Measurement(
        kind="throughput", against=MM2, case=case, round=turn, side=side, figures=figures, failed=failed, at=1
    )


def opened(path: Path, *, resume: bool = False) -> Results:
    return open_results(path, profile="full", say=lambda _: None, finish=conclude, resume=resume)


def test_a_ratio_is_formed_within_each_round_before_the_median_is_taken() -> None:
    values = ((100.0, 50.0), (10.0, 10.0), (90.0, 30.0))
    found = ratios(
        each
        for turn, (ours, theirs) in enumerate(values, 1)
        for each in (measured("Mirrorless", turn, ours), measured(MM2, turn, theirs))
    )
    (only,) = found
    assert (only.per_round, only.median, only.low, only.high) == ((2.0, 1.0, 3.0), 2.0, 1.0, 3.0)
    assert only.ahead
    assert summary(found)["cpu_ratio_100B"] == 2.0


@pytest.mark.parametrize(
    ("taken", "steady"),
    [((), False), ((9.0,), False), ((9.0, 5.0), False), ((9.0, 5.0, 4.8), True), ((4.8, 5.0, 5.3), False)],
)
def test_mm2_is_warm_when_two_copies_in_a_row_took_the_same_cpu(taken: tuple[float, ...], *, steady: bool) -> None:
    assert is_steady(taken) is steady


def test_a_slower_recovery_is_behind(tmp_path: Path) -> None:
    results = opened(tmp_path / "report.json")
    for side, seconds in (("Mirrorless", 36.0), (MM2, 15.0)):
        figures = {"seconds": seconds}
        results.add(
            Measurement(kind="recovery", against=MM2, case="target broker killed", round=1, side=side, figures=figures)
        )
    results.write()
    assert results.run.summary["recovery_ratio_target_broker"] == 2.4
    assert "a killed target broker: seconds until its lag is gone" in verdict(results.run)


def test_a_round_in_which_one_side_failed_gives_no_ratio() -> None:
    rounds = [measured("Mirrorless", 1, 100), measured(MM2, 1, 0, failed="it died"), measured(MM2, 2, 50)]
    assert ratios(rounds) == []
    assert set(summary([]).values()) == {None}


def test_less_is_better_where_it_is_said_so() -> None:
    pair = [
        Measurement(kind="latency", against=MM2, case="1000/s", round=1, side=side, figures={"p99_ms": value})
        for side, value in (("Mirrorless", 30.0), (MM2, 20.0))
    ]
    (only,) = ratios(pair)
    assert (only.median, only.ahead) == (1.5, False)


def test_the_file_is_whole_after_each_measurement_and_a_resumed_run_tries_again_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    first = opened(path)
    first.add(measured("Mirrorless", 1, 100))
    first.add(measured(MM2, 1, 0, failed="it died"))
    kept = json.loads(path.read_bytes())
    assert [each["side"] for each in kept["measurements"]] == ["Mirrorless", MM2]
    assert kept["measurements"][1]["failed"] == "it died"

    again = opened(path, resume=True)
    assert again.has("throughput", MM2, "100B-x6", 1, ["Mirrorless"])
    assert not again.has("throughput", MM2, "100B-x6", 1, ["Mirrorless", MM2])
    again.add(measured(MM2, 1, 50))
    kept = json.loads(path.read_bytes())
    assert kept["summary"]["cpu_ratio_100B"] == 2.0
    assert [each.get("failed", "") for each in kept["measurements"]] == ["", "it died", ""]


def test_a_run_of_another_profile_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    opened(path).write()
    with pytest.raises(ValueError, match="without --resume"):
        open_results(path, profile="quick", say=lambda _: None, finish=conclude, resume=True)


def test_what_could_not_be_measured_stands_in_the_report_with_its_reason(tmp_path: Path) -> None:
    results = opened(tmp_path / "report.json")
    results.add(measured("Mirrorless", 1, 10))
    results.add(measured(MM2, 1, 20))
    results.add(measured(MM2, 2, 0, failed="TimeoutError: <nothing came>"))
    with results.attempting("pipe"):
        raise RuntimeError("no kcat")
    results.write()
    assert "Behind MM2 in: records per CPU-second, 100B-x6" in verdict(results.run)
    assert "3 measurements, 1 of them failed" in verdict(results.run)
    text = page(results.run, raw="raw.json")
    assert "Not measured: pipe: RuntimeError: no kcat" in text
    assert "| records per CPU-second | **100B-x6: 0.50 (0.50 to 0.50)**; 1000B-x6: not measured" in text


def test_a_case_in_which_we_are_behind_is_named_at_the_head_even_if_no_first_figure_is(tmp_path: Path) -> None:
    results = opened(tmp_path / "report.json")
    for case, ours in (("100B-x6", 30), ("10000B-x24", 15)):
        results.add(measured("Mirrorless", 1, ours, case=case))
        results.add(measured(MM2, 1, 20, case=case))
    results.write()
    said = verdict(results.run)
    assert "throughput 10000B-x24, Mirrorless over MM2 exactly once, tuned, records_per_cpu_s 0.75" in said
    assert "100B-x6, Mirrorless over" not in said.replace("10000B", "")


def test_mm2_is_given_its_settings_under_the_alias_of_its_own_source(tmp_path: Path) -> None:
    properties = MirrorMaker(Ground(tmp_path), EXACTLY_ONCE_TUNED, alias="mm2x1", topics=["s1-.*"]).properties()
    assert properties["clusters"] == "mm2x1,target"
    assert properties["mm2x1.consumer.isolation.level"] == "read_committed"
    assert properties["mm2x1.consumer.max.poll.records"] == "10000"
    assert properties["target.exactly.once.source.support"] == "enabled"
    assert properties["mm2x1->target.topics"] == "s1-.*,ready"
    assert not [name for name in properties if name.startswith("source.")]


def test_a_shape_has_as_many_records_on_every_partition() -> None:
    found = shape(100, 24, 400_000)
    assert (found.count % 24, found.per_partition * 24) == (0, found.count)
    assert found.name == "100B-x24"


def test_the_page_of_the_documentation_is_what_its_raw_figures_say() -> None:
    run = msgspec.json.decode((REPOSITORY / "docs/benchmarks/bench-report.json").read_bytes(), type=Run)
    assert run.summary == summary(ratios(run.measurements)) | counted(run.measurements)
    text = (REPOSITORY / "docs/reference/benchmarks.md").read_text()
    assert text == page(run, raw="../benchmarks/bench-report.json")


def test_a_measurement_that_raises_is_kept_for_each_pair_with_its_reason(tmp_path: Path) -> None:
    results = opened(tmp_path / "report.json")

    def dies() -> dict[str, dict[str, float]]:
        raise TimeoutError("it stands still")

    pairs = {"Mirrorless": (MM2, "MM2 exactly once"), MM2: (MM2,)}
    assert not results.measure(dies, kind="recovery", case="killed", turn=1, sides=pairs)
    kept = [(each.side, each.against, each.failed) for each in results.run.measurements]
    why = "TimeoutError: it stands still"
    assert kept == [("Mirrorless", MM2, why), ("Mirrorless", "MM2 exactly once", why), (MM2, MM2, why)]
