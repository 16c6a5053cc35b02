"""The demonstration: two clusters in both directions, two faults, a group that moves, and a full audit.

While records flow, the consumer group `shop` reads two topics on one cluster, is moved to the other one, and back. Each
record must arrive once, and must be read once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from lab.audit.audit import PartitionAudit, audit_topic, table, totals, wait_until_replicated
from lab.cloud import Lab
from lab.drills.application import Application
from lab.drills.group_move import ClusterSide, GroupFindings, MovingGroup
from lab.drills.workload import SHAPES, Workload
from lab.servers.artifacts import DEFAULT_KAFKA
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.errors import ConfigurationError

REPOSITORY = Path(__file__).parents[2]
RECORDS = 30_000
"""Produced on each side."""
SECONDS = 30.0
"""Over which they are spread."""
REPLICATED_WITHIN_SECONDS = 120.0
FUNCTION_KILL_AT, BROKER_KILL_AT = 0.3, 0.6
"""Part of the records after which the faults come."""
GROUP = "shop"
GROUP_TOPICS = ("orders", "payments")
"""With transactions among them, so that offsets differ between the clusters."""
LEAVE_AT, RETURN_AT = 0.15, 0.75
"""Part of the records after which the group leaves the source, and the target: both faults come while it is there."""
READ_AT_LEAST = 0.05
"""Of the records, before the group leaves: however slow the machine, it has read on both sides."""
MOVED_WITHIN_SECONDS = 90.0
READ_WITHIN_SECONDS = 120.0
CONTROL = {
    "checkpoints_seconds": 1,
    "sync_group_offsets_seconds": 1,
    "sync_group_offsets_reverse": True,
    "refresh_topics_seconds": 5,
    "window_seconds": 18,
    "group_grace_seconds": 2,
}
"""Set beside the configuration: the group's offsets go back too, and intervals are short."""
SCHEDULE_SECONDS = 20.0
"""Instead of EventBridge's minute: a run that died with its broker is made up for by the next one."""
LOOK_EVERY_SECONDS = 0.5


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `python -m lab demo`."""
    parser = subparsers.add_parser("demo", help="two clusters, active-active, two faults, a moving group, and an audit")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "replication.example.yaml", metavar="FILE")
    parser.add_argument("--records", type=int, default=RECORDS, help="produced on each side")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="over which they are spread")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kafka", default=os.environ.get("KAFKA") or DEFAULT_KAFKA, metavar="VERSION")
    parser.add_argument("--report", type=Path, default=REPOSITORY / "demo-report.json", metavar="FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration; 0 if the audit finds nothing."""
    # SIGTERM ends it as Ctrl-C does: with everything stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A pipe or a log has no width of its own: give the table the room it needs.
    console = Console(width=None if sys.stdout.isatty() else 120)
    began = time.monotonic()
    folder = REPOSITORY / ".lab" / f"demo-{os.getpid()}"
    lab = Lab(
        configuration=load(arguments.config),
        folder=folder,
        kafka_version=arguments.kafka,
        inject_faults=True,
        control_overrides=CONTROL,
        schedule_seconds=SCHEDULE_SECONDS,
        say=lambda text: console.print(f"[dim]{time.monotonic() - began:5.1f} s[/]  {text}", highlight=False),
    )
    clean = False
    try:
        rows, group = Demonstration(
            lab, console, records=arguments.records, seconds=arguments.seconds, seed=arguments.seed
        ).run()
        found = totals(rows)
        report = {
            "seconds": round(time.monotonic() - began, 1),
            "totals": found,
            "groups": {"group": GROUP, **asdict(group)},
            "rows": [asdict(row) for row in rows],
        }
        arguments.report.write_text(json.dumps(report, indent=2) + "\n")
        console.print(table(rows))
        replicated = not any(count for name, count in found.items() if name != "records")
        verdict = (
            "each arrived once, in order, byte for byte, and every offset translates" if replicated else str(found)
        )
        console.print(f"{found['records']:,} records audited: {verdict}.")
        console.print(_told(group))
        console.print(f"{report['seconds']} s; {arguments.report}")
        clean = replicated and group.clean
    finally:
        lab.stop()
        if clean:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            console.print(f"logs are kept in {folder}")
    return 0 if clean else 1


