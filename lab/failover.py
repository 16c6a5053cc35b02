"""What happens when a region is lost, and comes back? One flow, one outage, a reconcile, a failback, a full account.

    records flow from A to B  ->  A stops in the middle: its last records never left it
    hold the lanes  ->  producers and the group go on on B  ->  A is back  ->  reconcile  ->  everybody returns to A

Every record that anybody wrote must be accounted for, and the group must have read each of them once.
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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from lab.application import Application
from lab.artifacts import DEFAULT_KAFKA
from lab.audit import wait_until_replicated
from lab.cloud import Lab
from lab.failover_audit import TopicFindings, audit_failover, read_whole
from lab.group_move import MovingGroup, judge
from lab.job_process import JobProcess
from lab.readout import stable_ends
from lab.workload import SHAPES, Workload
from mirrorless.adapters.chains import DynamoDbChains
from mirrorless.adapters.lane_orders import DynamoDbLaneOrders
from mirrorless.chain import Stop
from mirrorless.configuration.flow import Flow
from mirrorless.configuration.loading import load
from mirrorless.jobs.request import JobRequest, Policy, ReconcileOptions
from mirrorless.lane import Lane
from mirrorless.positions import STATES_MS
from mirrorless.settings import decode_settings
from mirrorless.verify.comparison import Seen

REPOSITORY = Path(__file__).parent.parent
POLICIES: Mapping[str, Policy] = {"orders": "replay", "payments": "quarantine"}
"""Of the orphans of each topic that the demonstration writes to."""
RECORDS = 20_000
"""While everything is well; fewer in the other parts."""
LIVE_SECONDS, AWAY_SECONDS, BACK_SECONDS = 10.0, 10.0, 5.0
GROUP = "shop"
PATIENCE_SECONDS = 240.0
RECONCILED_WITHIN_SECONDS = 600.0
"""Half a minute on an idle machine; Spark starts slowly on a busy one."""
CONTROL = {
    "checkpoints_seconds": 1,
    "sync_group_offsets_seconds": 1,
    "refresh_topics_seconds": 5,
    "window_seconds": 18,
}
SCHEDULE_SECONDS = 20.0
FINDINGS = ("lost", "duplicated", "reordered", "different", "mistranslated")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register `python -m lab failover`."""
    parser = subparsers.add_parser("failover", help="lose a region, move over, reconcile, come back, account for all")
    parser.add_argument("--records", type=int, default=RECORDS, help="written while everything is well")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kafka", default=os.environ.get("KAFKA") or DEFAULT_KAFKA, metavar="VERSION")
    parser.add_argument("--report", type=Path, default=REPOSITORY / "failover-report.json", metavar="FILE")
    parser.add_argument("--page", type=Path, default=REPOSITORY / "failover-report.html", metavar="FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the drill; 0 if everything is accounted for."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(width=None if sys.stdout.isatty() else 120)
    began = time.monotonic()
    folder = REPOSITORY / ".lab" / f"failover-{os.getpid()}"
    lab = Lab(
        configuration=load(REPOSITORY / "lab" / "failover.yaml"),
        folder=folder,
        kafka_version=arguments.kafka,
        control_overrides=CONTROL,
        schedule_seconds=SCHEDULE_SECONDS,
        say=lambda text: console.print(f"[dim]{time.monotonic() - began:5.1f} s[/]  {text}", highlight=False),
    )
    clean = False
    try:
        drill = Drill(lab, records=arguments.records, seed=arguments.seed)
        try:
            report = drill.run()
        finally:
            if drill.page is not None and drill.page.exists():
                shutil.copyfile(drill.page, arguments.page)
        report["seconds"] = round(time.monotonic() - began, 1)
        arguments.report.write_text(json.dumps(report, indent=2) + "\n")
        totals = report["totals"]
        clean = is_clean(totals)
        console.print(_told(totals))
        console.print(f"{report['seconds']} s; {arguments.report}; {arguments.page}")
    finally:
        lab.stop()
        if clean:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            console.print(f"logs are kept in {folder}")
    return 0 if clean else 1


def is_clean(totals: Mapping[str, Any]) -> bool:
    """Whether every record is accounted for, and was read once."""
    wrong = any(totals[name] for name in (*FINDINGS, "reread", "skipped"))
    return not wrong and totals["orphans"] == totals["orphans_made"] and totals["reconciled"]


def _told(totals: Mapping[str, Any]) -> str:
    mark = "[bold]" if is_clean(totals) else "[bold red]"
    faults = ", ".join(f"{totals[name]:,} {name}" for name in FINDINGS)
    return (
        f"{totals['records']:,} records on the source: {mark}{faults}[/]\n"
        f"{totals['orphans_made']:,} had not been replicated when it was lost: {mark}{totals['orphans']:,} found[/]\n"
        f"{totals['copied_back']:,} came back from the target: {totals['copied_back_ratio']:.1%} of its bytes\n"
        f"group {GROUP}, moved there and back: {mark}{totals['reread']:,} read twice, "
        f"{totals['skipped']:,} never read[/]"
    )


@dataclass(slots=True)
class Drill:
    """The drill itself, on a lab that is not started yet."""

    lab: Lab
    records: int
    seed: int
    page: Path | None = None
    _over: threading.Event = field(init=False, default_factory=threading.Event)

    @property
    def flow(self) -> Flow:
        """The one flow."""
        return self.lab.flows[0]

    def run(self) -> dict[str, Any]:
        """Do everything; the report for machines."""
        lab, group = self.lab, None
        lab.start_servers()
        self._workload("source", 1, 1.0).create_topics()
        lab.start_flows()
        group = self._group()

        self._together(self._workload("source", self.records, LIVE_SECONDS), group, "source", 0.7)
        self._replicated()
        lab.say(
            f"[bold]group {GROUP}[/]: it leaves {self.flow.name.source}; its offsets are on {self.flow.name.target} "
            f"after {group.await_offsets('target', seconds=PATIENCE_SECONDS):.1f} s"
        )
        orphans = self._lose_the_source()
        held_at = self._hold()
        self._together(self._workload("target", self.records // 3, AWAY_SECONDS), group, "target", 0.8)
        lab.say(f"[bold]{self.flow.name.target}[/]: producers and the group have worked here; both stop")
        self._bring_back(held_at)
        found = self._reconcile()
        self._together(self._workload("source", self.records // 5, BACK_SECONDS), group, "source", 0.0)
        self._replicated()
        lab.say("replicated; reading both clusters whole")
        return self._account(group, orphans, found)

    # The parts

    def _lose_the_source(self) -> dict[str, dict[int, list[Seen]]]:
        """Write what never leaves the source; its records, by topic and partition, read when nobody else reads."""
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
        lab.supervisor.hold(cluster)
        cluster.kill()
        lab.say(f"[bold]outage[/]: {self.flow.name.source} is killed (-9); {made:,} records never left it")
        return orphans

    def _hold(self) -> float:
        """What `mirrorless lanes hold` does; when it was done."""
        orders = DynamoDbLaneOrders(self.lab.dynamodb.client(), self.lab.tables.lanes)
        now = time.time_ns() // 1_000_000
        for topic in POLICIES:
            for partition in range(SHAPES[topic].partitions):
                stop = Stop(reason="held", upstream_offset=0, detail="failover", at=now)
                orders.stop(Lane(self.flow.name, topic, partition), stop)
        self.lab.say(
            f"the lanes of {self.flow.name} are held; producers and the group go on on {self.flow.name.target}"
        )
        return time.monotonic()

    def _bring_back(self, held_at: float) -> None:
        """The source is back, with all that it had acknowledged."""
        seen_at = held_at + STATES_MS / 1000
        if time.monotonic() < seen_at:
            self.lab.say("waiting until the minute is over in which a warm function may not know that it is held")
            self._over.wait(seen_at - time.monotonic())
        # What the poller had read before the outage is delivered now, and finds its lanes held.
        for mapping in self.lab.flow_mappings:
            self.lab.mappings.release(mapping.uuid)
        cluster = self.lab.clusters[self.flow.name.source]
        self.lab.supervisor.release(cluster)
        cluster.start()
        self.lab.say(f"[bold]{self.flow.name.source}[/] is back")

    def _reconcile(self) -> dict[str, Any]:
        settings = decode_settings(self.flow.function_settings_json())
        request = JobRequest(
            run_id=f"reconcile-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-demo",
            flow=settings,
            topics=tuple(POLICIES),
            options=ReconcileOptions(policies=dict(POLICIES), groups=(GROUP,)),
        )
        variables = {
            "AWS_ENDPOINT_URL_DYNAMODB": self.lab.dynamodb.endpoint,
            "AWS_ACCESS_KEY_ID": "lab",
            "AWS_SECRET_ACCESS_KEY": "lab",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        job = JobProcess(request, folder=self.lab.folder / "jobs" / request.run_id, variables=variables)
        self.page = job.page
        self.lab.say("[bold]reconcile[/]: it runs on Spark")
        found = job.run(lambda phase: self.lab.say(f"reconcile: {phase}"), seconds=RECONCILED_WITHIN_SECONDS)
        self.lab.say(f"[bold]reconcile[/]: {found['report']['verdict']}")
        return found

    def _account(
        self, group: MovingGroup, orphans: Mapping[str, Mapping[int, Sequence[Seen]]], found: dict[str, Any]
    ) -> dict[str, Any]:
        chains = self._chains()
        audits: list[TopicFindings] = [
            audit_failover(self.flow, topic, policy, orphans[topic], chains) for topic, policy in POLICIES.items()
        ]
        reads = group.application.reads
        source = reads.get(self.flow.source.bootstrap[0], Counter())
        target = reads.get(self.flow.target.bootstrap[0], Counter())
        names = {self.flow.remote_topic(topic): topic for topic in POLICIES}
        read = judge(
            {each.topic: each.audit for each in audits},
            source,
            {((names[topic], partition), offset): count for ((topic, partition), offset), count in target.items()},
        )
        sums = {name: sum(getattr(each, name) for each in audits) for name in ("records", *FINDINGS)}
        return {
            "totals": {
                **sums,
                "reread": read["reread"],
                "skipped": read["skipped"],
                "orphans": found["totals"]["orphans"],
                "orphans_made": sum(each.orphans for each in audits),
                "copied_back": found["totals"]["copied_back"],
                "copied_back_ratio": found["totals"]["copied_back_ratio"],
                "reconciled": found["clean"],
            },
            "topics": [{name: value for name, value in asdict(each).items() if name != "audit"} for each in audits],
            "reconcile": {name: found[name] for name in ("totals", "lanes", "groups", "troubles")},
        }

    # Who works

    def _workload(self, side: str, records: int, seconds: float) -> Workload:
        self.seed += 1
        cluster = self.flow.source if side == "source" else self.flow.target
        name: Callable[[str], str] = str if side == "source" else self.flow.remote_topic
        return Workload(
            cluster.bootstrap[0], records=records, seed=self.seed, seconds=seconds, topics=list(POLICIES), name=name
        )

    def _together(self, workload: Workload, group: MovingGroup, side: Any, part: float) -> None:
        """Produce, while the group reads: until a part is produced, or, at the very end, all of it."""
        with ThreadPoolExecutor(1) as pool:
            producing = pool.submit(workload.produce)
            try:
                if part:
                    group.read(side, at_least=1, until=lambda: workload.progress >= part, seconds=PATIENCE_SECONDS)
                else:
                    producing.result()
                    self._replicated()  # what was written again belongs to what the group reads to its end
                    group.read_to_end(produced=producing.done, seconds=PATIENCE_SECONDS)
            except BaseException:
                workload.stop()
                raise
            producing.result()

    def _replicated(self) -> None:
        mappings = [each for each in self.lab.flow_mappings if each.topic in POLICIES]
        wait_until_replicated(self.lab, mappings, deadline=time.monotonic() + PATIENCE_SECONDS)

    def _group(self) -> MovingGroup:
        return MovingGroup(
            flow=self.flow,
            partitions={topic: SHAPES[topic].partitions for topic in POLICIES},
            chains=self._chains(),
            application=Application(GROUP),
            over=self._over,
        )

    def _chains(self) -> DynamoDbChains:
        return DynamoDbChains(self.lab.dynamodb.client(), self.lab.tables.offset_map)
