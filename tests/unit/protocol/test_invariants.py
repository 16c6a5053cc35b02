"""The seven invariants of exactly-once replication, whatever happens to it, and in whatever order.

A. A record is visible to read_committed readers if and only if a committed run covers it.
B. The position of a lane never moves back within its generation.
C. Every upstream offset below the position is in exactly one run: in a span, or in a gap where the source has none.
D. Within a lane, downstream order is upstream order.
E. A zombie cannot commit after its successor prepared: whatever commits stands, prepared, in the chain.
F. The numbers of a journal's entries are taken without holes, and never twice.
G. An entry's heads name each other lane's newest link as of the moment its number was taken.

B and E are held at each effect (`World`), F and G after each step, the others at the end. Then each offset translates
both ways to where its record or the next one stands, and to no place behind that of MirrorMaker 2.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mirrorless.chain.lane_state import RUNNING, LeftOut, Stop
from mirrorless.errors import LeaseHeld, Retriable
from mirrorless.lanes.operator_actions import plan_reset
from mirrorless.protocol.event import Batch
from mirrorless.protocol.hooks import STEPS, Step
from mirrorless.protocol.outgoing import following_offset
from mirrorless.protocol.positions import STATES_MS
from mirrorless.protocol.replicate import Replicator
from mirrorless.protocol.translate import OffsetMap, Translation
from mirrorless.protocol.undelivered import LARGE_BYTES, UndeliveredRecords
from mirrorless.records.record import Record
from mirrorless.transforms.rules import Mask, Rule
from tests.support.batches import in_batches
from tests.support.chains import FLOW
from tests.support.clusters import Entry
from tests.support.mm2_store import Sync, SyncStore, SyncWriter
from tests.support.oversize_world import MemoryCommittedLog
from tests.support.protocol_world import World, records, replicate
from tests.support.schedule import Attempt, Killed, lost_answer, watched
from tests.support.tries import tries

END = 40
"""Above every upstream offset."""

MAPPINGS, PULL, JOBS = (0, 1), 2, (3, 4)
"""Environments of a mapping; one that reads whole batches, where there are any; and tries of jobs."""

LARGE = "large"
"""The name of a header that stands for a size, so that much needs no memory."""

HAPPENS = (
    "transactions time out",
    "time passes",
    "a stranger's record is aborted between ours",
    "retention or compaction",
    "the flow is held",
    "a lane is held",
    *["the operator lets all go on"] * 4,
    *["reset"] * 3,
)
Fate = Callable[[], BaseException] | None
LANES = st.sets(st.sampled_from(range(3)), min_size=1)
PLACES = st.sampled_from([3, 10, 20, 40, 400, *STEPS])
"""After how many points an invocation stands still or dies, or after which step of the protocol."""

FATES = st.sampled_from([None, None, None, Killed, lost_answer])
KINDS = {
    "records": [],
    "whole batches": ["passed", "packed anew", "both engines"],
    "large records": ["undelivered", "waiting"],
    "jobs": ["lease refused", "waiting"],
    "history first": ["lease refused", "waiting"],
    "rules": ["filtered", "masked", "not applicable", "another rule"],
}
"""Of flows, and what must happen to each, beside `ALWAYS`: schedules in which it does not show nothing."""

ALWAYS = ["Killed", "lost_answer", "Retriable", "held", "reset"]
happened = Counter[str]()
"""What the schedules of one kind did together."""


@dataclass
class Invocation:
    """What an environment, or a try of a job, does at present."""

    attempt: Attempt
    batch: Batch
    knows_positions: bool = False
    moved: set[int] = field(default_factory=set)
    """Partitions in which the operator has moved the mapping's group meanwhile."""


