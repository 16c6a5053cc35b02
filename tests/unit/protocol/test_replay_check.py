"""Records below the position are dropped only if they can be the ones that were replicated."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from mirrorless.chain.lane_state import Head, LaneState, LeftOut
from mirrorless.chain.run import Run
from mirrorless.protocol.plan import plan_lane
from mirrorless.protocol.replay_check import compare_with_chain, contradiction
from mirrorless.protocol.settle import Attempt, settle_lane
from mirrorless.records.record import Record
from tests.support.chains import LANE

T = 1_763_686_800_000
# 100 101 . 103 | 104 105 (106 quarantined) 107
FIRST = [Record(offset=o, timestamp=T + o, headers=[], key=b"k", value=b"%d" % o) for o in (100, 101, 103)]
SECOND = [Record(offset=o, timestamp=T + o, headers=[], key=b"k", value=b"%d" % o) for o in (104, 105, 106, 107)]


def replicated(position: int, batch: list[Record], *quarantined: int) -> Run:
    head, state = Head(generation=0, position=position), LaneState(quarantine=LeftOut.each(*quarantined))
    plan = plan_lane(LANE, head, state, batch, now=T)
    downstream = [500 + record.offset for record in plan.write]
    return settle_lane(plan, downstream, Attempt(writer="w", attempt="a", request="r", now=T)).committed()


ANOTHER = "it has another key, value or headers than the record that was replicated from this offset"
RUNS = [replicated(100, FIRST), replicated(104, SECOND, 106)]
REPLAY = [*FIRST, *SECOND]


@pytest.mark.parametrize("first", range(len(REPLAY)))
@pytest.mark.parametrize("count", range(1, len(REPLAY) + 1))
def test_a_redelivery_at_any_boundaries_agrees_with_the_chain(first: int, count: int) -> None:
    """Lambda delivers again in other batches than before: whole runs, parts of runs, across runs, quarantined ones."""
    replayed = REPLAY[first : first + count]
    runs = [run for run in RUNS if run.next > replayed[0].offset]

    assert contradiction(replayed, runs) is None


def test_no_record_contradicts_no_chain() -> None:
    assert contradiction([], []) is None


@pytest.mark.parametrize(
    ("at", "changed", "reason"),
    [
        (0, {"timestamp": T - 1_000_000}, "its timestamp"),
        (4, {"timestamp": T + 1_000_000}, "its timestamp"),
        (2, {"value": b"other"}, ANOTHER),
        (2, {"key": None}, ANOTHER),
        (2, {"headers": [("a", None)]}, ANOTHER),
        (6, {"value": None}, ANOTHER),
    ],
)
def test_a_record_that_cannot_be_the_one_replicated_is_named(at: int, changed: dict[str, object], reason: str) -> None:
    replayed = [*REPLAY[:at], replace(REPLAY[at], **changed), *REPLAY[at + 1 :]]

    found = contradiction(replayed, RUNS)

    assert found is not None
    assert found[0] == REPLAY[at].offset
    assert found[1].startswith(reason)


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The operator's machine has the time of Tokyo, without a file of zones."""
    with monkeypatch.context() as there:
        there.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("far_east")
@pytest.mark.parametrize(
    ("timestamp", "moment"),
    [(T - 999_877, "2025-11-21 00:43:20.123Z"), (-1, "1969-12-31 23:59:59.999Z"), (1 << 62, str(1 << 62))],
)
def test_a_timestamp_that_does_not_fit_is_shown_as_a_moment_where_a_calendar_has_it(
    timestamp: int, moment: str
) -> None:
    found = contradiction([replace(FIRST[0], timestamp=timestamp)], RUNS)

    assert found is not None
    assert found[1] == (
        f"its timestamp, {moment}, is outside of those that were replicated here, "
        "2025-11-21 01:00:00.100Z to 2025-11-21 01:00:00.103Z"
    )


def test_a_changed_record_in_the_middle_of_a_run_is_seen_at_the_runs_end() -> None:
    """Only the last record has a fingerprint; the digest covers the others, once the whole run was replayed."""
    found = contradiction([FIRST[0], replace(FIRST[1], value=b"other"), FIRST[2]], RUNS)

    assert found == (103, "the records of its run have another digest than when they were replicated")


def test_a_record_in_a_gap_is_one_that_was_not_there_before() -> None:
    found = contradiction([replace(FIRST[2], offset=102)], RUNS)

    assert found == (102, "a record stands where there was none when this offset was passed")


@pytest.mark.parametrize("runs", [[], RUNS[1:], RUNS[:1]])
def test_an_offset_that_no_run_covers_any_more_is_not_taken_for_replicated(runs: list[Run]) -> None:
    found = contradiction(REPLAY, runs)

    assert found is not None
    assert found[1] == "the offset map no longer says what stood at this offset"


def test_a_record_in_a_gap_that_a_job_has_examined_is_passed_and_its_neighbours_are_still_held() -> None:
    """A poller that reads uncommitted delivers aborted records too, which a job has left out."""
    aborted = Record(offset=102, timestamp=T - 5, headers=[], key=None, value=b"aborted")
    examined = dataclasses.replace(RUNS[0], examined=True)

    assert contradiction([FIRST[1], aborted, FIRST[2]], [examined]) is None
    found = contradiction([FIRST[1], aborted, replace(FIRST[2], value=b"other")], [examined])
    assert found is not None


def test_nothing_of_a_batch_that_contradicts_the_chain_is_written_or_passed() -> None:
    batch = [replace(FIRST[2], value=b"other"), *SECOND]
    plan = plan_lane(LANE, Head(generation=0, position=104), LaneState(quarantine=LeftOut.each(106)), batch, now=T)
    assert (len(plan.write), plan.quarantined) == (3, (106,))

    held = compare_with_chain(dataclasses.replace(plan, returned=(108,), filtered=(109,)), RUNS, now=T)

    assert (held.write, held.quarantined, held.returned, held.filtered, held.moves) == ((), (), (), (), False)
    assert held.stop is not None
    assert (held.stop.reason, held.stop.upstream_offset) == ("contradiction", 103)
