"""The soak: many short runs, each with its own seed, its own faults and a full audit.

    python -m lab soak               all seeds that are not done yet; Ctrl-C and start again at will
    python -m lab soak --seed 7      one of them, again
    python -m lab soak --count 8     the first eight
    python -m lab soak --brokers 3   on clusters of three brokers; brokers are among the faults

One lab serves all runs; each run has its own topic, mapping and lanes. The result of a complete soak is written to
docs/reference/soak.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from lab.audit.audit import FINDINGS, audit_topic, totals, wait_until_replicated
from lab.audit.log_changes import LogChanges
from lab.audit.stuck_lanes import LaneWatch, longest_by_fault
from lab.cloud import Lab, addresses
from lab.drills.topic_drill import TopicDrill
from lab.drills.workload import RecordStream
from lab.esm.behaviour import LabBehaviour
from lab.faults.injector import Injector
from lab.faults.schedule import Schedule, draw
from lab.faults.topic_changes import insist
from lab.servers.artifacts import DEFAULT_KAFKA
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.errors import Retriable

REPOSITORY = Path(__file__).parents[2]
SEEDS = 64
RECORDS = 13_000
"""Produced in one run; some 80 % of them in transactions that are not aborted."""
RUN_SECONDS = 240.0
"""After which a run that has not replicated everything has failed."""

CONFIGURATION = """
clusters:
  source: {bootstrap.servers: source.example.com:9092, region: us-east-1}
  target: {bootstrap.servers: target.example.com:9092, region: eu-west-1}
