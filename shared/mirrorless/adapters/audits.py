"""Audits on Kafka's clients: the partitions of topics and of their copies, each audited by the process that calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from mirrorless.adapters.kafka.lane_log import KafkaLaneLog
from mirrorless.adapters.kafka.log import JOB, uncommitted
from mirrorless.adapters.kafka.offsets import KafkaOffsets
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.clock import deadline_in
from mirrorless.errors import ConfigurationError
from mirrorless.flow.settings import ClusterSettings
from mirrorless.jobs.request import AuditOptions
from mirrorless.lanes.gaps import cleanup_of
from mirrorless.verify.audit import AuditTask, AuditVerdict, LogsAudit
from mirrorless.verify.parts import Note

ANSWER_SECONDS: Final = 20.0
"""For one request to a cluster."""


def audit_tasks(source: ClusterSettings, target: ClusterSettings, options: AuditOptions) -> list[AuditTask]:
    """Every partition of the topics, the largest first.

    Raises:
        ConfigurationError: a topic is not there, or its configs are not shown.
        Retriable: a cluster does not answer.
    """
    on_source = _described(source, list(options.copies))
    on_target = _described(target, list(options.copies.values()))
    tasks: list[AuditTask] = []
    for topic, copy in options.copies.items():
        (ours, partitions), (theirs, copied) = on_source[topic], on_target[copy]
        cleanup, of_copy = cleanup_of(ours), cleanup_of(theirs)
        stamped = theirs.get("message.timestamp.type") == "LogAppendTime"
        tasks += (
            AuditTask(
                source=source,
                target=target,
                topic=topic,
                copy=copy,
                partition=partition,
                by_keys=cleanup.compacts or of_copy.compacts,
                source_expires=cleanup.expires,
                target_expires=of_copy.expires,
                timestamps=options.timestamps and not stamped,
                headers_left_out=options.headers_left_out,
                wait_seconds=options.wait_seconds,
            )
            for partition in range(max(partitions, copied))
        )
    extents = _offsets(source).extents((each.topic, each.partition) for each in tasks)
    sizes = {place: extent.end - extent.start for place, extent in extents.items()}
    return sorted(tasks, key=lambda each: -sizes.get((each.topic, each.partition), 0))


def audit_partition(task: AuditTask, note: Note) -> AuditVerdict:
    """Audit one partition. Args: note: is told the progress.

    Raises:
        Retriable: a cluster does not answer.
    """
    return LogsAudit(
        task=task,
        source=_log(task.source),
        target=_log(task.target),
        uncommitted=_log(task.source, committed=False),
        note=note,
    ).run()


@cache
def _log(cluster: ClusterSettings, *, committed: bool = True) -> KafkaLaneLog:
    """The process's reader of a cluster."""
    return KafkaLaneLog(cluster, flow="audit", tuning=JOB if committed else uncommitted(JOB))


def _offsets(cluster: ClusterSettings) -> KafkaOffsets:
    return KafkaOffsets(cluster, flow="audit")


def _described(cluster: ClusterSettings, topics: Sequence[str]) -> dict[str, tuple[Mapping[str, str | None], int]]:
    """The configs and the number of partitions of some topics."""
    counts = _offsets(cluster).partitions()
    if hidden := [topic for topic in topics if topic not in counts]:
        raise ConfigurationError(
            f"there is no topic {', '.join(hidden)}",
            where=f"{cluster.alias} at {cluster.bootstrap}",
            hint="check the names, how copies are called (--prefix, --identity, --target-topic), and the right to "
            "Describe them",
        )
    found, failures = KafkaTopics(cluster, flow="audit", role="admin").configs(topics, deadline_in(ANSWER_SECONDS))
    if failures:
        raise ConfigurationError(
            f"the configs of {', '.join(failures)} are not shown: {next(iter(failures.values()))}",
            where=f"{cluster.alias} at {cluster.bootstrap}",
            hint="give the right to DescribeConfigs: records that compaction has removed would be missing otherwise",
        )
    return {topic: ({each.name: each.value for each in found[topic]}, counts[topic]) for topic in topics}
