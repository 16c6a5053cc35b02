"""Whole batches beside MM2, exactly once and tuned: backlogs as in `throughput`, of batches of a given size.

Ours is a continuous run of one shard, as in `pull`. The same with three replicas has a target of its own, of three
brokers: then a broker answers a batch once two others have it.
"""

from __future__ import annotations

from tests.benchmarks.beside_mm2 import pipe, throughput
from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.pulled_side import Pulled
from tests.benchmarks.beside_mm2.results import Results
from tests.benchmarks.beside_mm2.throughput import Plan

KIND = "pass-through"
REPLICATED_KIND = "pass-through, three replicas"
PIPE_KIND = "pass-through pipe"
REPLICAS = 3
NUMBER, REPLICATED_NUMBER = 70, 80
"""Of their sessions, apart from those of `throughput`."""
ATTEMPTS = 2


def measure(ground: Ground, results: Results, profile: Profile) -> None:
    """Measure both, and a pipe in C; what fails is in the results as failed."""
    if profile.pass_through is not None:
        _beside(ground, results, profile.pass_through, kind=KIND, number=NUMBER)
        if profile.pass_through_pipe:
            shapes = list(profile.pass_through.rounds)
            pipe.measure_shapes(ground, results, shapes, rounds=profile.pass_through_pipe, kind=PIPE_KIND)
    plan = profile.pass_through_replicated
    if plan is not None and throughput.due_rounds(results, plan, REPLICATED_KIND):
        with results.attempting(REPLICATED_KIND):
            results.say(f"starting a target of {REPLICAS} brokers")
            other = Ground(ground.folder / "replicated", quick_start=profile.quick_start, replicas=REPLICAS)
            with other.running():
                _beside(other, results, plan, kind=REPLICATED_KIND, number=REPLICATED_NUMBER)


def _beside(ground: Ground, results: Results, plan: Plan, *, kind: str, number: int) -> None:
    for attempt in range(ATTEMPTS):
        with results.attempting(f"{kind} beside MM2"):
            throughput.measure(ground, results, plan, number=number + attempt, kind=kind, ours_of=Pulled)
