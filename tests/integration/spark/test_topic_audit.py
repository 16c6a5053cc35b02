"""Audits of topics on real brokers, in place and as a job: planted faults, and what a killed MirrorMaker 2 left."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.clock import now_ms
from mirrorless.flow.settings import ClusterSettings, FlowSettings
from mirrorless.jobs.request import AuditOptions, JobRequest
from mirrorless.reports.page import render
from spark.audit import audit as audit_job
from spark.jobs.driver import JobRun
from tests.support.commands import Answer, Command
from tests.support.mirror_maker import RealMirrorMaker
from tests.support.readback import Content, Seen, await_settled, read_topic
from tests.support.topics import create_topic, delete_before, transaction, transactional
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

Clusters = tuple[KafkaCluster, KafkaCluster]
PARTITIONS = 3
BEGAN = int(time.time() * 1000)


@pytest.fixture
def topic() -> str:
    return f"audited-{uuid4().hex[:8]}"


Audit = Callable[..., Answer]


@pytest.fixture
def audit(clusters: Clusters, capsys: pytest.CaptureFixture[str]) -> Audit:
    command, (source, target) = Command(capsys), clusters
    return lambda *words: command(
        "audit", "--source", source.bootstrap, "--target", target.bootstrap, "--wait", "0", "--json", *words
    )


@pytest.fixture
def both(clusters: Clusters, audit: Audit, spark: SparkSession, tmp_path: Path) -> Audit:
    """Audits in place, and once more as a job, which has the same to say of every partition."""
    source, target = (
        ClusterSettings(alias=alias, bootstrap=each.bootstrap)
        for alias, each in zip(("source", "target"), clusters, strict=True)
    )

    def audit_twice(*topics: str) -> Answer:
        page = tmp_path / "report.html"
        answer = audit(*topics, "--prefix", "a.", "--report", str(page), "--processes", "2")
        options = AuditOptions(copies={topic: f"a.{topic}" for topic in topics}, wait_seconds=0)
        flow = FlowSettings(flow="source->target", source=source, target=target)
        request = JobRequest(run_id="audit-test", flow=flow, topics=topics, options=options)
        run = JobRun(request, open_job_files(str(tmp_path)), now_ms())
        run._context = spark.sparkContext
        outcome = audit_job(run)
        run.end("succeeded")

        job = json.loads(json.dumps(outcome.found))
        assert _told(job["partitions"]) == _told(answer.json["partitions"])
        assert job.keys() < answer.json.keys()
        timed = ("seconds", "cpu_seconds", "records_per_second")
        assert job["totals"].keys() == answer.json["totals"].keys()
        assert all(job["totals"][name] == value for name, value in answer.json["totals"].items() if name not in timed)
        assert (outcome.clean, outcome.report.verdict) == (answer.json["clean"], answer.json["verdict"])
        assert outcome.report.verdict in page.read_text()
        assert outcome.report.verdict in render(outcome.report)
        states = {each.lane: each.state for each in run.lanes()}
        assert states == {each["lane"]: each["state"] for each in answer.json["partitions"]}
        return answer

    return audit_twice


def _told(partitions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is said of partitions, but for the time that it took."""
    return [each | {"seconds": 0, "cpu_seconds": 0} for each in partitions]