flows:
  source->target:
    topics: [soak]
    transaction.timeout.ms: 3000
    function: {timeout.seconds: 6}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one seed came to."""

    seed: int
    records: int
    lost: int
    duplicated: int
    reordered: int
    different: int
    mistranslated: int
    faults: dict[str, int]
    """Faults carried out, by kind and step."""
    stuck_seconds: dict[str, float]
    """The longest time in which a lane was stuck at each of them; see `lab.audit.stuck_lanes`."""
    lanes_reset: int
    """Lanes that stopped for the documented reason, and went on by the documented command."""
    broker_restarts: int
    cold_starts: int
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not any(getattr(self, finding) for finding in FINDINGS)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `python -m lab soak`."""
    parser = subparsers.add_parser("soak", help="run random fault schedules and audit each")
    parser.add_argument("--seed", type=int, help="run this one only, whether done or not")
    parser.add_argument("--count", type=int, default=SEEDS, help="how many seeds, from 1")
    parser.add_argument("--records", type=int, default=RECORDS, help="per seed")
    parser.add_argument(
        "--brokers", type=int, choices=(1, 3), default=1, help="of each cluster; 3 adds the faults of brokers"
    )
    parser.add_argument("--kafka", default=os.environ.get("KAFKA") or DEFAULT_KAFKA, metavar="VERSION")
    parser.add_argument("--progress", type=Path, default=REPOSITORY / "soak-progress.json", metavar="FILE")
    parser.add_argument("--fresh", action="store_true", help="forget what is done")
    parser.add_argument("--report", type=Path, help="write the page of results there when all seeds are done")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run what is left; 0 if every seed is clean."""
    seeds = [arguments.seed] if arguments.seed is not None else range(1, arguments.count + 1)
    progress = {} if arguments.fresh or arguments.seed is not None else _read(arguments.progress)
    left = [seed for seed in seeds if str(seed) not in progress]
    say(f"{len(left)} of {len(seeds)} seeds to run on Kafka {arguments.kafka}, {arguments.records:,} records each")
    with Soak(kafka_version=arguments.kafka, brokers=arguments.brokers) as soak:
        for seed in left:
            result = soak.run(draw(seed, records=arguments.records, brokers=arguments.brokers))
            progress[str(seed)] = asdict(result)
            if arguments.seed is None:
                _write(arguments.progress, progress)
    results = [RunResult(**progress[str(seed)]) for seed in seeds]
    print(summary(results))
    clean = all(result.clean for result in results)
    if arguments.report and clean:
        arguments.report.write_text(report(results, arguments.kafka))
    return 0 if clean else 1


class Soak:
    """A lab that runs one schedule after the other. A context manager: leaving it stops everything."""

    def __init__(self, *, kafka_version: str, brokers: int = 1, folder: Path | None = None) -> None:
        self._folder = folder or REPOSITORY / ".lab" / f"soak-{os.getpid()}"
        self._folder.mkdir(parents=True, exist_ok=True)
        configuration = self._folder / "replication.yaml"  # a file, because the operator's commands read it
        configuration.write_text(CONFIGURATION)
        self._lab = Lab(
            configuration=load(configuration),
            folder=self._folder,
            kafka_version=kafka_version,
            brokers=brokers,
            behaviour=LabBehaviour(metadata_refresh_s=2.0),  # new partitions are seen within a run
            zombies=True,
            inject_faults=True,
            linked=True,
            control=False,
            say=lambda _: None,
        )
        self._failed = False

    def __enter__(self) -> Self:
        try:
            self._lab.start_servers()
            self._lab.create_topics(1)
            self._lab.start_flows()
        except BaseException:
            self._lab.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._lab.stop()
        if self._failed or exc[0] is not None:
            say(f"logs are kept in {self._folder}")
        else:
            shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, schedule: Schedule) -> RunResult:
        """Run one schedule and audit it."""
        began = time.monotonic()
        lab, flow = self._lab, self._lab.flows[0]
        function = next(iter(lab.functions.values()))
        restarts, cold_starts = lab.supervisor.restarts, function.cold_starts
        topic = f"soak-{schedule.seed}-{int(time.time())}"
        beside = lab.beside(flow)
        stream = RecordStream(addresses(beside.source), topic, schedule)
        stream.create_topic()
        mapping = lab.map_topic(flow, topic, **_options(schedule))
        lab.mappings.wait_enabled(mapping.uuid)
        drill = TopicDrill(lab=lab, flow=flow, mapping=mapping, stream=stream, folder=self._folder)
        injector = Injector(
            lab=lab,
            flow=flow,
            mapping=mapping,
            faults=schedule.faults,
            progress=stream.progress,
            change_topic=drill.change,
        )
        watch = LaneWatch(lab, flow.name, topic, lambda: stream.written)
        watch.start()
        injector.start()
        stream.produce()
        injector.finish()
        try:
            wait_until_replicated(lab, [mapping], deadline=began + RUN_SECONDS)
            while drill.attend():
                wait_until_replicated(lab, [mapping], deadline=began + RUN_SECONDS)
        finally:
            changes = drill.finish()  # its error is the reason of lanes that stand still
        stuck = longest_by_fault(watch.finish(), injector.carried_out)
        lab.unmap_topic(mapping)
        counts = self._audited(beside, topic, changes, deadline=began + RUN_SECONDS)
        result = RunResult(
            seed=schedule.seed,
            records=counts["records"],
            **{finding: counts[finding] for finding in FINDINGS},
            faults=dict(Counter(span.kind for span in injector.carried_out)),
            stuck_seconds=stuck,
            lanes_reset=len(changes.resets),
            broker_restarts=lab.supervisor.restarts - restarts,
            cold_starts=function.cold_starts - cold_starts,
            seconds=round(time.monotonic() - began, 1),
        )
        self._failed = self._failed or not result.clean
        faults = ", ".join(
            (f"{kind} x{count}" if count > 1 else kind) + f" ({result.stuck_seconds[kind]:.0f} s)"
            for kind, count in result.faults.items()
        )
        resets = f"; {result.lanes_reset} lanes reset" if result.lanes_reset else ""
        verdict = "clean" if result.clean else str({finding: getattr(result, finding) for finding in FINDINGS})
        say(f"seed {result.seed:3}: {verdict}; {result.records:,} records, {result.seconds:.0f} s; {faults}{resets}")
        return result

    def _audited(self, flow: Flow, topic: str, changes: LogChanges, *, deadline: float) -> dict[str, int]:
        """The audit's totals; a server that was killed last may still be on its way back."""
        return insist(
            lambda: totals(audit_topic(self._lab, flow, topic, changes=changes).rows),
            interruptions=(Retriable,),
            seconds=deadline - time.monotonic(),
        )


