"""`mirrorless status --lanes`, `--watch` and `--html`: what is drawn of a status, without servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cli.status
from cli.clusters import heartbeats_of
from cli.flow_status import FlowStatus, LaneStatus
from cli.lab_state import LabMapping
from cli.status import looks, notes, rates_between, show, summary
from cli.status_page import MOST, KnownRuns, history_of
from cli.status_page import report_of as page_of
from mirrorless.adapters.kafka.offsets import Extent, KafkaOffsets
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Lease, Stop, StopReason, head_of
from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Run
from mirrorless.errors import Retriable
from mirrorless.reports.page import render
from mirrorless.reports.report import LinePlot, Report
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics.topic_state import UNTIL_RESET
from tests.support.chains import FLOW, MemoryChains, run
from tests.support.flows import make_flow
from tests.support.statuses import LANES, NOW, at, flow, lane, stopped, task

SETTINGS = ControlSettings(flow=make_flow(source="localhost:1", target="localhost:2"))


def report_of(status: FlowStatus, history: KnownRuns, *losses: Loss) -> Report:
    return page_of([status], [history], [list(notes(status))], lambda _: losses, made_at=NOW)


def confirmed(*runs: Run) -> MemoryChains:
    """Chains with these runs, one after the other."""
    chains = MemoryChains()
    for each in runs:
        chains.prepare([each])
        chains.confirm([each])
    return chains


def test_neighbouring_lanes_that_are_alike_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show([flow(lane(0), lane(1), lane(2, at(7)), lane(3))], by_lane=True)

    shown = capsys.readouterr().out
    assert [line.split()[1:4] for line in shown.splitlines() if line.startswith("orders")] == [
        ["0", "to", "1"],
        ["2", "0", "7"],
        ["3", "0", "0"],
    ]


def test_a_flow_without_topics_has_a_line_instead_of_an_empty_table(capsys: pytest.CaptureFixture[str]) -> None:
    show([flow()], by_lane=False)

    assert capsys.readouterr().out.splitlines()[:2] == ["us-east->eu-west", "  topics      none yet"]


def test_a_rate_is_what_the_lanes_moved_between_two_looks_and_a_reset_is_no_movement() -> None:
    before = flow(lane(0, at(100)), lane(1, at(500)), at=NOW)
    now = flow(lane(0, at(160)), lane(1, at(20, generation=1)), lane(2, at(9)), at=NOW + 2_000)

    assert rates_between([before], [now]) == {(FLOW, "orders"): 30.0}
    assert rates_between([], [now]) == {}


def test_every_look_comes_with_the_rates_since_the_one_before() -> None:
    statuses = iter([flow(lane(0, at(10)), at=NOW), flow(lane(0, at(30)), at=NOW + 4_000)])
    pauses: list[float] = []

    found = looks(lambda: [next(statuses)], pause=pauses.append)

    assert [rates for _, rates in (next(found), next(found))] == [{}, {(FLOW, "orders"): 5.0}]
    assert pauses == [2.0]


def test_a_page_has_lag_throughput_and_latency_of_the_runs_in_the_map_and_names_what_is_stopped_first() -> None:
    first = replace(
        run(0, 60, (0, 0, 60), lane=LANES[0]),
        records=60,
        newest_timestamp=NOW - 61_000,
        oldest_timestamp=NOW - 65_000,
        settled_at=NOW - 60_000,
    )
    chains = confirmed(first)
    stop = Stop(reason="refused", upstream_offset=0, detail="it is too large", at=NOW)
    status = flow(lane(0, chains.heads(LANES)[LANES[0]]), lane(1, stop=stop))
    loss = Loss(lane=LANES[0], generation=0, first=3, next=5, cause="reset", detail="as told", at=NOW)

    later = Loss(lane=LANES[0], generation=0, first=9, next=10, cause="quarantined", detail="as told", at=NOW)
    other = replace(later, lane=LANES[2], first=1, next=2)

    report = report_of(status, history_of(chains, status), other, later, loss)

    lanes, rest = report.sections[1], report.sections[2]
    assert lanes.tables[0].rows[0][:2] == ("orders-1", "stopped: refused")
    assert lanes.tables[0].tones[0] == "bad"
    assert [row[:2] for row in rest.tables[-1].rows] == [("orders-0", 3), ("orders-0", 9), ("orders-2", 1)]
    plots = [plot for plot in report.sections[0].plots if isinstance(plot, LinePlot)]
    assert [plot.title for plot in plots] == ["Throughput", "Latency", "Lag"]
    throughput, latency, lag = ([y for _, y in plot.lines[0].points] for plot in plots)
    assert (max(throughput), latency, lag) == (30.0, [1.0], [5.0])  # 60 records in a stretch of 2 s
    assert report.tone == "bad"
    assert "too large" in render(report)


def test_plots_begin_where_the_runs_of_every_lane_are_known_and_reach_to_the_moment_of_the_page() -> None:
    """Of a busy lane only the newest runs are read: before them its throughput would look like none."""
    busy = [
        replace(run(number, number + 1, (number, number, 1), lane=LANES[0]), settled_at=NOW - 1_000 * (70 - number))
        for number in range(65)
    ]
    quiet = replace(run(0, 1, (0, 0, 1), lane=LANES[1]), settled_at=NOW - 3_600_000)
    chains = confirmed(*busy, quiet)
    heads = chains.heads(LANES)
    status = flow(lane(0, heads[LANES[0]]), lane(1, heads[LANES[1]]), at=NOW)

    known = history_of(chains, status)
    report = report_of(status, known)

    assert known.since == busy[-MOST].settled_at
    assert known.by_topic == {"orders": busy[-MOST:]}
    throughput = next(plot for plot in report.sections[0].plots if isinstance(plot, LinePlot))
    assert throughput.x_range == (-65 / 60, 0.0)


def test_a_page_of_a_flow_without_runs_has_no_empty_plots() -> None:
    status = flow(lane(0), groups=())

    report = report_of(status, KnownRuns(by_topic={}, since=0))

    assert report.verdict == "Nothing needs you."
    assert report.sections[0].plots == ()


@pytest.mark.parametrize("there", [{}, {"heartbeats": 1, "us-east.heartbeats": 1}])
def test_a_target_that_answers_before_the_first_heartbeat_has_none_yet(
    there: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaOffsets, "partitions", lambda _: there)
    monkeypatch.setattr(KafkaOffsets, "newest", lambda _, topic, **__: None if topic in there else pytest.fail(topic))

    early = flow(lane(0), heartbeats=heartbeats_of(SETTINGS))

    assert "heartbeats  none yet" in list(summary(early))
    assert not list(notes(early))


@pytest.mark.parametrize(
    ("answers", "says"), [(True, "No heartbeats could be read, so"), (False, "The target does not answer, so")]
)
def test_only_a_silent_target_is_said_not_to_answer(
    answers: bool,  # noqa: FBT001 -- a parameter of the test
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Retriable("no leader", where="eu-west")

    monkeypatch.setattr(KafkaOffsets, "partitions", lambda _: {"heartbeats": 1} if answers else refuse())
    monkeypatch.setattr(KafkaOffsets, "newest", refuse)

    told = list(notes(flow(lane(0), heartbeats=heartbeats_of(SETTINGS))))

    assert any(says in each for each in told), told


def test_lanes_that_one_command_brings_back_are_told_together() -> None:
    """A topic of 240 partitions that was made anew had 480 lines."""
    found = list(notes(flow(*(stopped(each, "contradiction") for each in range(3)), stopped(3, "recreated"))))

    assert [line[:80] for line in found] == [
        "! us-east->eu-west orders: 3 lanes are stopped (contradiction), the first since ",
        "  What to do: wait for two minutes: where the source lost its end, the stop then",
        "! us-east->eu-west orders-3 @ 3 is stopped (recreated) since 2025-11-21 04:40:00",
        "  What to do: `mirrorless lanes reset 'us-east->eu-west' orders 3 --to earliest ",
    ]
    assert ": 0, 1, 2. us-east->eu-west orders-0 @ 0: as told" in found[0]
    assert "`mirrorless lanes reset 'us-east->eu-west' orders --to earliest --reason" in found[1]


def test_held_lanes_are_told_together_with_the_command_that_ends_all_of_it() -> None:
    told, advised = notes(flow(stopped(0, "held"), stopped(1, "held")))

    assert "2 lanes are stopped (held)" in told
    assert advised.startswith("  What to do: `mirrorless lanes resume 'us-east->eu-west' orders --execute` lets")


def test_a_refused_record_has_its_own_lines_and_no_reset_of_its_topic_is_advised_beside_it() -> None:
    """A reset of the topic would skip what the target refused."""
    found = list(notes(flow(stopped(0, "refused"), stopped(1, "contradiction"), stopped(2, "contradiction"))))

    assert sum(line.startswith("! us-east->eu-west orders-") for line in found) == 3
    assert not any("orders --to earliest" in line for line in found)


def test_a_topic_that_was_made_anew_is_one_sentence_once_that_is_known() -> None:
    trouble = f"{FLOW} orders: deleted on the source and created again: its partitions {UNTIL_RESET}"
    lanes = (stopped(0, "contradiction"), stopped(1, "recreated"), stopped(2, "recreated"))

    found = list(notes(flow(*lanes, tasks=[task("topics", troubles=(trouble,))])))

    assert found == [f"! topics: {trouble}"]


def test_a_shard_that_its_cap_holds_back_says_so_and_is_no_trouble() -> None:
    found = list(notes(flow(shards=[task("pull-0", every=60, counts={"pull-limited-ms": 41_000})])))

    assert found == ["pull-0: limited, for 41 s of its last run, by `maximum.bytes.per.second` of `schedule`."]


def test_what_kept_a_lane_from_its_schedule_is_said_until_the_lane_may_go_on() -> None:
    """A run's report has it for some minutes more."""
    trouble = f"{LANES[0]} @ 0: fenced by a failover, and a failback ends that"
    shard = task("pull-0", every=60, troubles=(trouble, "the source is slow"))
    stop = Stop(reason="held", upstream_offset=0, detail="a failback ends that", at=NOW)

    def said(status: FlowStatus) -> bool:
        return f"pull-0: {trouble}" in list(notes(replace(status, shards=[shard])))

    free = flow(lane(0))
    assert not said(free)
    assert "pull-0: the source is slow" in list(notes(replace(free, shards=[shard])))
    assert said(flow(lane(0, stop=stop)))
    assert said(replace(free, fence=stop))
    assert said(flow(replace(lane(0), lease=Lease(holder="backfill-1", until=NOW + 1))))
    assert said(flow(replace(lane(0), waiting=7)))
    assert said(flow(lane(1))), "of a lane that is not known"


