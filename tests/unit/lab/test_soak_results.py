"""The page of a complete soak."""

from __future__ import annotations

from lab.drills.soak import RunResult, report

CLEAN = {"lost": 0, "duplicated": 0, "reordered": 0, "different": 0, "mistranslated": 0}


def test_a_fault_has_one_row_whatever_the_trigger_and_the_step_it_hit() -> None:
    result = RunResult(
        seed=1,
        trigger="mixed",
        records=7,
        faults={"mapping": {"kill at step planned": 2, "rebalance": 1}, "schedule": {"kill at step settled": 3}},
        stuck_seconds={
            "mapping": {"kill at step planned": 4.0, "rebalance": 0.5},
            "schedule": {"kill at step settled": 9.25},
        },
        lanes_reset=0,
        broker_restarts=0,
        cold_starts=0,
        seconds=1.0,
        **CLEAN,
    )

    page = report([result], "4.1.1")

    assert [line for line in page.splitlines() if line.startswith(("| kill", "| rebalance"))] == [
        "| kill | 5 | 9.2 |",
        "| rebalance | 1 | 0.5 |",
    ]
    assert "1 schedules, 7 records, 6 faults: 0 lost" in page
