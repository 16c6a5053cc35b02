"""The soak: many short runs, each with its own seed, its own faults and a full audit.

    python -m lab soak               all seeds that are not done yet; Ctrl-C and start again at will
    python -m lab soak --seed 7      one of them, again
    python -m lab soak --count 8     the first eight
    python -m lab soak --brokers 3   on clusters of three brokers; brokers are among the faults
    python -m lab soak --trigger schedule    with topics that `pull` reads, whatever the seed's turn is
    python -m lab soak --always 'foreign producer'    with this fault in each schedule, and a few others beside it

One lab serves all runs; each run has its own topics and lanes. A topic is read by a mapping, by a schedule, or by one
after the other, or two are read by both: seeds take turns. A minute of `pull` lasts PULL_MINUTE_SECONDS here, and its
schedule starts a run every SCHEDULE_SECONDS. The result of a complete soak is written to docs/reference/soak.md.

Several soaks may work at the same time on one file of progress, each on seeds of its own: `--first 33 --count 32`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from rich.console import RenderableType

from lab.audit.audit import FINDINGS
from lab.drills.drill import REPOSITORY, Drill, perform
from lab.drills.soak_topic import SoakTopic
from lab.esm.behaviour import LabBehaviour
from lab.faults.schedule import DrawnTrigger, FaultKind, RunTrigger, Schedule, draw_run
from lab.servers.artifacts import DEFAULT_KAFKA
from mirrorless.errors import ConfigurationError
from mirrorless.flow.naming import FORWARD, PULL

SEEDS = 64
RECORDS = 13_000
"""Produced in one run; some 80 % of them in transactions that are not aborted."""
RUN_SECONDS = 240.0
"""After which a run that has not replicated everything has failed."""

SCHEDULE_SECONDS = 3.0
"""Between two starts of `pull`, and of `refresh_topics`."""
PULL_MINUTE_SECONDS = 10.0
"""The lease of a run that was killed stands for a minute, and EventBridge starts one each minute."""
PULL_TIMEOUT_SECONDS = 30.0
"""A run that reads continuously gives way in the second half of it."""
CONTROL: Mapping[str, Any] = {
    "refresh_topics_interval_seconds": 2.0,
    "window_seconds": 0.0,
    "heartbeats_replication_enabled": False,
    **dict.fromkeys(("emit_heartbeats_enabled", "emit_checkpoints_enabled"), False),
    **dict.fromkeys(("sync_topic_configs_enabled", "sync_topic_acls_enabled"), False),
}
"""Of the scheduled functions' settings: topics alone, and often."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `python -m lab soak`."""
    parser = subparsers.add_parser("soak", help="run random fault schedules and audit each")
    parser.add_argument("--seed", type=int, help="run this one only, whether done or not")
    parser.add_argument("--count", type=int, default=SEEDS, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first of them")
    parser.add_argument("--trigger", choices=get_args(RunTrigger), help="of all seeds; left out, they take turns")
    help_ = "faults that each schedule has, and a few others beside them; destructive ones take turns"
    parser.add_argument("--always", nargs="+", choices=get_args(FaultKind), default=(), metavar="FAULT", help=help_)
    parser.add_argument("--rules", action="store_true", help="with a rule for a topic in each run, not in a third")
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
    """Run what is left; 0 if every seed is clean.

    Raises:
        ConfigurationError: a page is asked for of other schedules than a complete soak's.
    """
    if arguments.report and arguments.always:
        raise ConfigurationError(
            "a page is of schedules as they are drawn", where="--report", hint="leave out --always"
        )
    alone = arguments.seed is not None
    first, count = (arguments.seed, 1) if alone else (arguments.first, arguments.count)
    seeds = range(first, first + count)
    if arguments.fresh and not alone:
        arguments.progress.unlink(missing_ok=True)
    results = {} if alone else read_results(arguments.progress)
    runs = [
        draw_run(
            seed,
            records=arguments.records,
            brokers=arguments.brokers,
            trigger=arguments.trigger,
            always=arguments.always,
            rules=arguments.rules,
        )
        for seed in seeds
        if seed not in results
    ]
    say(f"{len(runs)} of {len(seeds)} seeds to run on Kafka {arguments.kafka}, {arguments.records:,} records each")

    def keep(result: RunResult) -> None:
        results.update({result.seed: result} if alone else add_result(arguments.progress, result))

    if runs:
        perform(
            "soak",
            lambda lab, console: Soak(lab=lab, console=console, runs=runs, keep=keep),
            REPOSITORY / "lab" / "soak.yaml",
            kafka_version=arguments.kafka,
            brokers=arguments.brokers,
            behaviour=LabBehaviour(metadata_refresh_s=2.0),  # new partitions are seen within a run
            zombies=True,
            inject_faults=True,
            linked=True,
            control=any(topic.trigger != "mapping" for topics in runs for topic in topics),
            control_overrides=CONTROL,
            pull_overrides={"interval_seconds": int(SCHEDULE_SECONDS)},
            schedule_seconds=SCHEDULE_SECONDS,
            pull_timeout_seconds=PULL_TIMEOUT_SECONDS,
            pull_minute_seconds=PULL_MINUTE_SECONDS,
            say=lambda _: None,
        )
    found = [results[seed] for seed in seeds]
    print(summary(found))
    clean = all(result.clean for result in found)
    if arguments.report and clean:
        arguments.report.write_text(report(found, arguments.kafka))
    return 0 if clean else 1


@dataclass(slots=True, kw_only=True)
class Soak(Drill):
    """One schedule after the other, on one lab."""

    runs: Sequence[Sequence[Schedule]]
    """The topics of each seed."""
    keep: Callable[[RunResult], None]
    """Called with what each came to."""

    def run(self) -> dict[str, Any]:
        """Run every seed; whether each was clean."""
        self.start()
        clean = True
        for schedules in self.runs:
            result = self.run_seed(schedules)
            say(result.described())
            self.keep(result)
            clean = clean and result.clean
        return {"clean": clean}

    def is_clean(self, report: Mapping[str, Any]) -> bool:
        """Whether no seed's audit has found anything."""
        return bool(report["clean"])

    def told(self, report: Mapping[str, Any]) -> Iterable[RenderableType]:  # noqa: ARG002 -- the base's
        """Nothing: each seed's line has been printed."""
        return ()

    def start(self) -> None:
        """Start the lab, without a topic of a seed."""
        self.lab.start_servers()
        self.lab.create_topics(1)
        self.lab.start_flows()

    def run_seed(self, schedules: Sequence[Schedule]) -> RunResult:
        """Run the topics of one seed, side by side, and audit each."""
        began = time.monotonic()
        lab, flow, deadline = self.lab, self.lab.flows[0], began + RUN_SECONDS
        restarts, cold_starts = lab.supervisor.restarts, self._cold_starts
        topics: list[SoakTopic] = []
        for schedule in schedules:
            configure = partial(self._configure, topics)
            topics.append(
                SoakTopic(lab=lab, flow=flow, schedule=schedule, folder=lab.folder, configure=configure, over=self.over)
            )
        for topic in topics:
            topic.open()
        self._configure(topics)
        for topic in topics:
            topic.await_reader(deadline)
        run_together(topics, deadline)
        self._configure([])
        for topic in topics:
            if topic.mapping is not None and not lab.control:
                lab.unmap_topic(topic.mapping)
        counts = Counter[str]()
        for topic in topics:
            counts.update(topic.audited(deadline), planted=topic.search(deadline))
        return RunResult(
            seed=schedules[0].seed,
            trigger=schedules[0].trigger if len(schedules) == 1 else "mixed",
            records=counts["records"],
            **{finding: counts[finding] for finding in FINDINGS},
            faults={topic.schedule.trigger: topic.faults for topic in topics},
            lanes_reset=sum(len(topic.changes.resets) for topic in topics),
            resets=sum(1 + len(point.earlier) for topic in topics for point in topic.changes.resets.values()),
            broker_restarts=lab.supervisor.restarts - restarts,
            cold_starts=self._cold_starts - cold_starts,
            rule=next((schedule.rule for schedule in schedules if schedule.rule), ""),
            planted=counts["planted"],
            seconds=round(time.monotonic() - began, 1),
        )

    @property
    def _cold_starts(self) -> int:
        """Of the functions that replicate."""
        names = {flow.resource_name(part) for flow in self.lab.flows for part in (FORWARD, PULL)}
        return sum(function.cold_starts for name, function in self.lab.functions.items() if name in names)

    def _configure(self, topics: Sequence[SoakTopic]) -> None:
        """Give the flow these topics with their triggers, as a deployment would."""
        lab, flow = self.lab, self.lab.flows[0]
        if not lab.control:
            return
        mapped = [topic for topic in topics if topic.schedule.trigger != "schedule"]
        options = {"mapping_template": flow.mapping_template() | mapped[0].options} if mapped else {}
        lab.scheduled.overrides = {**CONTROL, **options}
        continuous = any(topic.schedule.continuous for topic in topics)
        schedule = flow.settings.schedule.model_copy(update={"continuous": continuous})
        triggers = {topic.name: topic.trigger for topic in topics}
        lab.change_triggers(flow.name, triggers, topics=tuple(triggers), schedule=schedule)


def run_together(topics: Sequence[SoakTopic], deadline: float) -> None:
    """Run topics side by side; where one fails, or at Ctrl-C, the others end too: their threads are waited for."""
    with ThreadPoolExecutor(len(topics)) as pool:
        running = [pool.submit(topic.run, deadline) for topic in topics]
        try:
            for each in wait(running, return_when=FIRST_EXCEPTION).done:
                each.result()
        except BaseException:
            for topic in topics:
                topic.stop()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one seed came to."""

    seed: int
    trigger: RunTrigger
    records: int
    lost: int
    duplicated: int
    reordered: int
    different: int
    mistranslated: int
    faults: dict[DrawnTrigger, dict[str, int]]
    """Faults carried out, by the topic's trigger, and by kind and step."""
    lanes_reset: int
    """Lanes that stopped for the documented reason, and went on by the documented command."""
    broker_restarts: int
    cold_starts: int
    seconds: float
    resets: int = 0
    """Commands that were carried out for them: two for a lane whose mapping had brought records of a changed source."""
    rule: str = ""
    """Of one of its topics."""
    planted: int = 0
    """Records of the source with secrets, which nothing else has shown."""

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not any(getattr(self, finding) for finding in FINDINGS)

    def count(self) -> int:
        """How many faults were carried out."""
        return sum(sum(faults.values()) for faults in self.faults.values())

    def described(self) -> str:
        """One line."""
        verdict = "clean" if self.clean else str({finding: getattr(self, finding) for finding in FINDINGS})
        by_topic = [
            (f"{trigger}: " if len(self.faults) > 1 else "")
            + ", ".join(f"{kind} x{count}" if count > 1 else kind for kind, count in faults.items())
            for trigger, faults in self.faults.items()
        ]
        resets = [f"{self.lanes_reset} lanes reset by {self.resets} commands"] if self.lanes_reset else []
        rule = [f"{self.rule}, {self.planted:,} records with secrets"] if self.rule else []
        said = "; ".join([verdict, f"{self.records:,} records, {self.seconds:.0f} s", *rule, *by_topic, *resets])
        return f"seed {self.seed:3} {self.trigger:8}: {said}"


def read_results(path: Path) -> dict[int, RunResult]:
    """The results in a file of progress, by seed; none without the file."""
    if not path.exists():
        return {}
    return {int(seed): RunResult(**each) for seed, each in json.loads(path.read_text()).items()}


def add_result(path: Path, result: RunResult) -> dict[int, RunResult]:
    """Add a result to a file of progress, to which other soaks may add theirs. Returns all of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = read_results(path) | {result.seed: result}
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps({str(seed): asdict(each) for seed, each in sorted(results.items())}, indent=1))
        draft.replace(path)
    return results


def summary(results: Iterable[RunResult]) -> str:
    """One line of totals."""
    results = list(results)
    totals = ", ".join(f"{sum(getattr(each, finding) for each in results)} {finding}" for finding in FINDINGS)
    records = sum(each.records for each in results)
    faults = sum(each.count() for each in results)
    lanes, commands = sum(each.lanes_reset for each in results), sum(each.resets for each in results)
    reset = f", {lanes} lanes reset by {commands} commands" if lanes else ""
    return f"{len(results)} schedules, {records:,} records, {faults} faults{reset}: {totals}"


def report(results: Iterable[RunResult], kafka_version: str) -> str:
    """The page of a soak."""
    results = list(results)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    restarts, cold_starts = sum(each.broker_restarts for each in results), sum(each.cold_starts for each in results)
    resets = sum(each.lanes_reset for each in results)
    runs, rules = Counter(each.trigger for each in results), Counter(each.rule for each in results if each.rule)
    lines = [
        "# The last complete soak",
        "",
        f"`make soak` on Kafka {kafka_version}, {day}, two cores.",
        "",
        f"**{summary(results)}.**",
        "",
        f"Servers were restarted {restarts} times, execution environments started {cold_starts} times.",
        f"{resets} lanes stopped for the documented reason, and went on by the documented command:",
        "their remote topic was deleted or truncated, or their source lost its end.",
        "",
        f"{rules.total()} schedules have a rule for a topic: {rules['masked']} leave records out and mask others,",
        f"{rules['sealed']} encrypt whole values. {sum(each.planted for each in results):,} of their records had",
        "secrets. None was in a log, a table, the answer of a command, or the remote topic with its aborted records.",
        "",
        "Each schedule is drawn from its seed: `make soak SEED=7` with the same options replays one.",
        "What is counted is defined in `lab/audit/audit.py`, and for changed topics in `lab/audit/log_changes.py`.",
        "Timed-out transactions are looked for every second, not every 10 s, and a minute of `pull` lasts 10 s.",
        "",
        "| topics of a schedule | schedules |",
        "| --- | --- |",
        *(f"| {_TOPICS[trigger]} | {runs[trigger]} |" for trigger in get_args(RunTrigger) if runs[trigger]),
    ]
    return "\n".join(lines) + "\n"


_TOPICS = {
    "mapping": "one, mapped",
    "schedule": "one, read by a schedule",
    "change": "one, whose trigger changes there and back while it is written",
    "mixed": "two of one flow, one mapped and one read by a schedule",
}


def say(text: str) -> None:
    """One line for whoever watches, at once."""
    print(f"soak: {text}", file=sys.stderr, flush=True)
