"""The fault schedule of a soak run, drawn from a seed, so that any run can be replayed.

Pure. The seed fixes what is produced, how the mapping is set, and which fault comes at which point of the work; how
threads interleave is the machine's business, which is why there are many seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from mirrorless.protocol.hooks import STEPS, Step

TopicFault = Literal[
    "delete remote topic",
    "re-create remote topic",
    "truncate remote topic",
    "add remote partition",
    "add source partition",
]
"""
delete remote topic     it is gone, until the forwarder or the refresh of topics creates it
re-create remote topic  deleted, and created again at once
truncate remote topic   DeleteRecords, of a part of each partition
add remote partition    the target has one more than the source
add source partition    one more lane; records are produced there too
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

DESTRUCTIVE: frozenset[FaultKind] = frozenset(
    {"delete remote topic", "re-create remote topic", "truncate remote topic"}
)
"""At most one of these in a schedule: records are gone, and lanes wait for the operator."""
DESTROYED_BEFORE = 0.6
"""The part of the records after which none of these comes: the lanes have to go on afterwards."""


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
class FaultSpan:
    """When a fault was under way, on the clock of `time.monotonic`. One that takes no time ends when it begins."""

    kind: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One run of the soak."""

    seed: int
    partitions: int
    records: int
    batch_size: int
    window_seconds: int
    pollers: int
    partial_responses: bool
    faults: tuple[PlannedFault, ...]


SEVERAL_BROKERS = 3
"""From so many in each cluster on, the faults of brokers are drawn too."""


def draw(seed: int, *, records: int, brokers: int = 1) -> Schedule:
    """The schedule of a seed, for clusters of so many brokers."""
    random = Random(seed)  # noqa: S311 -- a schedule, not a secret
    faults: list[PlannedFault] = []
    others = [kind for kind in get_args(FaultKind) if kind not in {*DEGRADING, *get_args(BrokerFault)}]
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
    return Schedule(
        seed=seed,
        partitions=random.choice((1, 2, 3, 6)),
        records=records,
        batch_size=random.choice((50, 200, 1_000, 5_000)),
        window_seconds=random.choice((0, 0, 1)),
        pollers=random.choice((1, 1, 2)),
        partial_responses=random.random() < 0.7,  # noqa: PLR2004 -- mostly as deployed
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _fault(random: Random, kind: FaultKind, step: Step) -> PlannedFault:
    return PlannedFault(
        at=round(random.uniform(0.0, DESTROYED_BEFORE if kind in DESTRUCTIVE else 0.95), 3),
        kind=kind,
        step=step,
        seconds=round(random.uniform(0.5, 6.0), 2),
        part=round(random.uniform(0.0, 1.0), 2),
    )