def test_a_trouble_of_a_round_that_is_long_past_has_its_age() -> None:
    found = list(notes(flow(tasks=[task("configs", every=600, at=NOW - 480_000, troubles=("orders: refused",))])))

    assert found == ["configs, 8 min ago: orders: refused"]


def test_lanes_that_a_quota_of_the_target_holds_back_are_named_until_they_have_caught_up() -> None:
    def throttled(number: int, pause: int, *, end: int) -> LaneStatus:
        head = head_of(replace(run(0, 7, (0, 0, 7)), throttled_ms=pause))
        return lane(number, head, source=Extent(0, end))

    found = list(notes(flow(throttled(0, 4_200, end=9), throttled(1, 9_000, end=7), throttled(2, 0, end=9))))

    (told,) = found
    assert told.startswith("1 lane throttled: a quota of eu-west holds this flow back, its brokers asked for pauses of")
    assert "of up to 4.2 s. Where the lag grows, raise the quota (`producer_byte_rate`" in told


def test_nothing_waits_in_a_partition_that_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    gone = replace(stopped(1, "recreated"), source=None, gone=True, lag_ms=0)

    show([flow(replace(lane(0), lag_ms=0), gone)], by_lane=True)

    assert (gone.lag, replace(gone, gone=False).lag) == (0, None)
    assert "gone" in capsys.readouterr().out