def write(bootstrap: str, topic: str, partition: int, contents: Iterable[Content]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for each in contents:
        producer.produce(topic, each.value, each.key, partition, headers=list(each.headers), timestamp=each.timestamp)
    assert producer.flush(20) == 0


def contents(count: int) -> list[Content]:
    """Records of all kinds, none like another."""
    values: Sequence[bytes | None] = (b"x" * 1_000, b"", None)
    headers: Sequence[tuple[tuple[str, bytes | None], ...]] = ((), (("n", None),), (("n", b""), ("n", b"1")))
    return [
        Content(
            b"%d" % number if number % 5 else None,
            values[number % 3],
            headers[number % 4 % 3],
            BEGAN + number,
        )
        for number in range(count)
    ]


def places(answer: Answer) -> list[tuple[int, str, int | None, int | None, int]]:
    """Of each finding partition, kind, first upstream and downstream offset, and records."""
    return [
        (
            each["partition"],
            finding["kind"],
            finding["upstream"] and finding["upstream"]["first"],
            finding["downstream"] and finding["downstream"]["first"],
            finding["records"],
        )
        for each in answer.json["partitions"]
        for finding in each["findings"]
    ]


def test_a_fault_of_each_kind_is_named_by_its_place(clusters: Clusters, topic: str, both: Audit) -> None:
    """The target lacks the last partition, of which the source has records: that fails alone."""
    source, target = clusters
    copy = f"a.{topic}"
    create_topic(source.bootstrap, topic, PARTITIONS + 1)
    create_topic(target.bootstrap, copy, PARTITIONS)
    for partition in range(PARTITIONS + 1):
        write(source.bootstrap, topic, partition, contents(500))
    some = contents(500)
    some[300] = some[300]._replace(headers=(("n", b"planted"),))
    some[310] = some[310]._replace(value=b"planted")
    some[320] = some[320]._replace(timestamp=BEGAN)
    others = [each._replace(key=b"planted") for each in contents(20)]
    write(target.bootstrap, copy, 0, [*some[:100], *some[101:400], *others, *some[400:]])
    some = contents(500)
    write(target.bootstrap, copy, 1, [*some[:400], *some[150:]])
    write(target.bootstrap, copy, 2, [*some[:200], some[201], some[200], *some[202:490]])

    answer = both(topic)

    assert answer.code == 1, answer
    assert places(answer) == [
        (0, "missing", 100, None, 1),
        (0, "different", 300, 299, 1),
        (0, "different", 310, 309, 1),
        (0, "different", 320, 319, 1),
        (0, "foreign", None, 399, 20),
        (1, "duplicated", 150, 400, 250),
        (2, "reordered", 200, 201, 1),
    ]
    first, *_, last = answer.json["partitions"]
    changed = [each["what"] for each in first["findings"] if each["kind"] == "different"]
    parts = ("header", "value", "timestamp")
    assert [part in what for part, what in zip(parts, changed, strict=True)] == [True] * 3, changed
    assert [each["counts"]["pending"] for each in answer.json["partitions"]] == [0, 0, 10, 0]
    assert f"there is no {copy}-{PARTITIONS}" in last["error"]
    wrong = "1 missing, 250 duplicated, 1 reordered, 3 different, 20 foreign"
    assert answer.json["verdict"].startswith(f"1 of 4 partitions could not be read; {wrong}")
    assert "planted" not in answer.out


def test_what_is_no_fault_of_the_copy_is_none(clusters: Clusters, topic: str, both: Audit) -> None:
    """Markers, aborted records, retention on both sides, compaction, and times that the target stamps."""
    source, target = clusters
    stamped, compacted = f"{topic}-stamped", f"{topic}-compacted"
    for name, ours, theirs in (
        (topic, {}, {}),
        (stamped, {}, {"message_timestamp_type": "LogAppendTime"}),
        (compacted, {"cleanup_policy": "compact"}, {}),
    ):
        create_topic(source.bootstrap, name, **ours)
        create_topic(target.bootstrap, f"a.{name}", **theirs)
    producer = transactional(source.bootstrap)
    for number in range(20):
        transaction(producer, topic, *(b"%d-%d" % (number, each) for each in range(5)), commit=number % 4 != 0)
    copied = [each.content for each in read_topic(source.bootstrap, topic)[0]]
    write(target.bootstrap, f"a.{topic}", 0, copied)
    for name in (stamped, compacted):
        write(source.bootstrap, name, 0, [each._replace(key=b"k") for each in copied])
        write(target.bootstrap, f"a.{name}", 0, [each._replace(key=b"k") for each in copied[name == compacted :]])
    delete_before(source.bootstrap, topic, 12)
    delete_before(target.bootstrap, f"a.{stamped}", 7)

    answer = both(topic, stamped, compacted)

    assert (answer.code, answer.json["totals"]["proved"]) == (0, 70 + 68), answer
    by_topic = {each["topic"]: each["counts"] for each in answer.json["partitions"]}
    assert (by_topic[topic]["source_gone"], by_topic[stamped]["expired"]) == (5, 7)
    assert by_topic[compacted]["keys"] == 1


def test_the_names_of_copies_and_of_clusters_are_looked_up_first(
    clusters: Clusters, topic: str, audit: Audit, tmp_path: Path
) -> None:
    for cluster in clusters:
        create_topic(cluster.bootstrap, topic)
        write(cluster.bootstrap, topic, 0, contents(10))
    properties = tmp_path / "client.properties"
    properties.write_text(f"bootstrap.servers={clusters[1].bootstrap}\nsecurity.protocol=PLAINTEXT\n")

    assert audit(topic, "--identity", "--target", str(properties)).code == 0
    assert audit(topic, "--target-topic", topic).code == 0
    nameless, absent = audit(topic), audit(topic, "--prefix", "b.")
    assert (nameless.code, absent.code) == (2, 2)
    assert "--prefix" in nameless.json["error"]["hint"]
    assert f"there is no topic b.{topic}" in absent.json["error"]["what"]


@pytest.mark.java
@pytest.mark.soak("tests/unit/verify/test_audit.py::test_a_fault_is_found_as_itself_and_in_its_place")
def test_what_a_killed_mirrormaker_wrote_twice_is_named_by_place_and_nothing_else(
    clusters: Clusters, topic: str, audit: Audit, tmp_path: Path
) -> None:
    """Killed again and again, it goes on at the offset that it stored last, and writes again what it had written."""
    source, target = clusters
    create_topic(source.bootstrap, topic, PARTITIONS)
    mirror_maker = RealMirrorMaker(
        source=source.bootstrap,
        target=target.bootstrap,
        folder=tmp_path / "mm2",
        topics=topic,
        poll_records=50,
        flush_ms=3_000,
    )
    copy, written = f"us-east.{topic}", 0

    def there() -> dict[int, list[Seen]]:
        try:
            await_settled(target.bootstrap, copy)
            return read_topic(target.bootstrap, copy)
        except KeyError:  # it is not made yet
            return {}

    def come(due: int) -> bool:
        return sum(len(set(_contents(some))) for some in there().values()) > due

    try:
        for _ in range(3):
            for partition in range(PARTITIONS):
                more = contents(3_000)
                write(source.bootstrap, topic, partition, [each._replace(key=uuid4().bytes) for each in more])
            written += PARTITIONS * 3_000
            mirror_maker.start()
            eventually(lambda due=written - PARTITIONS * 1_500: come(due), "MirrorMaker copies")  # type: ignore[misc]  # bound now
            mirror_maker.kill()
    finally:
        mirror_maker.end()

    answer, ours, theirs = audit(topic, "--prefix", "us-east."), read_topic(source.bootstrap, topic), there()

    assert {kind for _, kind, *_ in places(answer)} == {"duplicated"}, answer
    assert answer.code == 3
    for verdict in answer.json["partitions"]:
        partition, named = verdict["partition"], set[int]()
        for finding in verdict["findings"]:
            named.update(range(finding["downstream"]["first"], finding["downstream"]["next"]))
        left = _contents(each for each in theirs[partition] if each.offset not in named)
        twice = Counter(_contents(theirs[partition]))
        assert left == _contents(ours[partition])[: len(left)]
        assert verdict["counts"]["duplicated"] == sum(count - 1 for count in twice.values())
        assert verdict["counts"]["pending"] == len(ours[partition]) - len(left)


def _contents(some: Iterable[Seen]) -> list[Content]:
    return [each.content for each in some]
