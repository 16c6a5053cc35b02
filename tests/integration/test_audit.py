"""The audit on real clusters: a true copy has no finding, and what is planted is found as what it is."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from random import Random
from uuid import uuid4

import msgspec
import pytest
from confluent_kafka import Producer

from lab.audit.audit import PartitionAudit, audit, totals
from lab.audit.topic_reader import read_topic, stable_ends
from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.config.flow import Flow
from mirrorless.config.loading import load
from mirrorless.errors import Retriable
from mirrorless.flow.naming import FLOW_VARIABLE
from mirrorless.flow.settings import Tables
from mirrorless.protocol.event import Batch
from mirrorless.records.record import Record
from tests.support.flows import make_flow
from tests.support.lane_stage import ORDERED
from tests.support.topics import create_topic

pytestmark = pytest.mark.integration

CONFIGURATION = """
clusters:
  us-east: {{bootstrap.servers: [{source}], region: us-east-1, authentication: {{type: plaintext}}}}
  eu-west: {{bootstrap.servers: [{target}], region: eu-west-1, authentication: {{type: plaintext}}}}
flows:
  us-east->eu-west: {{topics: [orders]}}
"""
WRITTEN = 30
QUIET = {"log_level": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A topic of this test alone, replicated; its source ends in aborted records and their marker."""

    flow: Flow
    topic: str
    chains: DynamoDbChains

    def audit(self) -> dict[str, int]:
        """The totals that are not 0."""
        rows = audit(self.flow, self.topic, self.chains).rows
        return {name: count for name, count in totals(rows).items() if count}

    def row(self) -> PartitionAudit:
        """The only partition's row."""
        (row,) = audit(self.flow, self.topic, self.chains).rows
        return row


@pytest.fixture
def copy(
    clusters: tuple[KafkaCluster, KafkaCluster],
    dynamodb: DynamoDbLocal,
    tables: Tables,
    monkeypatch: pytest.MonkeyPatch,
) -> Copy:
    source, target = clusters
    settings = make_flow(
        source=source.bootstrap, target=target.bootstrap, region="us-east-1", replication_factor=1, tables=tables
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
    monkeypatch.setenv(FLOW_VARIABLE, msgspec.json.encode(settings).decode())
    topic = create_topic(source.bootstrap, f"audited-{uuid4().hex[:8]}")
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": topic, **QUIET})
    producer.init_transactions(30)
    records: list[Record] = []
    for first in range(0, WRITTEN, 10):
        _transaction(producer, topic, [b"%d" % number for number in range(first, first + 10)], commit=True)
        _transaction(producer, topic, [b"aborted"] * 2, commit=False)
    offset = 0
    for number in range(WRITTEN):
        records.append(Record(offset=offset, timestamp=1_000 + number, headers=[], key=b"k", value=b"%d" % number))
        offset += 1 if (number + 1) % 10 else 5  # a marker, two aborted records, their marker
    replicator = importlib.import_module("forward").wire(settings)
    deadline = time.monotonic() + 60
    for start in range(0, WRITTEN, 7):
        replicator.replicate(
            Batch.of_topic(topic, {0: records[start : start + 7]}),
            request="test",
            deadline=lambda: deadline - time.monotonic(),
        )
    flow = load(CONFIGURATION.format(source=source.bootstrap, target=target.bootstrap)).enabled_flows[0]
    return Copy(flow=flow, topic=topic, chains=DynamoDbChains(dynamodb.client(), tables.offset_map))


def test_a_true_copy_has_no_finding_though_both_sides_have_gaps_and_the_source_ends_in_one(copy: Copy) -> None:
    assert copy.audit() == {"records": WRITTEN}
    assert copy.row().target == WRITTEN


def test_records_that_were_not_replicated_are_lost(copy: Copy) -> None:
    producer = Producer({"bootstrap.servers": copy.flow.source.bootstrap[0], **QUIET})
    producer.produce(copy.topic, b"late", b"k", 0)
    assert producer.flush(20) == 0

    assert copy.audit() == {"records": WRITTEN + 1, "lost": 1}


def test_a_topic_that_is_not_there_is_no_clean_audit(copy: Copy) -> None:
    with pytest.raises(LookupError, match="no topic missing"):
        audit(copy.flow, "missing", copy.chains)


def test_an_open_transaction_is_named_and_not_read_past(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it hides would be counted as lost."""
    monkeypatch.setattr("lab.audit.topic_reader.SETTLED_WITHIN_SECONDS", 0.5)
    producer = Producer({"bootstrap.servers": copy.flow.source.bootstrap[0], "transactional.id": uuid4().hex, **QUIET})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(copy.topic, b"open", b"k", 0)
    assert producer.flush(20) == 0

    with pytest.raises(Retriable, match="an open transaction hides records"):
        copy.audit()
    producer.abort_transaction(20)


def test_tens_of_thousands_of_records_are_read_in_seconds(copy: Copy) -> None:
    count, bootstrap = 20_000, copy.flow.source.bootstrap[0]
    random = Random(1)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **ORDERED})
    for number in range(count):
        producer.produce(copy.topic, random.randbytes(100), b"%d" % number, 0)
    assert producer.flush(30) == 0
    began = time.monotonic()

    found = read_topic(bootstrap, copy.topic, stable_ends(bootstrap, copy.topic))

    assert len(found[0]) == count + WRITTEN
    assert time.monotonic() - began < 10


def _transaction(producer: Producer, topic: str, values: list[bytes], *, commit: bool) -> None:
    producer.begin_transaction()
    for value in values:
        number = int(value) if commit else 0
        producer.produce(topic, value, b"k", 0, timestamp=1_000 + number)
    assert producer.flush(20) == 0  # aborted records must have been written, to leave their gap
    if commit:
        producer.commit_transaction(20)
    else:
        producer.abort_transaction(20)
