"""The command `status`: lag, gaps, what needs the operator, and the sentences below the table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from msgspec.structs import replace as replace_struct

from cli.deployment import TopicTrigger
from cli.flow_status import LaneStatus, TopicStatus, _with_age_of_waiting, as_json, gaps_in
from cli.lab_state import LabMapping
from cli.lanes import lanes_with_a_chain
from cli.status import notes, summary
from cli.tasks import TaskStatus, shards_of
from mirrorless.adapters.kafka.offsets import Extent, OpenTransaction
from mirrorless.adapters.kafka.wire.open_transactions import OpenProducer
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Lease, Stop, head_of
from mirrorless.clock import now_ms
from mirrorless.config import load
from mirrorless.groups.checkpoints import GroupCheckpoints
from mirrorless.scheduled.functions import task_intervals
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.scheduled.standby import RegionRun, RegionRuns
from mirrorless.topics.topic_state import UNTIL_RESET
from tests.support.chains import FLOW, MemoryChains, run
from tests.support.commands import replication_yaml
from tests.support.documents import MemoryDocuments
from tests.support.flows import make_flow
from tests.support.statuses import MAPPED, NOW, flow, lane, task


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


def test_a_task_is_overdue_after_three_intervals_and_two_minutes() -> None:
    """A schedule starts once a minute, and a run that died is replaced: so short a delay needs no operator."""
    assert not task(ok_at=NOW - 129_000).overdue(NOW)
    assert task(ok_at=NOW - 129_001).overdue(NOW)
    assert not task(ok_at=NOW - 1_900_000, every=600).overdue(NOW)
    assert task(ok_at=0, error="no rights").overdue(NOW)
    assert not TaskStatus(task="checkpoints", every_seconds=3, last=None).overdue(NOW)


def test_a_task_that_comes_once_a_minute_while_nothing_moves_is_overdue_no_sooner() -> None:
    assert not task(ok_at=NOW - 299_000, name="checkpoints").overdue(NOW)
    assert task(ok_at=NOW - 301_000, name="checkpoints").overdue(NOW)


def test_tasks_that_are_switched_off_are_not_expected() -> None:
    settings = ControlSettings(flow=make_flow())

    assert "heartbeats" in task_intervals(settings)
    assert "heartbeats" not in task_intervals(replace_struct(settings, heartbeats_seconds=None))
    assert "offset-syncs" not in task_intervals(settings)
    assert "offset-syncs" in task_intervals(replace_struct(settings, offset_syncs=True))
    looks_only = replace_struct(settings, sync_topic_configs_seconds=None)
    assert task_intervals(looks_only)["configs"] == 600
    assert "configs" not in task_intervals(replace_struct(looks_only, refresh_topics_seconds=None))


def test_what_waiting_does_not_cure_needs_the_operator() -> None:
    assert not flow().needs_operator
    assert not flow(tasks=[task(ok_at=NOW - 1_000, error="a hiccup")]).needs_operator
    assert flow(tasks=[task(ok_at=NOW - 999_000)]).needs_operator
    assert flow(tasks=[task(counts={"stuck-partitions": 1})]).needs_operator
    assert flow(tasks=[task(counts={"topics-rewriting": 1})]).needs_operator
    assert flow(tasks=[task(counts={"lanes-foreign": 1})]).needs_operator
    assert not flow(tasks=[task(counts={"topics-altered": 1})]).needs_operator
    assert not flow(groups=[group("shop", "behind", reread=7)]).needs_operator
    assert flow(groups=[group("shop", "before_map")]).needs_operator


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

    assert late.needs_operator
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


def test_the_sentence_on_a_topic_that_was_created_again_goes_when_its_lanes_are_reset() -> None:
    trouble = f"{FLOW} orders: deleted on the source and created again: its partitions 0 {UNTIL_RESET}: `…`"
    tasks = [task("topics", troubles=(trouble, f"{FLOW} orders: odd"))]
    stop = Stop(reason="recreated", upstream_offset=0, detail="created again", at=1)
    waiting, done = (flow(status(7, None, each), tasks=tasks) for each in (stop, None))

    assert f"! topics: {trouble}" in list(notes(waiting))
    assert list(notes(done)) == [f"topics: {FLOW} orders: odd"]


def test_a_leased_lane_is_noted_and_does_not_need_the_operator() -> None:
    lease = Lease(holder="backfill-7", until=NOW + 1)
    leased = flow(status(100, Extent(0, 130), lease=lease, waiting=120), status(50, Extent(0, 130), lease=lease))

    assert not leased.needs_operator
    (note,) = notes(leased)
    assert "2 lanes leased by job run backfill-7" in note
    assert "batches wait for 1 of them" in note
    assert as_json(leased)["topics"][0]["partitions"][0]["lease"] == {"holder": "backfill-7", "until": NOW + 1}


def test_a_lane_that_waits_for_a_job_that_does_not_run_needs_the_operator() -> None:
    dead = Lease(holder="backfill-7", until=NOW)
    waits = flow(status(0, Extent(0, 130), waiting=120, lease=dead))

    assert waits.needs_operator
    (note,) = notes(waits)
    assert note.startswith("! orders: 1 lane waiting for a job")
    assert "0 @ 120" in note
    assert as_json(waits)["topics"][0]["partitions"][0]["waits_for_a_job_from"] == 120
    # Once a job has copied so far, the next delivery is taken.
    assert not flow(status(120, Extent(0, 130), waiting=120)).needs_operator


def test_status_says_which_region_works() -> None:
    home, standby = RegionRun(region="us-east-1", at=NOW - 20_000), RegionRun(region="eu-west-1", at=NOW, works=False)
    at_home = flow(regions=RegionRuns(home=home, standby=standby))
    lost = flow(
        regions=RegionRuns(home=replace_struct(home, at=NOW - 180_000), standby=replace_struct(standby, works=True))
    )
    alone = flow(regions=RegionRuns(home=home))

    assert "regions     us-east-1 works, 20 s ago; eu-west-1 stands by, 0 s ago" in list(summary(at_home))
    assert not at_home.needs_operator
    assert not list(notes(at_home))
    assert "regions     us-east-1 SILENT, 3 min ago; eu-west-1 works, 0 s ago" in list(summary(lost))
    assert lost.needs_operator
    (sentence,) = notes(lost)
    assert sentence.startswith("! us-east-1, the home of the flow, has been silent since")
    assert "eu-west-1 moves the groups; records, topics, configs, ACLs and mappings wait" in sentence
    assert [each for each in notes(alone) if "the standby in the target's region has not run ever" in each]
    assert as_json(alone)["regions"] == {
        "home": {"region": "us-east-1", "at": NOW - 20_000, "works": True},
        "standby": None,
    }
    assert as_json(flow())["regions"] is None
