"""The fault schedule of a soak run, drawn from a seed, so that any run can be replayed.

Pure. The seed fixes what is produced, how the mapping is set, and which fault comes at which point of the work; how
threads interleave is the machine's business, which is why there are many seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, get_args

from mirrorless.protocol.hooks import STEPS, Step

TopicFault = Literal[
    "delete remote topic",
    "re-create remote topic",
    "truncate remote topic",
    "add remote partition",
    "add source partition",
    "foreign producer",
    "source loses its end",
    "source outgrows its loss",
]
"""
delete remote topic     it is gone, until the forwarder or the refresh of topics creates it
re-create remote topic  deleted, and created again at once
truncate remote topic   DeleteRecords, of a part of each partition
add remote partition    the target has one more than the source
add source partition    one more lane; records are produced there too
foreign producer        another producer writes to the remote topic
source loses its end    each partition of the source topic, on all of its brokers, some of what was copied with it; the
                        stop comes before the log has grown past the position again
source outgrows its loss    the same, and the stop comes after that
"""

ClockFault = Literal["clock forward at step", "clock back at step", "freeze at step"]
"""
clock forward at step   an environment's wall clock is set an hour ahead
clock back at step      an hour back
freeze at step          SIGSTOP, and hours have passed on all clocks when it goes on
"""

NetworkFault = Literal[
    "distant target",
    "distant source",
    "narrow link to target",
    "narrow link to source",
    "cut link to target",
    "cut link to source",
]
"""
distant ...        a round trip of up to 120 ms, with jitter
narrow link ...    60 to 600 kB in a second
cut link ...       nothing passes: connections are refused and reset, or silent
"""

DynamoDbFault = Literal[
    "DynamoDB throttles parts",
    "DynamoDB throttles calls",
    "DynamoDB fails calls",
    "DynamoDB answers late",
    "DynamoDB loses answers",
]
"""
throttles parts   single keys and items refused inside a success
throttles calls   whole calls refused
fails calls       status 500, carried out or not
answers late      up to 2 s
loses answers     carried out, and the connection broken
"""

BrokerFault = Literal[
    "two target brokers down",
    "two source brokers down",
    "target leaders move",
    "source leaders move",
    "too few target replicas",
]
"""
two ... brokers down     of three, for a while: too few replicas are in sync, and too few controllers
... leaders move         a broker is shut down in order, and its leaders move back when it is there again
too few target replicas  the remote topic demands all replicas in sync, while one broker is away
"""

PullFault = Literal["outlive lease at step", "lost lease", "extra run"]
"""
outlive lease at step   SIGSTOP of a run of `pull`, until another run has its shard
lost lease              the lease of the shard is taken from its holder, which goes on
extra run               the schedule starts a run twice
"""

TriggerFault = Literal["change trigger"]
"""
change trigger   of a topic: to a schedule, or back to a mapping
"""

KeyFault = Literal["rotate key"]
"""
rotate key   the next version of the key that a topic's rule masks by is deployed
"""

FaultKind = Literal[
    "kill at step",
    "pause at step",
    "raise at step",
    "kill environment",
    "kill target broker",
    "kill source broker",
    "kill DynamoDB",
    "DynamoDB outage",
    "lost acknowledgement",
    "duplicate batch",
    "concurrent duplicate",
    "commit failure",
    "rebalance",
    TopicFault,
    ClockFault,
    NetworkFault,
    DynamoDbFault,
    BrokerFault,
    PullFault,
    TriggerFault,
    KeyFault,
]
"""
kill at step            SIGKILL of a function environment right after a step of the protocol
pause at step           SIGSTOP there; its invocation times out and is retried, and the zombie goes on later
raise at step           an exception there
kill environment        kill -9 of whichever environment comes first
kill ... broker         kill -9 of one broker; it comes back with its data
kill DynamoDB           the same
DynamoDB outage         it stays away for a while
lost acknowledgement    the poller dies between a success and its commit: redelivery, at other batch boundaries
duplicate batch         the same batch twice, one after the other
concurrent duplicate    the same batch in two environments at once
commit failure          one commit of the group's offsets fails
rebalance               a stranger joins the group: invocations under way become zombies
"""

_EXPENSIVE = frozenset(
    {"kill target broker", "kill source broker", "DynamoDB outage", "kill DynamoDB", *get_args(BrokerFault)}
)
"""At most two of these in a schedule: each costs seconds in which nothing else can be tested."""

DEGRADING: tuple[FaultKind, ...] = (*get_args(NetworkFault), *get_args(DynamoDbFault))
"""Something works on, and worse."""

OF_SOURCE: tuple[FaultKind, ...] = ("source loses its end", "source outgrows its loss")
DESTRUCTIVE: frozenset[FaultKind] = frozenset(
    {"delete remote topic", "re-create remote topic", "truncate remote topic", *OF_SOURCE}
)
"""At most one of these in a schedule: records are gone, and lanes wait for the operator."""
DESTROYED_BEFORE = 0.6
"""The part of the records after which none of these comes: the lanes have to go on afterwards."""


OF_PULL: Mapping[FaultKind, FaultKind] = {
    "lost acknowledgement": "outlive lease at step",
    "commit failure": "lost lease",
    "duplicate batch": "extra run",
    "concurrent duplicate": "lost lease",
    "rebalance": "outlive lease at step",
}
"""Faults of a mapping, and what a topic that `pull` reads has in their place."""

DrawnTrigger = Literal["mapping", "schedule", "change"]
"""Of a topic; `change`: it changes between both while it is written."""

RunTrigger = Literal[DrawnTrigger, "mixed"]
"""Of a run; `mixed`: two topics of one flow, one mapped and one scheduled."""

IN_TURN: tuple[RunTrigger, ...] = ("change", "mapping", "schedule", "mixed")
"""The triggers of seeds, in turn; the first is that of every fourth seed."""


SoakRule = Literal["", "masked", "sealed"]
"""
masked   some records are left out; fields, a header and the key are masked, and records that do not fit are dropped
sealed   whole values are encrypted, and keys are dropped
"""
WITH_RULES = 3
"""Each such seed's run has a rule for one of its topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault."""

    at: float
    """After which part of the records has been produced, 0 to 1."""
    kind: FaultKind
    step: Step
    """Of the protocol, for the kinds that happen at a step."""
    seconds: float
    """How long a pause or an outage lasts; after a change of a topic, until the next refresh of topics."""
    part: float = 0.0
    """0 to 1: how much of each partition a truncation removes; how much of a lane a reset leaves out; how bad a link or
    DynamoDB is; which broker."""

    def __str__(self) -> str:
        return f"{self.kind} {self.step}" if self.kind.endswith("at step") else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One topic of a run of the soak."""

    seed: int
    trigger: DrawnTrigger
    partitions: int
    records: int
    batch_size: int
    window_seconds: int
    pollers: int
    partial_responses: bool
    continuous: bool
    """Whether runs of `pull` read on until the next one takes over."""
    pace: int
    """By which pauses between bursts of records are longer: as many changes or fewer records take as long."""
    faults: tuple[PlannedFault, ...]
    people: bool = False
    """Whether its records are of people, whose secrets a rule masks."""
    rule: SoakRule = ""


FEW = 3
"""Other faults of a schedule that always has some."""

APART = 1_000_000
"""Between a seed and that of the second topic of its run."""

SEVERAL_BROKERS = 3
"""From so many in each cluster on, the faults of brokers are drawn too."""


def draw_run(
    seed: int,
    *,
    records: int,
    brokers: int = 1,
    trigger: RunTrigger | None = None,
    always: Sequence[FaultKind] = (),
    rules: bool = False,
) -> tuple[Schedule, ...]:
    """The topics of a seed's run, for clusters of so many brokers; without a trigger, it is the seed's turn's.

    Args:
        seed: of all that is drawn.
        records: in all topics.
        brokers: of each cluster.
        trigger: of the run.
        always: see `draw`; of a run with one topic.
        rules: whether a topic has a rule, whatever the seed's turn is.
    """
    trigger = trigger or IN_TURN[seed % len(IN_TURN)]
    if trigger == "mixed":
        topics = _two_topics(seed, records=records, brokers=brokers)
    else:
        topics = (draw(seed, records=records, brokers=brokers, trigger=trigger, always=always),)
    return _with_rule(seed, topics) if rules or seed % WITH_RULES == 0 else topics


def _two_topics(seed: int, *, records: int, brokers: int) -> tuple[Schedule, ...]:
    mapped = draw(seed, records=records // 2, brokers=brokers)
    # The second one's faults are those of its function and of its topics: clusters and stores have the first one's.
    scheduled = draw(seed + APART, records=records // 2, trigger="schedule")
    own = tuple(fault for fault in scheduled.faults if fault.kind not in {*_EXPENSIVE, *DEGRADING})
    return replace(mapped, pace=2), replace(scheduled, seed=seed, pace=2, faults=own)


def _with_rule(seed: int, topics: Sequence[Schedule]) -> tuple[Schedule, ...]:
    """People in all of them, a rule for one, and a new version of its key some time; all else is as it was drawn."""
    random = Random(f"rule {seed}")  # noqa: S311 -- as above
    rule: SoakRule = random.choice(("masked", "masked", "sealed"))
    chosen, rotation = random.choice(topics), _fault(random, "rotate key", STEPS[0])
    ruled = replace(chosen, rule=rule, faults=_in_order(*chosen.faults, rotation))
    return tuple(replace(ruled if each is chosen else each, people=True) for each in topics)


def draw(
    seed: int,
    *,
    records: int,
    brokers: int = 1,
    trigger: DrawnTrigger = "mapping",
    always: Sequence[FaultKind] = (),
) -> Schedule:
    """The schedule of one topic of a seed, for clusters of so many brokers.

    A seed has the same faults whatever the trigger is, but for those that only one of them can have, and the changes.

    Args: always: kinds that every schedule has, and a few others beside them; destructive ones take turns.
    """
    random = Random(seed)  # noqa: S311 -- a schedule, not a secret
    faults: list[PlannedFault] = []
    apart = {*DEGRADING, *get_args(BrokerFault), *get_args(PullFault), *get_args(TriggerFault), *get_args(KeyFault)}
    others = [kind for kind in get_args(FaultKind) if kind not in apart]
    expensive = destructive = 0
    # Every seed exercises one step and one degradation on purpose: 7 seeds in a row cover the protocol, 12 the
    # degradations, and four have some of the network's and some of DynamoDB's.
    faults.append(_fault(random, random.choice(("kill at step", "pause at step")), STEPS[seed % len(STEPS)]))
    worse = (DEGRADING[5 * seed % len(DEGRADING)], random.choice(DEGRADING))
    faults += [_fault(random, kind, random.choice(STEPS)) for kind in worse]
    if brokers >= SEVERAL_BROKERS:
        several: tuple[FaultKind, ...] = get_args(BrokerFault)
        others += several
        faults.append(_fault(random, several[seed % len(several)], random.choice(STEPS)))
        expensive += 1
    for _ in range(random.randint(3, 8)):
        kind = random.choice(others)
        expensive += kind in _EXPENSIVE
        destructive += kind in DESTRUCTIVE
        costly = kind in _EXPENSIVE and expensive > 2  # noqa: PLR2004 -- said above
        if not costly and (kind not in DESTRUCTIVE or destructive == 1):
            faults.append(_fault(random, kind, random.choice(STEPS)))
    drawn = Schedule(
        seed=seed,
        trigger=trigger,
        partitions=random.choice((1, 2, 3, 6)),
        records=records,
        batch_size=random.choice((50, 200, 1_000, 5_000)),
        window_seconds=random.choice((0, 0, 1)),
        pollers=random.choice((1, 1, 2)),
        partial_responses=random.random() < 0.7,  # noqa: PLR2004 -- mostly as deployed
        continuous=random.random() < 0.5,  # noqa: PLR2004 -- half of them
        pace=3 if trigger == "change" or always else 1,
        faults=(),
    )
    if always:
        in_turn = [kind for kind in always if kind in DESTRUCTIVE]
        kinds = [kind for kind in always if kind not in DESTRUCTIVE]
        kinds += in_turn[seed % max(1, len(in_turn)) :][:1]
        faults = random.sample([fault for fault in faults if fault.kind not in {*always, *DESTRUCTIVE}], FEW)
        faults += [_fault(random, kind, random.choice(STEPS)) for kind in kinds]
    if trigger != "mapping":
        faults = [replace(fault, kind=OF_PULL.get(fault.kind, fault.kind)) for fault in faults]
    if trigger == "change":
        # Lanes that wait for the operator have no trigger to change: he would take the mapping for his.
        faults = [fault for fault in faults if fault.kind not in DESTRUCTIVE]
        faults += [_fault(random, "change trigger", random.choice(STEPS)) for _ in range(random.randint(2, 4))]
    return replace(drawn, faults=_in_order(*faults))


def _in_order(*faults: PlannedFault) -> tuple[PlannedFault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _fault(random: Random, kind: FaultKind, step: Step) -> PlannedFault:
    return PlannedFault(
        at=round(random.uniform(0.0, DESTROYED_BEFORE if kind in DESTRUCTIVE else 0.95), 3),
        kind=kind,
        step=step,
        seconds=round(random.uniform(0.5, 6.0), 2),
        part=round(random.uniform(0.0, 1.0), 2),
    )
