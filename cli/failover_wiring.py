"""The effects of a failover's commands: clusters, stores of the target's region, and the reconcile job."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

import msgspec

from cli.acl import needed_by_others
from cli.args import BadInput
from cli.clusters import ClusterView, offsets_of
from cli.deployment import DeployedFlows
from cli.jobs.commands import runs_of
from cli.jobs.request import new_run_id, refuse_without_rights
from cli.jobs.runs import Runs
from mirrorless.chain.lane import FlowName
from mirrorless.clock import now_ms
from mirrorless.errors import ConfigurationError
from mirrorless.failover.effects import FailoverEffects, FailoverSide, ReconcileRun
from mirrorless.flow.filters import is_literal
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.request import REPORT, JobRequest, ReconcileOptions


def effects_of(deployment: DeployedFlows, flow: FlowName, arguments: argparse.Namespace) -> FailoverEffects:
    """The effects of one flow. No cluster is contacted, and of AWS only what the credentials need.

    Raises:
        ConfigurationError: the flow is disabled, its tables cannot be reached, or its jobs must not write where a
            failback does.
    """
    from mirrorless.adapters.checkpoint_rounds import CheckpointWiring  # noqa: PLC0415 -- `--help` needs no clients
    from mirrorless.adapters.kafka.groups import KafkaGroups, KafkaShadowGroups  # noqa: PLC0415 -- same
    from mirrorless.adapters.kafka.records import KafkaRecords  # noqa: PLC0415 -- same
    from mirrorless.adapters.kafka.source_log import KafkaSourceLog  # noqa: PLC0415 -- same
    from mirrorless.adapters.kafka.target import KafkaTarget  # noqa: PLC0415 -- same
    from mirrorless.groups.clusters import GroupSide  # noqa: PLC0415 -- same
    from mirrorless.scheduled.scope import FlowScope  # noqa: PLC0415 -- same
    from mirrorless.topics.acl_sync import AclSync  # noqa: PLC0415 -- same

    if not deployment.flow(flow).enabled:
        raise ConfigurationError("the flow is disabled, and nothing was changed", where=str(flow))
    settings, stores = deployment.control_settings(flow), deployment.stores(flow)
    both, name = settings.flow, str(flow)
    if hasattr(arguments, "reconcile_options") and not both.origins:
        refuse_without_rights(deployment.flow(flow))
    source, target = _side(flow, both.source), _side(flow, both.target)
    source_log, target_log = KafkaSourceLog(both.source, flow=name), KafkaSourceLog(both.target, flow=name)
    counterpart = deployment.counterpart_chains(flow)

    def group_side(cluster: ClusterSettings) -> GroupSide:
        topics = KafkaRecords(cluster, flow=name, client_role="failover")
        return GroupSide(alias=cluster.alias, groups=KafkaGroups(cluster, flow=name), topics=topics)

    wiring = CheckpointWiring(
        settings=settings,
        scope=FlowScope.of(settings),
        source=group_side(both.source),
        target=group_side(both.target),
        chains=stores.chains,
        states=stores.states,
        source_log=source_log,
        counterpart=counterpart,
        target_log=target_log if counterpart is not None else None,
    )
    return FailoverEffects(
        settings=settings,
        source=source,
        target=target,
        source_looks=source_log,
        target_looks=target_log,
        replication=KafkaTarget(both, environment=f"failover.{uuid4().hex}"),
        shadows=KafkaShadowGroups(both.target, flow=name),
        chains=stores.chains,
        states=stores.states,
        fences=stores.states,
        documents=stores.documents,
        checkpoints=stores.checkpoints,
        rounds=lambda documents: wiring.rounds(documents, commits_every_seconds=0),
        rounds_back=lambda documents: wiring.rounds(documents, commits_every_seconds=0, reverse=True),
        counterpart=counterpart,
        acl_sync=AclSync(
            settings=settings,
            source=source.acls,
            target=target.acls,
            topics=source.partitions,
            documents=stores.documents,
        ),
        acls_of_others=lambda: needed_by_others(deployment, flow),
        jobs=FailbackJobs(
            deployment=deployment,
            flow=flow,
            options=getattr(arguments, "reconcile_options", ReconcileOptions()),
            runs=lambda: runs_of(deployment, arguments, [flow]),
        ),
        clock=now_ms,
        sleep=time.sleep,
        new_id=lambda: uuid4().hex,
    )


def _side(flow: FlowName, cluster: ClusterSettings) -> FailoverSide:
    from mirrorless.adapters.kafka.acls import KafkaAcls  # noqa: PLC0415 -- `--help` needs no clients
    from mirrorless.adapters.kafka.groups import KafkaGroups  # noqa: PLC0415 -- same
    from mirrorless.adapters.kafka.record_ranges import KafkaRecordRanges  # noqa: PLC0415 -- same
    from mirrorless.adapters.kafka.records import KafkaRecords  # noqa: PLC0415 -- same
    from mirrorless.adapters.kafka.topics import KafkaTopics  # noqa: PLC0415 -- same

    def answers() -> str:
        view = ClusterView(lambda: offsets_of(cluster, flow))
        view.partitions()
        return view.trouble

    groups = KafkaGroups(cluster, flow=str(flow))
    return FailoverSide(
        answers=answers,
        partitions=KafkaTopics(cluster, flow=str(flow), role="failover").partitions,
        ends=KafkaRecords(cluster, flow=str(flow), client_role="failover-ends").ends,
        acls=KafkaAcls(cluster, flow=str(flow)),
        groups=groups,
        static_groups=groups.static,
        records=KafkaRecordRanges(cluster, flow=str(flow)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailbackJobs:
    """Implements `mirrorless.failover.effects.ReconcileJobs` by the commands of jobs."""

    deployment: DeployedFlows
    flow: FlowName
    options: ReconcileOptions
    """With the policies of orphans."""
    runs: Callable[[], Runs]

    def new_id(self) -> str:
        """See `ReconcileJobs.new_id`."""
        return new_run_id("reconcile")

    def start(self, run_id: str, *, topics: Sequence[str], groups_exclude: Sequence[str]) -> None:
        """See `ReconcileJobs.start`."""
        settings = self.deployment.control_settings(self.flow)
        excluded = tuple(name if is_literal(name) else re.escape(name) for name in groups_exclude)
        options = msgspec.structs.replace(
            self.options,
            policies={topic: policy for topic, policy in self.options.policies.items() if topic in topics},
            groups=settings.groups,
            groups_exclude=(*settings.groups_exclude, *excluded),
        )
        request = JobRequest(
            run_id=run_id,
            flow=self.deployment.job_settings(self.flow),
            topics=tuple(topics),
            options=options,
            aliases=tuple(sorted(self.deployment.configuration.clusters)),
        )
        self.runs().start(request, size=None)

    def inspect(self, run_id: str) -> ReconcileRun:
        """See `ReconcileJobs.inspect`."""
        from mirrorless.adapters.aws.job_files import open_job_files  # noqa: PLC0415 -- boto3 costs half a second

        try:
            view = self.runs().inspect(run_id)
        except BadInput:
            return ReconcileRun(state="missing")
        phase = view.progress.phase if view.progress is not None else ""
        if not view.over:
            return ReconcileRun(state="running", phase=phase, place=view.place)
        report = open_job_files(view.place).read(REPORT) if view.state == "succeeded" else None
        if report is None:
            return ReconcileRun(state="failed", phase=phase, place=view.place, error=view.error or view.state)
        return ReconcileRun(state="succeeded", place=view.place, report=msgspec.json.decode(report))
