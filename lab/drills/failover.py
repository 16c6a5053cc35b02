"""The failover demonstration: one flow, one outage, a failover, a failback, and an account of every record.

    records flow from A to B  ->  a drill  ->  A stops in the middle: its last records never left it
    mirrorless failover --source-lost  ->  producers and the group go on on B  ->  A is back
    mirrorless failback  ->  everybody returns to A

Every record that anybody wrote must be accounted for, and the group must have read each of them once.

The steps of the failover demonstration: rehearsal, outage, failover, failback.

Only the operator's commands touch the flow: `mirrorless failover` and `mirrorless failback`. All else is what
applications do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from lab.audit.audit import FINDINGS, audit_failover, totals
from lab.audit.topic_reader import read_whole, stable_ends
from lab.cloud import function_name
from lab.drills.drill import GROUP, REPOSITORY, Drill, add_options, perform
from lab.drills.group_move import ClusterSide, MovingGroup
from lab.drills.workload import SHAPES, Workload
from lab.state import StateFile
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders
from mirrorless.config.flow import Flow
from mirrorless.errors import MirrorlessError
from mirrorless.flow.naming import SPARK_MASTER_VARIABLE
from mirrorless.jobs.request import Policy
from mirrorless.protocol.positions import ORDERED_MS
from mirrorless.verify.comparison import RecordAt
from spark.jobs.leases import SKEW_MS

POLICIES: Mapping[str, Policy] = {"orders": "replay", "payments": "quarantine"}
"""Of the orphans of each topic that the demonstration writes to."""
LIVE_SECONDS, AWAY_SECONDS, BACK_SECONDS = 10.0, 10.0, 5.0
QUICKER = 3
"""By which the parts are shorter in a quick drill."""
RECORDS = 20_000
"""While everything is well; fewer in the other parts."""
TIMEOUT_SECONDS = 240.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `python -m lab failover`."""
    parser = subparsers.add_parser("failover", help="lose a region, fail over, fail back, account for all")
    parser.add_argument("--records", type=int, default=RECORDS, help="written while everything is well")
    add_options(parser, "failover-report.json")
    parser.add_argument("--page", type=Path, default=REPOSITORY / "failover-report.html", metavar="FILE")
    parser.add_argument(
        "--quick", action="store_true", help="work shorter, replace warm functions: not a minute's wait"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the drill; 0 if everything is accounted for."""
    given = {name: getattr(arguments, name) for name in ("records", "seed", "quick", "page")}
    return perform(
        "failover",
        lambda lab, console: FailoverDrill(lab=lab, console=console, **given),
        REPOSITORY / "lab" / "failover.yaml",
        kafka_version=arguments.kafka,
        written=[arguments.report, arguments.page],
    )


@dataclass(slots=True, kw_only=True)
class FailoverDrill(Drill):
    """The drill itself."""

    records: int
    seed: int
    page: Path
    """Where the page of the newest command is copied to."""
    quick: bool = False
    """Whether to work for a fraction of the time, and to throw warm functions away instead of waiting for them."""

    @property
    def flow(self) -> Flow:
        """The one flow."""
        return self.lab.flows[0]

    def run(self) -> dict[str, Any]:
        """Rehearsal, outage, failover, failback."""
        lab = self.lab
        lab.start_servers()
        self._workload("source", 1, 1.0).create_topics()
        lab.start_flows()
        group = self.group(self.flow, POLICIES)

        state = StateFile(lab, lab.folder / "state.json")
        state.ready()
        state.start()
        try:
            self._together(self._workload("source", self.records, self._seconds(LIVE_SECONDS)), group, "source", 0.7)
            self.await_replicated(POLICIES, TIMEOUT_SECONDS)
            self._operate("failover", "--drill")
            orphans = self._lose_the_source()
            self._operate("failover", "--source-lost")
            seen_at = self._seen_at()
            away = self._workload("target", self.records // 3, self._seconds(AWAY_SECONDS))
            self._together(away, group, "target", 0.8)
            lab.say(f"[bold]{self.flow.name.target}[/]: producers and the group have worked here; both stop")
            self._bring_back(seen_at)
            found = self._fail_back()
        finally:
            state.stop()
        self._together(self._workload("source", self.records // 5, self._seconds(BACK_SECONDS)), group, "source", 0.0)
        self.await_replicated(POLICIES, TIMEOUT_SECONDS)
        lab.say("replicated; reading both clusters whole")
        return self._account(group, orphans, found)

    # The parts

    def _lose_the_source(self) -> dict[str, dict[int, list[RecordAt]]]:
        """Write what never leaves the source; its records, by topic and partition, read without other readers."""
        lab, source = self.lab, self.flow.source.bootstrap[0]
        mappings = [each for each in lab.flow_mappings if each.topic in POLICIES]
        for mapping in mappings:
            lab.mappings.hold(mapping.uuid)
        before = {topic: stable_ends(source, topic) for topic in POLICIES}
        self._workload("source", self.records // 20, 0.5).produce()
        orphans = {
            topic: {
                partition: [each for each in seen if each.offset >= before[topic][partition]]
                for partition, seen in read_whole(source, topic).items()
            }
            for topic in POLICIES
        }
        made = sum(len(seen) for topic in orphans.values() for seen in topic.values())
        cluster = lab.clusters[self.flow.name.source]
        lab.supervisor.hold(*cluster.brokers)
        cluster.kill()
        lab.say(f"[bold]outage[/]: {self.flow.name.source} is killed (-9); {made:,} records never left it")
        return orphans

    def _operate(self, command: str, *options: str) -> dict[str, Any]:
        """A command on the flow; its report for machines."""
        lab, name = self.lab, str(self.flow.name)
        words = [command, name, *options, "--execute"]
        lab.say(f"[bold]mirrorless {' '.join(words)}[/]")
        answer = operate(words, state=lab.folder / "state.json", say=lab.say, folder=lab.folder / "operator")
        (found,) = answer["flows"]
        shutil.copyfile(lab.folder / "operator" / found["page"], self.page)
        totals = found["totals"]
        lab.say(f"{totals['mode']}: {totals['seconds']:.1f} s, recovery point {totals['recovery_point_seconds']} s")
        report: dict[str, Any] = json.loads((lab.folder / "operator" / found["report"]).read_text())
        return report

    def _seen_at(self) -> float:
        """By when every function sees that the flow is stopped."""
        if not self.quick:
            return time.monotonic() + ORDERED_MS / 1000
        # As if the stop were so old already; the job has the same minute in mind, and the clocks of two machines.
        states = DynamoDbLaneOrders(self.lab.dynamodb.client(), self.lab.tables.lanes)
        stop = states.flow_stop(self.flow.name)
        assert stop is not None  # noqa: S101 -- the command has put it there
        states.stop_flow(self.flow.name, replace(stop, at=stop.at - ORDERED_MS - SKEW_MS))
        self.lab.functions[function_name(self.flow)].recycle()  # those that start now see it
        return time.monotonic()

    def _bring_back(self, seen_at: float) -> None:
        """The source is back, with all that it had acknowledged."""
        if time.monotonic() < seen_at:
            self.lab.say("waiting until the minute is over in which a warm function may not have read the stop")
            self.over.wait(seen_at - time.monotonic())
        # What the poller had read before the outage is delivered now, and finds its flow stopped.
        for mapping in self.lab.flow_mappings:
            self.lab.mappings.release(mapping.uuid)
        cluster = self.lab.clusters[self.flow.name.source]
        self.lab.supervisor.release(*cluster.brokers)
        cluster.start()
        self.lab.say(f"[bold]{self.flow.name.source}[/] is back")

    def _fail_back(self) -> dict[str, Any]:
        """The report of the reconcile job that a failback has run."""
        policies = [word for topic, policy in POLICIES.items() for word in ("--policy", f"{topic}={policy}")]
        document = self._operate("failback", *policies)["document"]
        (facts,) = [step["facts"] for step in document["back"]["steps"] if step["step"] == "reconcile"]
        found: dict[str, Any] = facts["report"]
        self.lab.say(f"[bold]reconcile[/]: {found['report']['verdict']}")
        return found

    def _account(
        self, group: MovingGroup, orphans: Mapping[str, Mapping[int, Sequence[RecordAt]]], found: dict[str, Any]
    ) -> dict[str, Any]:
        audits = {
            topic: audit_failover(self.flow, topic, policy, orphans[topic], self.chains)
            for topic, policy in POLICIES.items()
        }
        made = {topic: sum(map(len, of_topic.values())) for topic, of_topic in orphans.items()}
        read = group.findings(audits)
        return {
            "totals": {
                **totals(row for audit in audits.values() for row in audit.rows),
                "reread": read.reread,
                "skipped": read.skipped,
                "orphans": found["totals"]["orphans"],
                "orphans_made": sum(made.values()),
                "copied_back": found["totals"]["copied_back"],
                "copied_back_ratio": found["totals"]["copied_back_ratio"],
                "reconciled": found["clean"],
            },
            "topics": [
                {"topic": topic, "policy": POLICIES[topic], **totals(audit.rows), "orphans": made[topic]}
                for topic, audit in audits.items()
            ],
            "reconcile": {name: found[name] for name in ("totals", "lanes", "groups", "troubles")},
        }

    def is_clean(self, report: Mapping[str, Any]) -> bool:
        """Whether every record is accounted for, and was read once."""
        found = report["totals"]
        wrong = any(found[name] for name in (*FINDINGS, "reread", "skipped"))
        return not wrong and found["orphans"] == found["orphans_made"] and found["reconciled"]

    def told(self, report: Mapping[str, Any]) -> Iterable[RenderableType]:
        """What became of the records, of those that never left the source, and of the group."""
        found, mark = report["totals"], "[bold]" if self.is_clean(report) else "[bold red]"
        faults = ", ".join(f"{found[name]:,} {name}" for name in FINDINGS)
        yield f"{found['records']:,} records on the source: {mark}{faults}[/]"
        lost, seen = found["orphans_made"], found["orphans"]
        yield f"{lost:,} had not been replicated when it was lost: {mark}{seen:,} found[/]"
        yield f"{found['copied_back']:,} came back from the target: {found['copied_back_ratio']:.1%} of its bytes"
        read = f"{found['reread']:,} read twice, {found['skipped']:,} never read"
        yield f"group {GROUP}, moved there and back: {mark}{read}[/]"

    # Who works

    def _seconds(self, usual: float) -> float:
        return usual / QUICKER if self.quick else usual

    def _workload(self, side: ClusterSide, records: int, seconds: float) -> Workload:
        self.seed += 1
        cluster = self.flow.source if side == "source" else self.flow.target
        name: Callable[[str], str] = str if side == "source" else self.flow.remote_topic
        shapes = {topic: SHAPES[topic] for topic in POLICIES}
        return Workload(
            cluster.bootstrap[0], records=records, seed=self.seed, seconds=seconds, shapes=shapes, name=name
        )

    def _together(self, workload: Workload, group: MovingGroup, side: ClusterSide, part: float) -> None:
        """Produce, while the group reads: until a part is produced, or, at the very end, all of it."""
        with ThreadPoolExecutor(1) as pool:
            producing = pool.submit(workload.produce)
            try:
                if part:
                    group.read(side, at_least=1, until=lambda: workload.progress >= part, seconds=TIMEOUT_SECONDS)
                else:
                    producing.result()
                    # What was written again belongs to what the group reads to its end.
                    self.await_replicated(POLICIES, TIMEOUT_SECONDS)
                    group.read_to_end(produced=producing.done, seconds=TIMEOUT_SECONDS)
            except BaseException:
                workload.stop()
                raise
            producing.result()


JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""As for the brokers: a job of the lab is over before the second compiler pays off. It takes half of the CPU so."""

DONE = frozenset({0, 3, 4})
"""Exit codes of a command that has done what it was ordered: 3 where something is to be looked at, 4 where not all
could be seen."""


class CommandFailed(MirrorlessError):
    """A command did not do what it was ordered. What it printed is in the text."""


def operate(words: Sequence[str], *, state: Path, say: Callable[[str], None], folder: Path) -> dict[str, Any]:
    """Run `mirrorless WORDS --json`, and pass its progress on.

    Args:
        words: without the deployment and the format.
        state: the lab's state file.
        say: called with each line of progress.
        folder: where jobs of this machine are kept; the command's working folder.

    Returns:
        the answer.

    Raises:
        CommandFailed: it was refused, or is unfinished.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        SPARK_MASTER_VARIABLE: "local[2,4]",
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "shared"), str(REPOSITORY))),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", *words, "--lab", str(state), "--json"],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None  # noqa: S101 -- asked for above
        assert process.stderr is not None  # noqa: S101 -- same
        lines = []
        for line in process.stderr:  # all of the answer fits into a pipe, and comes at the end
            lines.append(line)
            say(line.rstrip())
        answer = process.stdout.read()
    if process.returncode not in DONE:
        raise CommandFailed(f"`mirrorless {' '.join(words)}` ended with {process.returncode}: {answer}{''.join(lines)}")
    found: dict[str, Any] = json.loads(answer)
    return found
