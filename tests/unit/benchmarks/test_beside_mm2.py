"""A comparison must not flatter: pairs stay pairs, every round is kept, and what is missing is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirrorless.reports.page import render
from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.mm2 import EXACTLY_ONCE_TUNED, MirrorMaker
from tests.benchmarks.beside_mm2.pages import markdown, report_of
from tests.benchmarks.beside_mm2.ratios import conclude, ratios, summary
from tests.benchmarks.beside_mm2.records import shape
from tests.benchmarks.beside_mm2.results import Measurement, Results, open_results
from tests.benchmarks.beside_mm2.throughput import is_steady

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
    assert "a killed target broker's lag is gone" in report_of(results.run).verdict


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
    report = report_of(results.run)
    assert report.tone == "bad"
    assert "Behind MM2 in: records per CPU-second, 100 B" in report.verdict
    page = render(report)
    assert "RuntimeError: no kcat" in page
    assert "&lt;nothing came&gt;" in page
    text = markdown(report, raw="raw.json", page="page.html")
    assert "| pipe | RuntimeError: no kcat |" in text
    assert "| throughput | 100B-x6 | Mirrorless | MM2 exactly once, tuned | records_per_cpu_s | more | 0.5 |" in text


def test_a_case_in_which_we_are_behind_is_named_at_the_head_even_if_no_first_figure_is(tmp_path: Path) -> None:
    results = opened(tmp_path / "report.json")
    for case, ours in (("100B-x6", 30), ("10000B-x24", 15)):
        results.add(measured("Mirrorless", 1, ours, case=case))
        results.add(measured(MM2, 1, 20, case=case))
    results.write()
    verdict = report_of(results.run).verdict
    assert "throughput 10000B-x24, Mirrorless over MM2 exactly once, tuned, records_per_cpu_s 0.75" in verdict
    assert "100B-x6, Mirrorless over" not in verdict.replace("10000B", "")


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
