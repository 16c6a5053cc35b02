"""The verify job: lanes in journals, then the latest values of compacted topics, then the report.

It reads, and changes nothing: neither clusters nor tables. A run that is started again from its folder goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import cast

import msgspec

from mirrorless.adapters.kafka.offsets import KafkaOffsets
from mirrorless.adapters.kafka.source_log import KafkaSourceLog
from mirrorless.adapters.replicator import kept_rules
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.clock import deadline_in, now_ms
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.settings import FlowSettings
from mirrorless.jobs.request import PLAN, JobRequest, VerifyOptions
from mirrorless.lanes.gaps import Cleanup
from mirrorless.transforms.rules import RuleInForce
from mirrorless.verify.findings import LaneVerdict
from mirrorless.verify.parts import LaneKeys, VerifyTask
from mirrorless.verify.summary import is_clean, report_of, shorten, totals_of
from spark.jobs.clients import warm_tables
from spark.jobs.driver import JobOutcome, JobRun, drive
from spark.jobs.verify.lanes import take_keys, verdicts_of, write_lanes

ANSWER_SECONDS = 20.0
"""For one request of the driver to a cluster."""

GONE = "left out: the source's topic has no such partition"
"""The note on a lane that was not verified: its topic was made anew with fewer partitions."""


def verify(run: JobRun) -> JobOutcome:
    """Run the job.

    Raises:
        ConfigurationError: the range is empty by its kind, or a topic has no remote topic.
        Retriable: the target does not answer; or the source, where it is to be compared.
    """
    began = time.monotonic()
    run.phase = "plan"
    target, source, silent = _cleanups(run.request)
    tasks, gone = _tasks(run, target, source, silent)
    run.files.write(PLAN, msgspec.json.encode({"lanes": [str(task.lane) for task in tasks]}))
    verdicts = verdicts_of(run, tasks)

    take_keys(run, _lanes_of_keys(tasks, verdicts, target, source))
    verdicts += gone
    write_lanes(run.files, verdicts)
    shorten(verdicts)

    seconds = time.monotonic() - began
    flow, rules = run.request.flow, _rules(run.request.flow, verdicts)
    return JobOutcome(
        clean=is_clean(verdicts),
        found={
            "totals": totals_of(verdicts, seconds=seconds),
            "rules": msgspec.to_builtins(rules),
            "lanes": msgspec.to_builtins(verdicts),
        },
        report=report_of(
            verdicts, flow=flow.flow, seconds=seconds, made_at=now_ms(), folder=run.files.place, rules=rules
        ),
    )


def _rules(flow: FlowSettings, verdicts: Sequence[LaneVerdict]) -> dict[str, RuleInForce]:
    """The rules by which lanes were copied, by id, as far as they are kept."""
    found: dict[str, RuleInForce] = {}
    for rule in sorted({rule for verdict in verdicts for rule in verdict.rules if rule}):
        with suppress(ConfigurationError):  # the report says so
            tables = warm_tables(flow.target.region, flow.tables_role)
            found[rule] = kept_rules(flow, tables).kept(bytes.fromhex(rule))
    return found


def _cleanups(request: JobRequest) -> tuple[Mapping[str, Cleanup], Mapping[str, Cleanup], str]:
    """The cleanup of each topic, by its name on the source: on the target, and on the source; why that is silent."""
    flow, topics = request.flow, request.topics
    remote = {flow.remote_topic(topic): topic for topic in topics}
    cleanups = KafkaSourceLog(flow.target, flow=flow.flow).cleanup(list(remote), deadline_in(ANSWER_SECONDS))
    target = {remote[name]: cleanup for name, cleanup in cleanups.items()}
    if hidden := sorted(topic for topic in topics if topic not in target):
        raise ConfigurationError(
            f"the target does not describe {', '.join(map(flow.remote_topic, hidden))}",
            where=flow.flow,
            hint="check the topics' names on the source, and that the job may DescribeConfigs of the remote ones: "
            "records that compaction has removed would be reported as missing otherwise",
        )
    try:
        source = KafkaSourceLog(flow.source, flow=flow.flow).cleanup(topics, deadline_in(ANSWER_SECONDS))
    except Retriable as exc:
        if _options(request).against_source:
            raise
        return target, {}, exc.what  # it explains less then
    return target, source, ""


def _tasks(
    run: JobRun, target: Mapping[str, Cleanup], source: Mapping[str, Cleanup], silent: str
) -> tuple[list[VerifyTask], list[LaneVerdict]]:
    """The lanes to verify; and the verdicts on those whose partition is gone with an older topic on the source."""
    request, options = run.request, _options(run.request)
    if options.start.kind == "latest" or options.end.kind == "earliest":
        raise ConfigurationError(
            f"nothing lies between {options.start.kind} and {options.end.kind}", where="verify", hint="swap the bounds"
        )
    counts = KafkaOffsets(request.flow.target, flow=request.flow.flow).partitions()
    on_source = KafkaOffsets(request.flow.source, flow=request.flow.flow).partitions() if source else {}
    tasks: list[VerifyTask] = []
    gone: list[LaneVerdict] = []
    for topic in request.topics:
        remote = request.flow.remote_topic(topic)
        if remote not in counts:
            raise ConfigurationError(
                f"the target has no topic {remote}",
                where=f"{request.flow.flow} {topic}",
                hint="check the topic's name on the source, and that the job may Describe and Read the remote one",
            )
        partitions = request.partitions.get(topic, range(counts[remote]))
        left = on_source.get(topic, counts[remote])
        for partition in (each for each in partitions if each >= left):
            lane = Lane(FlowName.parse(request.flow.flow), topic, partition)
            gone.append(LaneVerdict(lane=str(lane), topic=topic, partition=partition, notes=[GONE]))
        tasks += [
            VerifyTask(
                settings=request.flow,
                topic=topic,
                partition=partition,
                run_id=request.run_id,
                start=options.start,
                end=options.end,
                against_source=options.against_source,
                target_compacts=target[topic].compacts,
                source_compacts=source[topic].compacts if topic in source else True,
                source_silent=silent,
                files=run.files.place,
            )
            for partition in partitions
            if partition < left
        ]
    return tasks, gone


def _lanes_of_keys(
    tasks: Sequence[VerifyTask],
    verdicts: Sequence[LaneVerdict],
    target: Mapping[str, Cleanup],
    source: Mapping[str, Cleanup],
) -> list[tuple[VerifyTask, LaneVerdict, LaneKeys]]:
    """The lanes to compare by their keys; where these cannot be compared, thinned out runs are not provable."""
    found = []
    for task, verdict in zip(tasks, verdicts, strict=True):
        # Where flows mark their copies, the latest value of a key may have been produced on either cluster.
        marked = task.settings.origin_rule(task.topic) is not None
        if marked or not task.target_compacts or verdict.state != "done" or not verdict.counts.records:
            continue
        if task.topic in source and not any(verdict.rules):
            there, here = source[task.topic].expires, target[task.topic].expires
            found.append((task, verdict, LaneKeys(source_expires=there, target_expires=here)))
            continue
        # Compaction outlives the map: of an old record it is not known which rule held for it.
        why = "rules have made them" if any(verdict.rules) else "the source is not there"
        verdict.note(f"the latest values of its keys are not compared: {why}")
        verdict.counts.not_provable += verdict.counts.compacted
        verdict.counts.compacted = 0
    return found


def _options(request: JobRequest) -> VerifyOptions:
    return cast("VerifyOptions", request.options)


if __name__ == "__main__":
    # By the module's own name: workers import functions by name, and `__main__` is another module there.
    from spark.verify import verify as job

    sys.exit(drive(job))