def test_a_plot_claims_nothing_of_a_topic_before_the_reset_of_its_lanes() -> None:
    """The runs before a reset are not read: a line of zeros would say that nothing was replicated then."""
    lanes = (LANES[0], Lane(FLOW, "bills", 0))
    chains = confirmed(
        *(
            replace(run(0, 60, (0, 0, 60), lane=each, attempt=each.topic), records=60, settled_at=settled)
            for settled, each in ((NOW - 60_000, lanes[1]), (NOW - 6_000, lanes[0]))
        )
    )
    status = flow(lane(0, chains.heads(LANES)[LANES[0]]))
    bills = replace(status.topics[0], topic="bills", lanes=[replace(lane(0), lane=lanes[1])])
    status = replace(status, topics=[*status.topics, bills])
    known = history_of(chains, status)

    def page(history: KnownRuns) -> LinePlot:
        plot = report_of(status, history).sections[0].plots[0]
        assert isinstance(plot, LinePlot)
        return plot

    whole, anew = page(known), page(replace(known, anew=frozenset({"orders"})))

    lengths = [{line.label: len(line.points) for line in plot.lines} for plot in (whole, anew)]
    assert lengths[0]["orders"] == lengths[0]["bills"] == lengths[1]["bills"]
    assert lengths[1]["orders"] < lengths[1]["bills"]
    assert "of orders since their lanes were reset" in anew.note


