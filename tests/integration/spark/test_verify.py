"""Verification finds the faults of a copy, and only those: real clusters, real stores, real Spark."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from mirrorless.adapters.aws.job_files import open_job_files
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.lane_state import LeftOut
from mirrorless.clock import now_ms
from mirrorless.flow.naming import KEYS_VARIABLE
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import JobRequest, VerifyOptions
from mirrorless.protocol.flow_rules import document_of
from mirrorless.protocol.replicate import Replicator
from mirrorless.reports.page import render
from mirrorless.transforms.rules import KeySettings, Mask, Rule, RuleInForce
from mirrorless.verify.findings import KINDS
from spark.jobs.clients import warm_tables
from spark.jobs.driver import JobOutcome, JobRun
from spark.verify import verify
from tests.support.chains import run
from tests.support.lane_stage import Crash, LaneStage, at_step, crash
from tests.support.tampering import Tamper, changed, duplicated, missing, swapped, tampered_with, thinned_out
from tests.support.topics import transaction, transactional
from tests.support.twin_tasks import twin_lanes

pytestmark = pytest.mark.integration

VALUES = [b"0", b"1", b"2", None, b"4", b"5", b"6", b"7"]
"""The fourth record is a tombstone."""

FAULTS: dict[int, tuple[str, Tamper]] = {
    1: ("missing", missing(2)),
    2: ("duplicated", duplicated(2)),
    3: ("reordered", swapped(5)),
    4: ("different", changed(4, value=b"x")),
    5: ("different", changed(4, headers=[("h", b"\xff\x01"), ("h", None)])),
    6: ("different", changed(4, timestamp=1_600_000_000_001)),
    7: ("different", changed(3, value=b"")),
}
"""By partition; partition 0 is a true copy."""

WORDS = {
    1: "the source has it, and the target does not",
    2: "it stands here once more than at downstream offset 3",
    3: "it stands among other records than on the source",
    4: "value differs from byte 0 on, of 1 bytes",
    5: "header 1 of 2: value differs from byte 1 on, of 2 bytes",
    6: "timestamp 1600000000000 has become 1600000000001",
    7: "value null has become empty",
}


def fill(stage: LaneStage, partition: int, values: list[bytes | None] = VALUES) -> None:
    """Records that differ in their values only."""
    headers = [("h", b"\xff\x00"), ("h", None)]
    stage.write(*values, partition=partition, headers=headers, timestamp=1_600_000_000_000)


def patient(stage: LaneStage) -> Replicator:
    """An environment whose transactions do not time out on a busy machine."""
    return stage.environment(transaction_timeout_ms=20_000)


def verified(stage: LaneStage, spark: SparkSession, folder: Path, **options: Any) -> JobOutcome:
    """One run of the job."""
    request = JobRequest(
        run_id="verify-test", flow=stage.settings, topics=(stage.topic,), options=VerifyOptions(**options)
    )
    run = JobRun(request, open_job_files(str(folder)), now_ms())
    run._context = spark.sparkContext
    outcome = verify(run)
    run.end("succeeded")
    assert "<h1>" in render(outcome.report)
    json.dumps(outcome.found)
    return outcome


def found(outcome: JobOutcome, partition: int) -> dict[str, int]:
    """The faults of one lane, by kind."""
    counts = outcome.found["lanes"][partition]["counts"]
    return {kind: counts[kind] for kind in KINDS if counts[kind]}


def test_each_planted_fault_is_found_as_what_it_is_and_a_true_copy_has_none(
    stage: LaneStage, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create(stage.source, stage.topic, 8)
    stage.create(stage.target, stage.remote_topic, 8)
    for partition in range(8):
        fill(stage, partition)
    stage.replicate(patient(stage), stage.event(**{f"p{partition}": [0, 1] for partition in range(8)}))
    faulty = tampered_with(patient(stage), {partition: _later(fault) for partition, (_, fault) in FAULTS.items()})
    stage.replicate(faulty, stage.event())

    outcome = verified(stage, spark, tmp_path / "whole")
    # Once more, a section for each run and each task twice, and again from the folder of that, where all is proved.
    monkeypatch.setattr("spark.jobs.verify.lanes.section_bytes", lambda *_: 1)
    monkeypatch.setattr("spark.jobs.verify.lanes.run_lanes", twin_lanes)
    in_parts = verified(stage, spark, tmp_path / "cut", against_source=True)
    again = verified(stage, spark, tmp_path / "cut", against_source=True)

    kept = [name for name in open_job_files(str(tmp_path / "cut")).names("parts/") if "-0#" in name]
    assert sorted(name[name.index("#") :] for name in kept) == ["#0.json", "#1.json", "#survey.json"]
    for other in (in_parts, again):
        assert [each["findings"] for each in other.found["lanes"]] == [
            each["findings"] for each in outcome.found["lanes"]
        ]
        assert other.found["totals"]["proved"] == outcome.found["totals"]["proved"]
    note = open_job_files(str(tmp_path / "cut")).read(f"lanes/{stage.topic}-0#0.json")
    assert b"proved before" in (note or b"")
    listed = parquet.read_table(tmp_path / "cut" / "lanes.parquet").to_pylist()
    assert [each["records"] for each in listed] == [8] * 8
    assert not outcome.clean
    assert found(outcome, 0) == {}
    assert {partition: found(outcome, partition) for partition in FAULTS} == {
        partition: {kind: 1} for partition, (kind, _) in FAULTS.items()
    }
    lanes = outcome.found["lanes"]
    assert {partition: lanes[partition]["findings"][0]["what"] for partition in FAULTS} == WORDS
    totals = outcome.found["totals"]
    assert {kind: totals[kind] for kind in KINDS} == {
        "missing": 1, "duplicated": 1, "reordered": 1, "different": 4, "misplaced": 0,
    }  # fmt: skip
    # Every other record is proved, by the source's records of the wrong run.
    assert totals["records"] == 64
    assert totals["proved"] == 64 - 6
    assert len(open_job_files(str(tmp_path / "whole")).names("lanes/")) == 8


def _later(fault: Tamper) -> Tamper:
    """The first two records were replicated before, so offsets of a fault count from there."""

    def tamper(records: list[Any]) -> Any:
        written, places = fault([*[records[0]] * 2, *records])
        return written[2:], [place - 2 for place in places[2:]]

    return tamper


def test_a_true_copy_is_proved_on_both_sides_whatever_its_chain_has_been_through(
    stage: LaneStage, spark: SparkSession, tmp_path: Path
) -> None:
    """A run in doubt, a quarantined record, a lane that is not replicated or is gone: none of them is a finding."""
    stage.create(stage.source, stage.topic, 3)
    stage.create(stage.target, stage.remote_topic, 4)
    stage.chains.prepare([run(0, 3, (0, 0, 3), lane=stage.lane(3))])
    for partition in range(2):
        fill(stage, partition)
    stage.orders.quarantine(stage.lane(1), *LeftOut.each(4))
    stage.replicate(stage.environment(), stage.event(p0=[0, 1, 2, 3], p1=None))
    with at_step("committed", crash), pytest.raises(Crash):
        stage.replicate(stage.environment(), stage.event(p0=None))

    outcome = verified(stage, spark, tmp_path, against_source=True)

    assert outcome.clean, outcome.found
    totals = outcome.found["totals"]
    assert (totals["records"], totals["proved"], totals["in_doubt"]) == (8 + 7, 4 + 7, 4)
    assert (totals["compared"], totals["known_losses"]) == (4 + 7, 1)
    assert outcome.found["lanes"][2]["notes"] == ["nothing of this lane has been replicated"]
    assert outcome.found["lanes"][3]["notes"] == ["left out: the source's topic has no such partition"]


def test_copies_by_rules_are_proved_by_the_rule_and_the_keys_of_their_runs(
    stage: LaneStage, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A true copy, a value that stands on the target unmasked, another key of one environment, a rule that is gone."""
    for name, first in (("keys", 1), ("others", 7)):
        (tmp_path / name).mkdir()
        material = {str(i): b64encode(bytes([first + i]) * 32).decode() for i in (1, 2)}
        (tmp_path / name / "pii.json").write_text(json.dumps(material))
    monkeypatch.setitem(spark.sparkContext.environment, KEYS_VARIABLE, str(tmp_path / "keys"))
    monkeypatch.setenv(KEYS_VARIABLE, str(tmp_path / "keys"))
    rule = Rule(topics=(stage.topic,), keep="value.id != `1` && value.id != `6`", fields={"mail": Mask(hmac="pii")})
    stage.settings = msgspec.structs.replace(stage.settings, transforms=(rule,), keys={"pii": KeySettings(version=1)})
    stage.create(stage.source, stage.topic, 4)
    stage.create(stage.target, stage.remote_topic, 4)
    values: list[bytes | None] = [b'{"id":%d,"mail":"ann%d@example.org"}' % (i, i) for i in range(7)]
    for partition in range(4):
        fill(stage, partition, [*values, b'{"id":7,"mail":"ann7@example.org","note":"to ANN7@example.org"}'])
    begin = {f"p{partition}": range(4) for partition in range(4)}
    stage.replicate(tampered_with(patient(stage), {1: changed(0, value=values[0])}), stage.event(**begin))
    stage.settings = msgspec.structs.replace(stage.settings, keys={"pii": KeySettings(version=2)})
    stage.replicate(patient(stage), stage.event(p0=None, p1=None))
    with monkeypatch.context() as another:
        another.setenv(KEYS_VARIABLE, str(tmp_path / "others"))
        stage.replicate(patient(stage), stage.event(p2=range(4, 8)))
    gone = msgspec.structs.replace(rule, key="drop")
    stage.replicate(stage.environment(transforms=(gone,), transaction_timeout_ms=20_000), stage.event(p3=None))
    documents = DynamoDbDocuments(warm_tables(None, None), stage.settings.tables.control)
    documents.delete(stage.settings.name, document_of(RuleInForce.of(gone, stage.settings.keys).id))

    outcome = verified(stage, spark, tmp_path / "run", against_source=True)

    old, new = (RuleInForce(rule, {"pii": version}).id.hex() for version in (1, 2))
    assert [found(outcome, partition) for partition in range(4)] == [{}, {"different": 1}, {"different": 3}, {}]
    lanes, totals = outcome.found["lanes"], outcome.found["totals"]
    assert {each["what"] for lane in lanes for each in lane["findings"]} == {"value not as its rule makes it"}
    assert (totals["records"], totals["proved"], totals["compared"], totals["rule_gone"]) == (24, 23, 18, 3)
    uses = {each: (use["first"], use["copied"], use["filtered"]) for each, use in lanes[0]["rules"].items()}
    assert uses == {old: (0, 3, 1), new: (4, 3, 1)}
    assert (lanes[0]["rules"][new]["searched"], lanes[0]["rules"][new]["shown_at"]) == (3, [7])
    assert set(outcome.found["rules"]) == {old, new}
    assert "is not among the flow's documents" in lanes[3]["notes"][0]
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [text for text in written if b"example.org" in text.lower()]