def _told(group: GroupFindings) -> str:
    """What became of the group, in a line."""
    counts = ", ".join(f"{count:,} on {alias}" for alias, count in group.read_on.items())
    mark = "[bold]" if group.clean else "[bold red]"
    verdict = f"{mark}{group.reread:,} read twice, {group.skipped:,} never read[/]"
    if group.strays:
        verdict += f", and offsets of {group.strays} topics that it never was to read"
    return f"group {GROUP}, moved there and back: {group.records:,} records, {counts}: {verdict}."


@dataclass(slots=True)
class Demonstration:
    """The demonstration itself, on a lab that is not started yet."""

    lab: Lab
    console: Console
    records: int
    seconds: float
    seed: int
    _workloads: dict[str, Workload] = field(init=False, default_factory=dict)
    _over: threading.Event = field(init=False, default_factory=threading.Event)
    _on_target: threading.Event = field(init=False, default_factory=threading.Event)

    def run(self) -> tuple[Sequence[PartitionAudit], GroupFindings]:
        """Start, produce on every source, break two things, move the group, wait, audit."""
        lab = self.lab
        flows = lab.flows
        topics = [topic for topic in SHAPES if all(topic in flow.literal_topics for flow in flows)]
        if len(topics) != len(SHAPES):
            raise ConfigurationError(
                f"the demonstration writes to {', '.join(SHAPES)}, and every flow must replicate these",
                where=lab.configuration.origin,
                hint="add the topics to each flow, or use replication.example.yaml",
            )
        lab.start_servers()
        for number, alias in enumerate(sorted({flow.name.source for flow in flows})):
            workload = Workload(
                lab.clusters[alias].bootstrap, records=self.records, seed=self.seed + number, seconds=self.seconds
            )
            workload.create_topics()
            self._workloads[alias] = workload
        lab.create_topics()
        lab.start_flows()

        with ThreadPoolExecutor() as pool, Live(self._progress(), console=self.console, transient=True) as live:
            group = self._group(flows[0])
            producing = {alias: pool.submit(workload.produce) for alias, workload in self._workloads.items()}
            work = [
                *producing.values(),
                pool.submit(self._break_things, flows[0]),
                pool.submit(self._move, group, producing[flows[0].name.source]),
            ]
            try:
                while not work_is_over(work, seconds=LOOK_EVERY_SECONDS):
                    live.update(self._progress())
            finally:
                # Ctrl-C: leaving the pool waits for what runs in it.
                self._over.set()
                for workload in self._workloads.values():
                    workload.stop()
            for each in work:
                each.result()
            lab.say("everything is produced; waiting for the last records")
            # Heartbeats go on for ever: their mappings are never done.
            mappings = [mapping for mapping in lab.flow_mappings if mapping.topic in topics]
            wait_until_replicated(lab, mappings, deadline=time.monotonic() + REPLICATED_WITHIN_SECONDS)
        lab.say("replicated; reading both clusters whole")
        audits = {(flow.name, topic): audit_topic(lab, flow, topic) for flow in flows for topic in topics}
        findings = group.findings({topic: audits[flows[0].name, topic] for topic in GROUP_TOPICS})
        return [row for audit in audits.values() for row in audit.rows], findings

    def _break_things(self, flow: Flow) -> None:
        """Kill the function between produce and record, then the target's broker; the group reads there."""
        workload, target = self._workloads[flow.name.source], self.lab.clusters[flow.name.target]
        self._on_target.wait()
        if self._reached(workload, FUNCTION_KILL_AT):
            order = self.lab.faults.order("kill", "produced")
            if not self.lab.faults.await_claimed(order, seconds=REPLICATED_WITHIN_SECONDS, over=self._over):
                return
            self.lab.say("[bold]fault 1[/]: a function was killed (-9) after it produced, before it recorded anything")
        if self._reached(workload, BROKER_KILL_AT):
            self.lab.say(f"[bold]fault 2[/]: the broker of {target.alias} is killed (-9)")
            target.kill()

    def _group(self, flow: Flow) -> MovingGroup:
        return MovingGroup(
            flow=flow,
            partitions={topic: SHAPES[topic].partitions for topic in GROUP_TOPICS},
            chains=DynamoDbChains(self.lab.dynamodb.client(), self.lab.tables.offset_map),
            application=Application(GROUP),
            over=self._over,
        )

    def _move(self, group: MovingGroup, producing: Future[None]) -> None:
        """Let the group read here, there, and here again, to the end."""
        try:
            self._move_there(group)
        finally:
            self._on_target.set()  # or never will be: no waiter may wait for it any longer
        self._move_back(group, producing)

    def _move_there(self, group: MovingGroup) -> None:
        source, target = group.flow.name.source, group.flow.name.target
        self._read(group, "source", LEAVE_AT)
        self.lab.say(f"[bold]group {GROUP}[/]: it leaves {source}; waiting for its offsets on {target}")
        seconds = group.await_offsets("target", seconds=MOVED_WITHIN_SECONDS)
        self.lab.say(f"[bold]group {GROUP}[/]: it goes on on {target} after {seconds:.1f} s")

    def _move_back(self, group: MovingGroup, producing: Future[None]) -> None:
        source, target = group.flow.name.source, group.flow.name.target
        self._read(group, "target", RETURN_AT)
        self.lab.say(f"[bold]group {GROUP}[/]: it leaves {target}; waiting for its offsets on {source}")
        seconds = group.await_offsets("source", seconds=MOVED_WITHIN_SECONDS)
        self.lab.say(f"[bold]group {GROUP}[/]: it goes on on {source} after {seconds:.1f} s")
        group.read_to_end(produced=producing.done, seconds=READ_WITHIN_SECONDS)

    def _read(self, group: MovingGroup, side: ClusterSide, part: float) -> None:
        """Until a part of the records is produced."""
        workload, some = self._workloads[group.flow.name.source], int(self.records * READ_AT_LEAST)
        group.read(side, at_least=some, until=lambda: workload.progress >= part, seconds=READ_WITHIN_SECONDS)

    def _reached(self, workload: Workload, part: float) -> bool:
        """Wait for a part of the records; False when everything is over before."""
        while workload.progress < part:
            if self._over.wait(LOOK_EVERY_SECONDS):
                return False
        return True

    def _progress(self) -> Table:
        grid = Table(box=None)
        for heading in ("flow", "produced", "forwarded, offsets", "failed invocations"):
            grid.add_column(heading, justify="left" if heading == "flow" else "right")
        for flow in self.lab.flows:
            counts = [
                self.lab.mappings.metrics(mapping.uuid)
                for mapping in self.lab.flow_mappings
                if mapping.flow == str(flow.name)
            ]
            workload = self._workloads.get(flow.name.source)
            grid.add_row(
                str(flow.name),
                f"{workload.produced if workload else 0:,}",
                f"{sum(each.get('Committed', 0) for each in counts):,}",
                f"{sum(each.get('FailedInvoke', 0) for each in counts):,}",
            )
        return grid


def work_is_over(work: Collection[Future[None]], *, seconds: float) -> bool:
    """Wait for all work to end, or for any to fail, for so long at most; whether it came to that.

    What waits for work that failed would wait for ever: the failure must end it, and be what is reported.
    """
    done, running = wait(work, seconds, FIRST_EXCEPTION)
    return not running or any(each.exception() for each in done)
