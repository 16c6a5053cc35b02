"""The command `losses`: losses and harmless gaps as lines and JSON."""

from __future__ import annotations

from cli.losses import as_line, summary_as_json, summary_as_line
from mirrorless.losses import GapSummary, Loss
from tests.support.chains import LANE

SUMMARY = GapSummary(
    lane=LANE,
    generation=1,
    until=5000,
    offsets={"transaction_marker": 1200, "aborted": 3},
    at=1_763_686_800_123,
)


def test_a_summary_says_how_far_gaps_are_explained_and_by_what() -> None:
    assert summary_as_line(SUMMARY) == (
        "2025-11-21 01:00:00Z  us-east->eu-west orders-0 below 5000 (generation 1): 3 aborted, 1,200 transaction marker"
    )


def test_json_has_every_count() -> None:
    assert summary_as_json(SUMMARY) == {
        "flow": "us-east->eu-west",
        "topic": "orders",
        "partition": 0,
        "generation": 1,
        "until": 5000,
        "offsets": {"transaction_marker": 1200, "aborted": 3},
        "at": 1_763_686_800_123,
    }


def test_a_loss_names_its_offsets_and_its_cause() -> None:
    loss = Loss(lane=LANE, generation=0, first=4, next=9, cause="retention", detail="why", at=1_763_686_800_123)

    assert as_line(loss) == "2025-11-21 01:00:00Z  us-east->eu-west orders-0 @ 4 to 8 (5 offsets, retention): why"