@pytest.mark.soak(
    "tests/unit/verify/test_compacted_keys.py::test_a_latest_value_that_is_wrong_or_gone_is_found_once",
    "tests/unit/verify/test_compacted_keys.py::test_what_one_side_has_removed_by_itself_is_not_called_missing",
    "tests/unit/verify/test_verification.py::test_a_compacted_topic_is_proved_where_its_runs_are_whole_and_never_called_missing",
)
def test_a_compacted_topic_is_judged_by_the_latest_value_of_each_key(
    stage: LaneStage, spark: SparkSession, tmp_path: Path
) -> None:
    stage.create(stage.source, stage.topic, 2, cleanup_policy="compact")
    stage.create(stage.target, stage.remote_topic, 2, cleanup_policy="compact")
    for partition in range(2):
        for key, value in [(b"a", b"1"), (b"c", b"1"), (b"c", None), (b"d", b"1"), (b"b", b"1"), (b"a", b"2")]:
            stage.write(value, key=key, partition=partition)
    # On both `a` has lost its first record, and `c` its value and its tombstone; on the second `d` is gone as well.
    aborted = transactional(stage.target.bootstrap)
    for partition, count in enumerate((3, 4)):
        transaction(aborted, stage.remote_topic, *[b""] * count, partition=partition, commit=False)
    compacted = tampered_with(patient(stage), {0: thinned_out(3), 1: thinned_out(4)})
    stage.replicate(compacted, stage.event())
    stage.write(b"not replicated yet", key=b"b")

    outcome = verified(stage, spark, tmp_path)

    assert not outcome.clean
    assert found(outcome, 0) == {}
    assert found(outcome, 1) == {"missing": 1}
    counts = outcome.found["lanes"][0]["counts"]
    assert (counts["keys"], counts["keys_pending"], counts["compacted"], counts["not_provable"]) == (4, 1, 6, 0)
    (finding,) = outcome.found["lanes"][1]["findings"]
    assert msgspec.convert(finding["upstream"], OffsetRange) == OffsetRange(3, 4)