def test_lanes_that_were_reset_make_their_topic_one_whose_past_is_not_known() -> None:
    assert history_of(MemoryChains(), flow(lane(0, at(5, generation=1)))).anew == {"orders"}
    assert history_of(MemoryChains(), flow(lane(0, at(5)))).anew == frozenset()


@pytest.mark.parametrize(
    ("result", "stop", "shown"),
    [
        ("PROBLEM: Function returned batch item failures", "refused", "Enabled"),
        ("PROBLEM: Function returned batch item failures", None, "Enabled, last batch failed"),
        ("PROBLEM: Gone", "refused", "Enabled (PROBLEM: Gone)"),
        ("OK", None, "Enabled"),
    ],
)
def test_a_mapping_that_fails_since_a_lane_is_stopped_has_no_trouble_of_its_own(
    result: str, stop: StopReason | None, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three lines of each row repeated what the note on the lane says."""
    mapping = LabMapping(flow=str(FLOW), topic="orders", state="Enabled", last_processing_result=result)
    status = flow(stopped(0, stop) if stop else lane(0))

    show([replace(status, topics=[replace(status.topics[0], mapping=mapping)])], by_lane=False)

    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("orders"))
    assert row.rstrip().endswith(f"mapping  {shown}")


def test_a_narrow_terminal_leaves_out_columns_that_say_nothing_and_cuts_no_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On 80 columns the lag was `20,…`, and every heading was cut."""
    waits = lane(0, at(7), source=Extent(0, 20_007), lag_ms=33_000)

    shown = {}
    for width in (80, 120):
        monkeypatch.setattr(cli.status, "width_of_terminal", lambda width=width: width)
        show([flow(waits)], by_lane=False)
        shown[width] = capsys.readouterr().out.splitlines()[1:4]

    assert all(len(line.rstrip()) <= 80 for line in shown[80])
    assert "20,000" in shown[80][2]
    assert "…" not in "".join(shown[80])
    assert "mapping" not in shown[80][0]
    assert all(word in shown[120][0] for word in ("doubt", "stopped", "lost", "gaps", "mapping"))