class Replication(RuleBasedStateMachine):
    """A flow's environments, its jobs and operator, its source and its target."""

    kind: str
    """One of `KINDS`."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        """A flow with its source's records."""
        self.chance = Random(seed)
        offsets = [self.chance.sample(range(END), self.chance.randint(1, 30)) for _ in range(self.chance.randint(1, 3))]
        self.there = World({p: records(*sorted(found)) for p, found in enumerate(offsets)})
        self.there.topics = self.chance.choice([1, 2])
        self.there.history_first = self.kind == "history first"
        if self.kind == "whole batches":
            self.there.batches = {p: in_batches(found, self.chance) for p, found in self.there.source.items()}
        for record in (each for found in self.there.source.values() for each in found):
            if self.kind == "large records" and self.chance.random() < 0.1:
                record.headers.append((LARGE, None))
        self.refused = {b"%d" % offset for offset in self.chance.sample(offsets[0], 1) if self.chance.random() < 0.7}
        if self.kind == "rules":
            self.there.deploy(rule_of(1))
            self.there.batches = {p: in_batches(found, self.chance) for p, found in self.there.source.items()}
            self.refused |= {b"%d" % at for found in offsets for at in found if at in NOT_APPLICABLE}
        self.there.cluster.refuses = lambda _, __, record: record.value in self.refused
        few = 150 if self.kind == "rules" else 20
        self.there.cluster.batch_bytes = self.chance.choice([few, 10**6, 10**6])  # of three records, or of all
        self.patches = ExitStack()
        self.patches.enter_context(patch("mirrorless.chain.entry.JOURNAL_LANES", self.chance.choice([2, 16])))
        self.patches.enter_context(patch("mirrorless.protocol.undelivered.event_bytes", _bytes_in_event))
        self.acknowledged = dict.fromkeys(self.there.source, 0)
        self.born_at = dict.fromkeys(self.there.source, 0)
        self.floor = dict.fromkeys(self.there.source, 0)
        self.environments = [self.environment(actor) for actor in (*MAPPINGS, PULL, *JOBS)]
        self.flying: dict[int, Invocation] = {}

    def environment(self, actor: int) -> Replicator:
        """A new one. The first mapping's never comes to the end of what it looks for in a log."""
        made = self.there.environment(job=f"job-{actor}" if actor in JOBS else "")
        if actor in MAPPINGS and self.kind == "large records":
            log = MemoryCommittedLog(self.there, ends_at=1 << 40 if actor else END // 4)
            made.undelivered = UndeliveredRecords(log=watched(log, "log"), from_log_start=True)
        return made

    # What environments do

    @rule(
        actor=st.sampled_from([*MAPPINGS, PULL]),
        lanes=LANES,
        back=st.integers(0, 5),
        count=st.integers(1, 20),
        place=PLACES,
        fate=FATES,
    )
    def deliver(self, actor: int, *, lanes: set[int], back: int, count: int, place: int | Step, fate: Fate) -> None:
        """Records from below what was acknowledged on, at any boundaries; the mapping leaves out what is too large."""
        if actor not in self.flying:
            begins = {p: max(self.floor[p], at - back) for p, at in self.acknowledged.items() if p in lanes}
            batch = self.there.batch(**{f"p{p}": [*range(at, at + back + count)] for p, at in begins.items()})
            if self.there.batches and actor == PULL:
                batch = replace(self.there.raw(batch), begins={place: begins[place[1]] for place in batch.records})
            elif self.kind == "large records" and actor != PULL:
                fit = {p: [r for r in batch.records_of(p) if _bytes_in_event(r) < LARGE_BYTES] for p in batch.records}
                batch = Batch(records={place: found for place, found in fit.items() if found})
            self.begin_invocation(actor, batch)
        self.go_on(actor, place, fate)

    @precondition(lambda self: self.kind in {"jobs", "history first"})
    @rule(actor=st.sampled_from(JOBS), lane=st.integers(0, 2), count=st.integers(1, 20), place=PLACES, fate=FATES)
    def copy(self, actor: int, *, lane: int, count: int, place: int | Step, fate: Fate) -> None:
        """A job takes a lane, or keeps it for longer, and reads on from its position; or it lets go."""
        partition = lane % len(self.there.source)
        if actor not in self.flying:
            at = self.there.head(partition).position
            try:
                self.there.lease(partition, job=f"job-{actor}", seconds=30)
            except LeaseHeld:
                happened["lease refused"] += 1
                return
            self.begin_invocation(actor, self.there.chunk(at, min(at + count, END), partition))
        self.go_on(actor, place, fate)
        if actor not in self.flying and count % 2:
            position = self.there.head(partition).position
            self.there.states.let_go(self.there.lane(partition), f"job-{actor}", position=position)

    def begin_invocation(self, actor: int, batch: Batch) -> None:
        """Nothing of it has run yet."""
        self.flying[actor] = Invocation(self.there.attempt(batch, self.environments[actor]), batch)

    @precondition(lambda self: self.flying)
    @rule(which=st.integers(0, 4), place=PLACES, fate=FATES)
    def resume(self, which: int, place: int | Step, fate: Fate) -> None:
        """One that stood still goes on: that is what zombies do."""
        self.go_on(sorted(self.flying)[which % len(self.flying)], place, fate)

    def go_on(self, actor: int, place: int | Step, fate: Fate) -> None:
        """It runs for a while, and then dies, has no answer, or stands still."""
        flying = self.flying[actor]
        attempt = flying.attempt
        for _ in range(place if isinstance(place, int) else 400):
            if not attempt.running:
                break
            point = attempt.resume()
            flying.knows_positions |= point == "position"
            if point == place:
                break
        if attempt.running and fate is not None:
            happened[fate.__name__] += 1
            attempt.resume(fate())
        if not attempt.running:
            self.land(actor)

    def land(self, actor: int) -> None:
        """One has come to its end."""
        landed = self.flying.pop(actor)
        attempt, batch = landed.attempt, landed.batch
        if isinstance(attempt.error, Killed):
            self.environments[actor] = self.environment(actor)
        elif attempt.error is not None:
            assert isinstance(attempt.error, Retriable), attempt.error
            happened[type(attempt.error).__name__] += 1
        else:
            stopped, waiting = attempt.result.stopped, attempt.result.waiting
            for (_, partition), stop in stopped.items():
                self.assert_justified(partition, stop)
            happened.update([*(stop.reason for stop in stopped.values()), *["waiting"] * len(waiting)])
            taken = batch.records.keys() - stopped.keys() - waiting.keys()
            for place in taken if actor not in JOBS else ():
                before = self.acknowledged[place[1]]
                if place[1] not in landed.moved and (found := batch.records[place]) and batch.first(place) <= before:
                    self.acknowledged[place[1]] = max(before, following_offset(found))

    def assert_justified(self, partition: int, stop: Stop) -> None:
        """A lane stands still at what the target refuses, at what no event can carry, or where it was told to."""
        ever = [*self.there.gone.get(partition, ()), *self.there.source[partition]]
        at = [each for each in ever if each.offset == stop.upstream_offset]
        match stop.reason:
            case "refused":
                assert [each.value in self.refused for each in at] == [True]
            case "undelivered":
                assert [_bytes_in_event(each) > LARGE_BYTES for each in at] == [True]
            case reason:
                assert reason == "held"

    # What happens to them

    @rule(what=st.sampled_from(HAPPENS), lane=st.integers(0, 2), number=st.integers(0, 20))
    def happens(self, what: str, lane: int, number: int) -> None:  # noqa: C901 -- one case for each
        """To a lane, its logs, or to all."""
        partition, there = lane % len(self.there.source), self.there
        state = there.states.states.get(there.lane(partition), RUNNING)
        hold = Stop(reason="held", upstream_offset=0, detail="", at=there.now)
        match what:
            case "transactions time out":
                there.cluster.time_transactions_out()
            case "time passes":
                there.now += 5_000 * number
            case "a stranger's record is aborted between ours":
                if partition < len(logs := there.cluster.topics.get(self.remote(partition), [])):
                    logs[partition].append(Entry(None, "aborted", "a stranger"))
            case "retention or compaction":
                if not self.flying and not there.batches:
                    there.remove(partition, number, 2 * number)
            case "the flow is held":
                there.states.stop_flow(FLOW, hold)
            case "a lane is held":
                if state.stop is None:
                    there.states.stop(there.lane(partition), hold)
            case "the operator lets all go on":
                there.states.resume_flow(FLOW)
                self.leave_out(partition)
            case "reset":
                self.reset(partition, 5 - number)

    def leave_out(self, partition: int) -> None:
        """Order that what the target refuses of a lane be left out, and let it go on."""
        self.there.states.quarantine(self.there.lane(partition), *LeftOut.each(*map(int, self.refused)))

    def reset(self, partition: int, move: int) -> None:
        """Begin a new generation where the group of the mapping begins as well."""
        lane, head = self.there.lane(partition), self.there.head(partition)
        state = self.there.states.states.get(lane, RUNNING)
        to = max(0, head.position + move)
        place = lane.topic, partition
        early = any(
            each.batch.records.get(place) and (not each.knows_positions or each.batch.first(place) < to)
            for each in self.flying.values()
        )
        if early or head.in_doubt or head.run is None or state.lease is not None:
            return
        if to < head.position:
            self.floor[partition] = to  # what lies below was another topic's, for all that the lane knows
        self.there.chains.reset(plan_reset(lane, head, state, to, reason="", now=self.there.now).link)
        self.there.states.begin_anew(lane)
        self.acknowledged[partition] = to
        for each in self.flying.values():
            each.moved.add(partition)
        self.born_at[partition] = len(self.there.cluster.topics[self.remote(partition)][partition])
        happened["reset"] += 1

    # What must hold

    @invariant()
    def journals_have_no_holes_and_name_each_lanes_newest_link(self) -> None:
        """F and G."""
        self.there.assert_journals()

    def teardown(self) -> None:
        """At the end everything comes that was left: then the other invariants hold, and the map is right."""
        for actor in list(self.flying):
            self.flying[actor].attempt.finish()
            self.land(actor)
        self.there.cluster.time_transactions_out()
        self.there.states.resume_flow(FLOW)
        self.there.now += STATES_MS
        self.there.history_first = False
        for partition in self.there.source:
            self.bring_what_a_job_has_left(partition)
        for _ in self.there.source:
            if self.there.deliver().stopped:
                for partition in self.there.source:
                    self.leave_out(partition)
                self.there.deliver()
        for partition in self.there.source:
            runs = self.there.runs(partition)
            assert self.there.head(partition).position > self.there.source[partition][-1].offset
            assert {b"%d" % offset for run in runs for offset in run.quarantined} <= self.refused
            self.assert_translated(partition)
        self.there.assert_invariants()
        for runs in map(self.there.runs, self.there.source):
            raw = [run for run in runs if run.digest_of == "batches"]
            happened["both engines"] += 0 < len(raw) < len(runs)
            happened["passed"] += sum(run.passed_bytes > 0 for run in raw)
            happened["filtered"] += sum(len(run.filtered) for run in runs)
            happened["masked"] += sum(run.records for run in runs if run.rule)
            happened["not applicable"] += sum(at in NOT_APPLICABLE for run in runs for at in run.quarantined)
            happened["another rule"] += len({run.rule for run in runs}) > 1
            happened["packed anew"] += sum(run.passed_bytes < run.bytes for run in raw)
        self.patches.close()

    def bring_what_a_job_has_left(self, partition: int) -> None:
        """As the next run of a job does it, or a trigger that reads the log itself."""
        self.there.deliver(Batch(records={}))
        self.leave_out(partition)
        lane = self.there.lane(partition)
        self.there.states.states[lane] = RUNNING
        idle = self.there.environment()
        idle.positions.load([lane], idle.remote_topic, lambda: 30.0)  # it settles what is in doubt
        rest = self.there.chunk(self.there.head(partition).position, END, partition)
        self.leave_out(partition)
        assert not replicate(self.there.environment(job="the last"), rest).stopped

    def assert_translated(self, partition: int) -> None:
        """By an oracle without a map, which lists both logs; MM2 sees records as they were acknowledged."""
        there, lane, offsets = self.visible(partition), self.there.lane(partition), OffsetMap(self.there.chains)
        upstream, downstream = dict(there), {down: up for up, down in there}
        behind = self.there.head(partition).position
        for at in range(END + 3):
            found = offsets.downstream(lane, at)
            assert found.offset == _true_place(there, at)
            assert (at in upstream) <= (found.state == "exact")
        for at in range(len(self.there.cluster.topics[self.remote(partition)][partition]) + 3):
            found = offsets.upstream(lane, at)
            following = next((up for up, down in there if down >= at), behind)
            assert found == Translation(offset=None, state="no_map") if not there else found.offset == following
            assert (at in downstream) <= (found.state == "exact")
        for lag_max in (0, 1, 5) if there else ():
            store, writer = SyncStore(), SyncWriter(lag_max=lag_max)
            for up, down in self.visible(partition, since=0):
                if writer.is_due(up, down):
                    store.add(Sync(up, down))
            for at in range(END + 3):
                ours, mm2 = offsets.downstream(lane, at).offset, store.translate(at)
                assert ours is not None
                assert mm2 is not None
                assert mm2 <= ours

    def visible(self, partition: int, since: int | None = None) -> list[tuple[int, int]]:
        """Upstream and downstream offset of each record that a reader of the target finds, of the newest generation."""
        since = self.born_at[partition] if since is None else since
        log = self.there.cluster.visible(self.remote(partition), partition)
        return [(int(record.value or b""), offset) for offset, record in log if offset >= since]

    def remote(self, partition: int) -> str:
        """The topic of a partition on the target."""
        return f"us-east.{self.there.lane(partition).topic}"


class ReplicationByRules(Replication):
    """The same, of a flow that changes records."""

    @rule(version=st.integers(1, 2), actor=st.sampled_from([*MAPPINGS, PULL]))
    def deploy(self, version: int, actor: int) -> None:
        """Another version of the rule, or of its key, and an environment that has it; the others go on with theirs."""
        self.there.deploy(rule_of(version), key_version=version)
        if actor not in self.flying:
            self.environments[actor] = self.environment(actor)


NOT_APPLICABLE = frozenset(range(5, END, 11))
"""Upstream offsets of records to which no version of the rule can be applied."""


def rule_of(version: int) -> Rule:
    """A rule that leaves out a third of all records, and changes the keys of the others."""
    left_out, fails = (json.dumps([str(at) for at in some]) for some in (range(version, END, 3), NOT_APPLICABLE))
    at = "headers.n"
    keep = f"!contains(`{left_out}`, {at}) && (!contains(`{fails}`, {at}) || abs({at}) > `0`)"
    return Rule(topics=(".*",), version=version, keep=keep, key=Mask(hmac="pii"))


def _bytes_in_event(record: Record) -> int:
    return LARGE_BYTES + 1 if any(name == LARGE for name, _ in record.headers) else 10


def _true_place(there: Sequence[tuple[int, int]], upstream: int) -> int | None:
    """The first downstream offset whose record's upstream offset is at or after this one; behind the last, the end."""
    return next((down for up, down in there if up >= upstream), there[-1][1] + 1 if there else None)


@pytest.mark.parametrize("kind", KINDS)
def test_any_schedule_of_rivals_zombies_crashes_and_lost_answers_keeps_the_invariants(kind: str) -> None:
    """The same schedules each time. One that fails is made shorter by `make unit MANY=1`, which takes minutes."""
    phases = [Phase.generate, *[Phase.shrink] * tries(0, many=1)]
    happened.clear()

    run_state_machine_as_test(
        type("Flow", (ReplicationByRules if kind == "rules" else Replication,), {"kind": kind}),
        settings=settings(
            max_examples=tries(30, many=200),
            stateful_step_count=60,
            derandomize=True,
            report_multiple_bugs=False,
            phases=phases,
        ),
    )

    assert min(happened[each] for each in ALWAYS + KINDS[kind]) > 0, happened
