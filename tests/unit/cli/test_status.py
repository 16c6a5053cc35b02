"""The command `status`: lag, gaps, what needs the operator, the sentences below the table; `--watch` and `--html`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replace_struct

import cli.status
from cli.clusters import heartbeats_of
from cli.deployment import LabMapping, TopicTrigger
from cli.flow_status import (
    FlowStatus,
    LaneStatus,
    TaskStatus,
    TopicStatus,
    _with_age_of_waiting,
    gaps_in,
    shards_of,
)
from cli.status import as_json, needs_operator, notes, rates_between, reads, show, summary
from cli.status_page import MOST, KnownRuns, history_of
from cli.status_page import report_of as page_of
from mirrorless.adapters.kafka.offsets import Extent, KafkaOffsets, OpenTransaction
from mirrorless.adapters.kafka.wire.open_transactions import OpenProducer
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Lease, Stop, StopReason, head_of
from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Run
from mirrorless.clock import now_ms
from mirrorless.config import load
from mirrorless.errors import Retriable
from mirrorless.groups.checkpoints import GroupCheckpoints
from mirrorless.mm2.internal_records import Heartbeat
from mirrorless.ports.stores import lanes_with_a_chain
from mirrorless.reports.page import render
from mirrorless.reports.report import LinePlot, Report
from mirrorless.scheduled.functions import task_intervals
from mirrorless.scheduled.standby import RegionRun, RegionRuns
from mirrorless.topics.topic_state import UNTIL_RESET
from tests.support.chains import FLOW, MemoryChains, run
from tests.support.commands import replication_yaml
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_flow
from tests.support.statuses import LANES, MAPPED, NOW, at, flow, lane, stopped, task


class Source:
    """As much of `ClusterView` as tells of lanes that wait."""

    def __init__(self, opened: OpenTransaction | None, written: int | None) -> None:
        self.opened, self.written = opened, written

    def open_transactions(self, ends: dict[Lane, int]) -> dict[Lane, OpenTransaction]:
        """See `ClusterView`."""
        return {} if self.opened is None else dict.fromkeys(ends, self.opened)

    def oldest_waiting(self, positions: dict[Lane, int]) -> dict[Lane, int | None]:
        """See `ClusterView`."""
        return dict.fromkeys(positions, self.written)


def opened(offset: int, age_ms: int | None, producer: OpenProducer | None = None) -> OpenTransaction:
    return OpenTransaction(offset=offset, since=None if age_ms is None else now_ms() - age_ms, producer=producer)


def waiting(position: int, end: int, transaction: OpenTransaction | None, *, written: int | None = None) -> LaneStatus:
    """A lane of a log that has a transaction open; `written` is the time of the first record that readers see."""
    status = lane(head=position, source=Extent(0, end))
    (found,) = _with_age_of_waiting([status], Source(transaction, written))  # type: ignore[arg-type]  # what it needs
    return found


def notes_of(status: LaneStatus) -> list[str]:
    return list(notes(flow(status, at=now_ms())))


def test_what_waits_behind_an_open_transaction_is_as_old_as_that_and_its_producer_is_named() -> None:
    status = waiting(10, 61, opened(10, 62_000, OpenProducer(4_000, 3, "billing")))

    assert status.lag_ms is not None
    assert 62_000 <= status.lag_ms < 90_000
    (said,) = notes_of(status)
    assert said.startswith(
        "us-east->eu-west orders-0: 51 upstream offsets from 10 on wait for a transaction of producer"
    )
    assert "producer 4000 (epoch 3, `billing`), open since" in said
    assert (
        "`kafka-transactions.sh --bootstrap-server US-EAST abort --topic orders --partition 0 --start-offset 10`"
        in said
    )


def test_a_lane_that_has_not_come_to_an_open_transaction_is_behind_by_itself() -> None:
    status = waiting(5, 61, opened(10, 62_000), written=now_ms() - 1_000)

    assert status.hidden_by is None
    assert status.lag_ms is not None
    assert 1_000 <= status.lag_ms < 30_000
    assert notes_of(status) == []


def test_a_transaction_of_moments_is_no_news_and_one_of_an_hour_needs_the_operator() -> None:
    young, old = waiting(10, 61, opened(10, 2_000)), waiting(10, 61, opened(10, 3_600_000))

    assert notes_of(young) == []
    assert (young.hangs(now_ms()), old.hangs(now_ms())) == (False, True)
    assert notes_of(old)[0].startswith("! us-east->eu-west orders-0: 51 upstream offsets")


def test_a_transaction_of_which_the_brokers_tell_nothing_is_named_by_its_place() -> None:
    status = waiting(10, 61, opened(10, None))

    assert status.lag_ms is None
    assert "of a producer that the brokers do not name: no reader" in notes_of(status)[0]


def status(position: int, source: Extent | None, stop: Stop | None = None, **more: Any) -> LaneStatus:
    return lane(0, position, stop, source=source, **more)


def test_lag_is_what_the_source_still_holds_above_the_position() -> None:
    assert status(100, Extent(0, 130)).lag == 30
    assert status(0, Extent(40, 130)).lag == 90  # a new lane waits for what there is
    assert status(100, Extent(0, 80)).lag == 0
    assert status(100, None).lag is None


def test_what_waits_in_a_topic_that_was_created_again_is_not_hidden_by_the_old_position() -> None:
    stop = Stop(reason="recreated", upstream_offset=0, detail="created again", at=1)

    assert status(100, Extent(0, 3), stop).lag == 3
    assert status(100, Extent(0, 130), replace(stop, reason="refused", upstream_offset=100)).lag == 30


def test_a_stop_retention_that_overtook_a_lane_and_a_source_that_shrank_need_the_operator_and_a_lag_does_not() -> None:
    overtaken = status(100, Extent(120, 130))

    assert (overtaken.overtaken, overtaken.needs_operator) == (20, True)
    assert status(0, Extent(120, 130)).overtaken == 0  # a new lane begins where the log does
    assert status(100, Extent(0, 130), Stop(reason="refused", upstream_offset=100, detail="", at=1)).needs_operator
    assert status(100, Extent(0, 99)).needs_operator
    assert not status(100, Extent(0, 130)).needs_operator
    assert not status(100, None).needs_operator


def test_gaps_are_offsets_of_runs_in_no_span_and_not_what_lies_before_a_lanes_first_record() -> None:
    """A lane begins at 0, wherever its first record is; that nothing was there before is not worth an alarm."""
    runs = [run(0, 10, (0, 0, 7)), run(10, 20, (12, 7, 8)), run(20, 30, (20, 15, 5), (28, 20, 2))]

    assert [gaps_in(runs[begin:]) for begin in (2, 1, 0)] == [3, 5, 8]
    assert gaps_in([run(0, 1_000_010, (1_000_000, 0, 10))]) == 0
    assert gaps_in([replace(run(10, 20, (14, 0, 4)), rule=b"rule", filtered=((11, 13), (18, 20)))]) == 2


def test_without_the_source_partitions_are_found_by_their_chains() -> None:
    """Partitions without records have no chain, and may lie between."""
    chains = MemoryChains()
    chains.prepare([run(0, 1, lane=Lane(FLOW, "orders", partition)) for partition in (14, 17)])

    assert lanes_with_a_chain(chains, FLOW, "orders") == 18
    assert lanes_with_a_chain(chains, FLOW, "payments") == 0


def test_latency_is_of_the_newest_run_and_never_negative() -> None:
    late = replace(run(0, 10, (0, 0, 10)), newest_timestamp=1_000, settled_at=1_250)

    assert lane(head=head_of(late)).latency_ms == 250
    assert lane(head=head_of(replace(late, settled_at=900))).latency_ms == 0
    assert lane(head=head_of(run(0, 10))).latency_ms is None  # a run without records
    assert lane().latency_ms is None


# the flow


def group(name: str, readiness: Any, **more: Any) -> GroupCheckpoints:
    return GroupCheckpoints(group=name, direction="forward", at=NOW, readiness=readiness, offsets={}, **more)


def test_tasks_that_are_switched_off_are_not_expected() -> None:
    settings = make_flow()

    assert "heartbeats" in task_intervals(settings)
    assert "heartbeats" not in task_intervals(replace_struct(settings, emit_heartbeats_enabled=False))
    assert "offset-syncs" not in task_intervals(settings)
    assert "offset-syncs" in task_intervals(replace_struct(settings, emit_offset_syncs_enabled=True))
    looks_only = replace_struct(settings, sync_topic_configs_enabled=False)
    assert task_intervals(looks_only)["configs"] == 600
    assert "configs" not in task_intervals(replace_struct(looks_only, refresh_topics_enabled=False))


def test_what_waiting_does_not_cure_needs_the_operator() -> None:
    never = TaskStatus(task="checkpoints", every_seconds=3, last=None)
    assert not needs_operator(flow(tasks=[never]))
    assert not needs_operator(flow(tasks=[task(ok_at=NOW - 1_000, error="a hiccup")]))
    assert needs_operator(flow(tasks=[task(ok_at=NOW - 999_000)]))
    assert needs_operator(flow(tasks=[task(counts={"stuck-partitions": 1}, troubles=("x",))]))
    assert needs_operator(flow(tasks=[task(counts={"topics-rewriting": 1}, troubles=("x",))]))
    assert needs_operator(flow(tasks=[task(counts={"lanes-foreign": 1}, troubles=("x",))]))
    assert not needs_operator(flow(tasks=[task(counts={"topics-altered": 1}, troubles=("x",))]))
    assert not needs_operator(flow(groups=[group("shop", "behind", reread=7)]))
    assert needs_operator(flow(groups=[group("shop", "before_map")]))


def test_each_shard_of_scheduled_topics_has_its_last_run() -> None:
    documents = MemoryDocuments()
    report = task("pull-1", ok_at=NOW - 3_000).last
    documents.write(FLOW, {"task/pull-1": msgspec.json.encode(report)})

    def shards(schedule: str) -> list[TaskStatus]:
        return shards_of(
            documents, load(replication_yaml(f"us-east->eu-west: {{topics: [orders], {schedule}}}")).flow(FLOW)
        )

    found = shards("trigger: schedule, schedule: {shards: 2, interval.seconds: 600}")

    assert [(each.task, each.every_seconds, each.last) for each in found] == [
        ("pull-0", 600, None),
        ("pull-1", 600, report),
    ]
    assert shards("schedule: {continuous: true}")[0].every_seconds == 60
    assert shards("delivery: at_least_once") == []
    assert "schedule    pull-0 never, pull-1 3 s ago" in list(summary(flow(shards=found)))
    assert as_json(flow(shards=found))["shards"][1]["ok_at"] == NOW - 3_000


def test_a_shard_that_has_not_run_needs_the_operator() -> None:
    late = flow(shards=[task("pull-0", every=60, ok_at=NOW - 301_000)])

    assert needs_operator(late)
    assert "! task pull-0 has not been done since" in next(iter(notes(late)))


def test_a_disabled_mapping_is_no_trouble_while_a_schedule_reads_the_topic() -> None:
    mapping = LabMapping(uuid="u", flow=str(FLOW), topic="orders", state="Disabled")
    mapped = TopicStatus(topic="orders", remote_topic="r", trigger=MAPPED, mapping=mapping, lanes=[])

    assert mapped.mapping_is_off
    assert not replace(mapped, trigger=TopicTrigger("mapping", "schedule")).mapping_is_off


def test_groups_are_counted_and_those_that_are_not_ready_are_named() -> None:
    several = flow(
        groups=[
            group("calm", "ready"),
            group("busy", "active_on_target"),
            group("slow", "behind", reread=7),
            group("keen", "ahead_of_replication", ahead=1),
            group("lost", "before_map"),
            group("other", "independent", reread=9),
            group("odd", "out_of_range", ahead=0),
            group("back", "ahead_on_target", skip=3, own={"orders": {0: (91,)}}),
        ]
    )

    assert "1 before the map, 1 behind, 1 independent, 1 out of range, 1 ready" in " ".join(summary(several))
    assert [note.split(" ", 3)[:3] for note in notes(several)] == [
        ["!", "group", "back"],
        ["!", "group", "lost"],  # what needs the operator comes first
        ["group", "keen", "is"],
        ["group", "odd", "is"],
        ["group", "other", "has"],
        ["group", "slow", "would"],
    ]
    assert "group odd is out of range on us-east" in " ".join(notes(several))
    assert "3 records" in next(iter(notes(several)))
    assert "not this flow's" in " ".join(notes(several))
    assert "9 records" not in " ".join(notes(several))
    assert "7 records" in " ".join(notes(several))


def test_many_groups_and_troubles_do_not_fill_the_screen() -> None:
    crowd = flow(
        groups=[group(f"g{number}", "behind", reread=1) for number in range(1_000)],
        tasks=[task(troubles=tuple(f"topic {number} is odd" for number in range(1_000)))],
    )

    found = list(notes(crowd))

    assert len(found) == 22
    assert sum("990" in line for line in found) == 2


# leased lanes


def test_a_leased_lane_is_noted_and_does_not_need_the_operator() -> None:
    lease = Lease(holder="backfill-7", until=NOW + 1)
    leased = flow(status(100, Extent(0, 130), lease=lease, waiting=120), status(50, Extent(0, 130), lease=lease))

    assert not needs_operator(leased)
    (note,) = notes(leased)
    assert "2 lanes leased by job run backfill-7" in note
    assert "batches wait for 1 of them" in note
    assert as_json(leased)["topics"][0]["partitions"][0]["lease"] == {"holder": "backfill-7", "until": NOW + 1}


def test_a_lane_that_waits_for_a_job_that_does_not_run_needs_the_operator() -> None:
    dead = Lease(holder="backfill-7", until=NOW)
    waits = flow(status(0, Extent(0, 130), waiting=120, lease=dead))

    assert needs_operator(waits)
    (note,) = notes(waits)
    assert note.startswith("! orders: 1 lane waiting for a job")
    assert "0 @ 120" in note
    assert as_json(waits)["topics"][0]["partitions"][0]["waits_for_a_job_from"] == 120
    # Once a job has copied so far, the next delivery is taken.
    assert not needs_operator(flow(status(120, Extent(0, 130), waiting=120)))


def test_status_says_which_region_works() -> None:
    home, standby = RegionRun(region="us-east-1", at=NOW - 20_000), RegionRun(region="eu-west-1", at=NOW, works=False)
    at_home = flow(regions=RegionRuns(home=home, standby=standby))
    lost = flow(
        regions=RegionRuns(home=replace_struct(home, at=NOW - 180_000), standby=replace_struct(standby, works=True))
    )
    alone = flow(regions=RegionRuns(home=home))

    assert "regions     us-east-1 works, 20 s ago; eu-west-1 stands by, 0 s ago" in list(summary(at_home))
    assert not needs_operator(at_home)
    assert not list(notes(at_home))
    assert "regions     us-east-1 SILENT, 3 min ago; eu-west-1 works, 0 s ago" in list(summary(lost))
    assert needs_operator(lost)
    (sentence,) = notes(lost)
    assert sentence.startswith("! us-east-1, the home of the flow, has been silent since")
    assert "eu-west-1 moves the groups; records, topics, configs, ACLs and mappings wait" in sentence
    assert needs_operator(alone)
    assert [each for each in notes(alone) if "the standby in the target's region has not run ever" in each]
    assert as_json(alone)["regions"] == {
        "home": {"region": "us-east-1", "at": NOW - 20_000, "works": True},
        "standby": None,
    }
    assert as_json(flow())["regions"] is None


SETTINGS = make_flow(source="localhost:1", target="localhost:2")


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

    found = reads(lambda: [next(statuses)], pause=pauses.append)

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


def test_heartbeats_are_found_by_the_names_that_mirrormaker_gave_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Heartbeat(source="A", target="eu-west", timestamp=0).key()
    newest = {("heartbeats", ours): 5, ("A.heartbeats", None): 7}
    monkeypatch.setattr(KafkaOffsets, "partitions", lambda _: {"heartbeats": 1, "A.heartbeats": 1})
    monkeypatch.setattr(KafkaOffsets, "newest", lambda _, topic, key=None: newest[topic, key])

    found = heartbeats_of(replace_struct(SETTINGS, prefixes={"us-east": "A"}))

    assert (found.emitted, found.replicated, found.trouble) == (5, 7, "")


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


MADE_ANEW = f"{FLOW} orders: deleted on the source and created again: its partitions 0 {UNTIL_RESET}: `…`"
TOPICS = [task("topics", troubles=(MADE_ANEW, f"{FLOW} orders: odd"))]
SAID: dict[str, tuple[FlowStatus, list[str]]] = {
    "a topic that was made anew, in one sentence": (
        flow(stopped(0, "contradiction"), stopped(1, "recreated"), stopped(2, "recreated"), tasks=TOPICS),
        [f"! topics: {MADE_ANEW}", f"topics: {FLOW} orders: odd"],
    ),
    "nothing more of it when its lanes are reset": (flow(lane(0), tasks=TOPICS), [f"topics: {FLOW} orders: odd"]),
    "that its cap holds a shard back, which is no trouble": (
        flow(shards=[task("pull-0", every=60, counts={"pull-limited-ms": 41_000})]),
        ["pull-0: limited, for 41 s of its last run, by `maximum.bytes.per.second` of `schedule`."],
    ),
    "the age of a trouble of a round that is long past": (
        flow(tasks=[task("configs", every=600, at=NOW - 480_000, troubles=("orders: refused",))]),
        ["configs, 8 min ago: orders: refused"],
    ),
}


@pytest.mark.parametrize(("status", "sentences"), SAID.values(), ids=SAID)
def test_of_tasks_is_said(status: FlowStatus, sentences: list[str]) -> None:
    assert list(notes(status)) == sentences


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
    assert said(replace(free, stop=stop))
    assert said(flow(replace(lane(0), lease=Lease(holder="backfill-1", until=NOW + 1))))
    assert said(flow(replace(lane(0), waiting=7)))
    assert said(flow(lane(1))), "of a lane that is not known"


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
