"""The audit on real clusters: it finds what is planted, and no more."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lab.audit.audit import PartitionAudit, audit, totals
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.errors import Retriable
from tests.support.commands import replication_yaml
from tests.support.lane_stage import LaneStage, numbered
from tests.support.topics import begin_transaction, transaction, transactional

pytestmark = pytest.mark.integration

WRITTEN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A topic of this test alone, replicated; its source ends in aborted records and their marker."""

    flow: Flow
    stage: LaneStage

    def audit(self) -> dict[str, int]:
        """The totals that are not 0."""
        return {name: count for name, count in totals([self.row()]).items() if count}

    def row(self) -> PartitionAudit:
        """The only partition's row."""
        (row,) = audit(self.flow, self.stage.topic, self.stage.chains).rows
        return row


@pytest.fixture
def copy(stage: LaneStage) -> Copy:
    stage.create(stage.source, stage.topic)
    producer = transactional(stage.source.bootstrap)
    for first in range(0, WRITTEN, 10):
        transaction(producer, stage.topic, *numbered(*range(first, first + 10)))
        transaction(producer, stage.topic, *[b"aborted"] * 2, commit=False)
    environment = stage.environment()
    offsets = [number + 4 * (number // 10) for number in range(WRITTEN)]  # a marker, two aborted records, their marker
    for start in range(0, WRITTEN, 7):
        stage.deliver(stage.event(p0=offsets[start : start + 7]), environment)
    bootstrap = {"us-east": stage.source.bootstrap, "eu-west": stage.target.bootstrap}
    return Copy(flow=load(replication_yaml()).with_clusters_at(bootstrap).enabled_flows[0], stage=stage)


def test_a_true_copy_has_no_finding_though_both_sides_have_gaps_and_the_source_ends_in_one(copy: Copy) -> None:
    assert copy.audit() == {"records": WRITTEN}
    assert copy.row().target == WRITTEN


def test_records_that_were_not_replicated_are_lost(copy: Copy) -> None:
    copy.stage.write(b"late")

    assert copy.audit() == {"records": WRITTEN + 1, "lost": 1}


def test_a_topic_that_is_not_there_is_no_clean_audit(copy: Copy) -> None:
    with pytest.raises(LookupError, match="no topic missing"):
        audit(copy.flow, "missing", copy.stage.chains)


def test_an_open_transaction_is_named_and_not_read_past(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it hides would be counted as lost."""
    monkeypatch.setattr("lab.audit.topic_reader.SETTLED_WITHIN_SECONDS", 0.5)
    producer = transactional(copy.stage.source.bootstrap)
    begin_transaction(producer, copy.stage.topic, b"open")

    with pytest.raises(Retriable, match="an open transaction hides records"):
        copy.audit()
    producer.abort_transaction(20)