def _options(schedule: Schedule) -> dict[str, Any]:
    """The mapping's settings of a schedule, in the API's names."""
    return {
        "BatchSize": schedule.batch_size,
        "MaximumBatchingWindowInSeconds": schedule.window_seconds,
        "ProvisionedPollerConfig": {"MinimumPollers": schedule.pollers, "MaximumPollers": schedule.pollers},
        "FunctionResponseTypes": ["ReportBatchItemFailures"] if schedule.partial_responses else [],
    }


def summary(results: Iterable[RunResult]) -> str:
    """One line of totals."""
    results = list(results)
    totals = ", ".join(f"{sum(getattr(each, finding) for each in results)} {finding}" for finding in FINDINGS)
    records = sum(each.records for each in results)
    faults = sum(sum(each.faults.values()) for each in results)
    return f"{len(results)} schedules, {records:,} records, {faults} faults: {totals}"


def report(results: Iterable[RunResult], kafka_version: str) -> str:
    """The page of a complete soak."""
    results = list(results)
    faults = Counter[str]()
    for result in results:
        faults.update(result.faults)
    stuck = {kind: max(each.stuck_seconds.get(kind, 0.0) for each in results) for kind in faults}
    day = time.strftime("%Y-%m-%d", time.gmtime())
    restarts, cold_starts = sum(each.broker_restarts for each in results), sum(each.cold_starts for each in results)
    resets = sum(each.lanes_reset for each in results)
    lines = [
        "# The last complete soak",
        "",
        f"`make soak` on Kafka {kafka_version}, {day}, two cores: {summary(results)}.",
        f"Servers were restarted {restarts} times, execution environments started {cold_starts} times.",
        f"{resets} lanes stopped because their remote topic was deleted or truncated, each for the documented reason,",
        "and went on by the documented command.",
        "Lab brokers look for timed-out transactions every second, Kafka's default is 10 s",
        "(`transaction.abort.timed.out.transaction.cleanup.interval.ms`): most of a run would be waiting for them.",
        "",
        "Each schedule is drawn from its seed (`make soak SEED=7` replays one).",
        "What is counted is defined in `lab/audit/audit.py`, and for changed topics in `lab/audit/log_changes.py`.",
        "",
        "The last column is the longest time in which a lane was stuck while such a fault was under way, and until it",
        "moved again. Other faults of the same run may have had their part in it; see `lab/audit/stuck_lanes.py`.",
        "",
        "| fault | carried out | longest stuck, s |",
        "| --- | --- | --- |",
        *(f"| {kind} | {count} | {stuck[kind]:.1f} |" for kind, count in sorted(faults.items())),
        "",
        "| seed | records | " + " | ".join(FINDINGS) + " | faults | restarts | cold starts | seconds |",
        "| --- " * (len(FINDINGS) + 6) + "|",
        *(_row([each.seed, each.records, *(getattr(each, finding) for finding in FINDINGS)], each) for each in results),
    ]
    return "\n".join(lines) + "\n"


def _row(findings: Iterable[int], result: RunResult) -> str:
    rest = (sum(result.faults.values()), result.broker_restarts, result.cold_starts, round(result.seconds))
    return "| " + " | ".join(map(str, (*findings, *rest))) + " |"


def say(text: str) -> None:
    """One line for whoever watches, at once."""
    print(f"soak: {text}", file=sys.stderr, flush=True)


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _write(path: Path, progress: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(progress, indent=1))
    draft.replace(path)
