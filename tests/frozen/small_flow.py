"""A small flow for the operator's commands: stores and clusters in memory, nothing started."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import cli.jobs.local
import mirrorless.adapters.dynamodb.chains
from cli.deployment import DeployedFlows, Stores
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.kafka.acls import KafkaAcls
from mirrorless.adapters.kafka.groups import KafkaGroups
from mirrorless.adapters.kafka.offsets import Extent, KafkaOffsets, OpenTransaction
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.adapters.kafka.wire.open_transactions import OpenProducer
from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.lane_state import LaneState, Lease, Stop
from mirrorless.chain.losses import GapSummary, Loss
from mirrorless.errors import Retriable
from mirrorless.flow.settings import Tables
from mirrorless.groups.checkpoints import GroupCheckpoints, GroupOffset
from mirrorless.jobs.progress import LaneProgress, add_up
from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.ports.topics import ConfigEntry
from mirrorless.scheduled.runner import TaskReport
from mirrorless.topics.acl_sync import AclDocument
from mirrorless.topics.acls import Acl
from mirrorless.topics.topic_state import TopicState
from tests.support.chains import MemoryChains, MemoryLaneStates, MemoryLossLedger, run
from tests.support.documents import MemoryDocuments
from tests.support.started_jobs import end_started

FLOW = FlowName("us-east", "eu-west")
LATER = 4_000_000_000_000
"""Far from now: a lease until then is held."""

CONFIGURATION = """
clusters:
  us-east: {bootstrap.servers: [127.0.0.1:1], region: us-east-1, account: "123456789012"}
  eu-west: {bootstrap.servers: [127.0.0.1:1], region: us-east-1, account: "123456789012"}
  silent: {bootstrap.servers: [127.0.0.1:1], region: us-east-1, account: "123456789012"}
flows:
  silent->eu-west: {topics: [orders, "paid-.*"]}
  us-east->eu-west:
    topics: [orders, payments, "paid-.*", "eu-west[.]orders"]
    trigger.overrides: {payments: schedule}
    groups.exclude: [console]
"""

RATES = """
topic,partitions,records_per_second,bytes_per_second,average_record_bytes,peak_bytes_per_second
orders,4,1000,1000000,1000,2000000
"""

LARGE_RATE = "paid-large,1,1,5000000,5000000,5000000"
"""Of a topic whose records no mapping can carry."""

DRIVER = """
import sys
from pathlib import Path
for name in ("report.json", "progress.json"):
    (Path(sys.argv[1]) / name).write_bytes(Path(__file__).with_name(name).read_bytes())
"""
"""A job that ends at once."""

STATE: dict[str, Any] = {
    "ready": True,
    "config": "replication.yaml",
    "clusters": {alias: {"bootstrap": "127.0.0.1:1", "pid": 1, "version": "4.1.1"} for alias in ("us-east", "eu-west")},
    "dynamodb": {"endpoint": "http://127.0.0.1:1", "pid": 2},
    "tables": msgspec.to_builtins(Tables()),
    "functions": {},
    "mappings": [
        {
            "uuid": "1",
            "flow": str(FLOW),
            "topic": "orders",
            "group_id": "mirrorless.us-east.eu-west.orders",
            "state": "Enabled",
            "last_processing_result": "OK",
        }
    ],
    "logs": ".lab",
}


@contextmanager
def small_flow(folder: Path) -> Iterator[None]:
    """The flow of a lab whose state file is `lab.json` in the folder; the folder is the current one meanwhile."""
    stores = _stores()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "replication.yaml").write_text(CONFIGURATION)
        (folder / "lab.json").write_text(json.dumps(STATE))
        (folder / "small.csv").write_text(RATES)
        (folder / "rates.csv").write_text(RATES + LARGE_RATE)
        patch.setattr(DeployedFlows, "stores", lambda *_: stores)
        patch.setattr(DynamoDbChains, "heads", lambda _, lanes: stores.chains.heads(lanes))
        lanes = [Lane(FLOW, "orders", 0)]
        patch.setattr(mirrorless.adapters.dynamodb.chains, "lanes_in", lambda *_: lanes)
        _answer(patch)
        end_jobs_at_once(patch, folder)
        try:
            yield
        finally:
            end_started()


class LaneStates(MemoryLaneStates):
    """With the operator's view of a whole flow."""

    def noted(self, flow: FlowName) -> dict[Lane, LaneState]:
        """Every lane with something to its name."""
        return {lane: state for lane, state in self.states.items() if lane.flow == flow}

    def stopped(self, flow: FlowName) -> dict[Lane, LaneState]:
        """Every lane that is stopped."""
        return {lane: state for lane, state in self.noted(flow).items() if state.stop is not None}


def _stores() -> Stores:
    """A lane with a past and one run in doubt, one that is stopped, one that a job has, one that waits for a job."""
    chains, states, ledger = MemoryChains(), LaneStates(), MemoryLossLedger()
    checkpoints, control = MemoryDocuments(), MemoryDocuments()
    lanes = [Lane(FLOW, "orders", partition) for partition in range(4)]
    for lane in lanes[:2]:
        chains.prepare([run(0, 10, (0, 100, 4), (6, 104, 4), lane=lane)])
    chains.prepare([run(0, 10, lane=Lane(FlowName("silent", "eu-west"), "orders", 0))])
    chains.prepare([run(10, 12, (10, 108, 2), lane=lanes[0], state="prepared")])
    states.stop(lanes[1], Stop(reason="refused", upstream_offset=10, detail="it is too large", at=1))
    states.take(lanes[2], Lease(holder="backfill-1", until=LATER), now=1)
    states.wait(lanes[3], 7)
    ledger.note(Loss(lane=lanes[0], generation=0, first=4, next=6, cause="retention", detail="gone", at=1))
    explained = GapSummary(lane=lanes[0], generation=0, until=10, offsets={"transaction_marker": 2}, at=1)
    ledger.summarise(explained, known=GapSummary(lane=lanes[0], generation=0))

    offsets = {"orders": {0: GroupOffset(8, 106, "exact", "metadata"), 3: GroupOffset(7, None, "no_map")}}
    shop = GroupCheckpoints(group="shop", direction="forward", at=1, readiness="ready", offsets=offsets)
    checkpoints.write(FLOW, {"forward/shop": msgspec.json.encode(shop)})

    task = TaskReport(task="topics", at=2, ms=1, ok_at=1, error="no", troubles=("x",), counts={"topics": 1})
    seen = TopicState(topic="orders", topic_id="id-1", partitions=4, first_seen=1)
    staged = (acl("us-east.orders", "WRITE"), acl("us-east.orders", "DELETE"))
    acls = AclDocument(created=(acl("us-east.gone", "READ"),), staged=staged, topics=("orders",), withheld=(ANY_ID,))
    moved = AclDocument(created=(MOVED, acl("us-east.orders", "DESCRIBE")))
    documents = {"task/topics": task, "topic/orders": seen, "acls": acls, "acls/failover": moved}
    control.write(FLOW, {key: msgspec.json.encode(document) for key, document in documents.items()})
    memory: dict[str, Any] = {
        "client": None,
        "chains": chains,
        "states": states,
        "ledger": ledger,
        "documents": control,
        "checkpoints": checkpoints,
    }
    return Stores(tables=Tables(), **memory)


def acl(topic: str, operation: str, principal: str = "User:shop") -> Acl:
    """A grant on a topic."""
    return Acl("TOPIC", "LITERAL", topic, principal, "*", "ALLOW", operation)


CLUSTER = Acl("CLUSTER", "LITERAL", "kafka-cluster", "User:shop", "*", "ALLOW", "ALTER")
ANY_ID = Acl("TRANSACTIONAL_ID", "LITERAL", "*", "User:shop", "*", "ALLOW", "WRITE")
MOVED = acl("us-east.orders", "WRITE", "User:moved")
ON_SOURCE = frozenset({*(acl("orders", each) for each in ("READ", "WRITE", "ALL", "DESCRIBE")), CLUSTER, ANY_ID})
ON_TARGET = frozenset({acl("us-east.gone", "READ"), acl("us-east.orders", "DESCRIBE"), MOVED})


def _answer(patch: pytest.MonkeyPatch) -> None:
    """What both clusters answer to the commands' questions."""
    counts = {"orders": 4, "us-east.orders": 4, "payments": 1, "eu-west.orders": 1, "paid-online": 1}

    def partitions(offsets: KafkaOffsets) -> dict[str, int]:
        if offsets._cluster.alias == "silent":
            raise Retriable("the cluster did not list its topics", where="silent")
        return counts | {"heartbeats": 1, "us-east.heartbeats": 1}

    def acls(side: KafkaAcls, _: object) -> frozenset[Acl]:
        return ON_SOURCE if side._admin._cluster.alias == FLOW.source else ON_TARGET

    patch.setattr(KafkaOffsets, "partitions", partitions)
    patch.setattr(KafkaOffsets, "extents", lambda _, places: dict.fromkeys(places, Extent(0, 20)))
    patch.setattr(KafkaOffsets, "oldest_waiting", lambda _, positions: dict.fromkeys(positions, 1))
    opened = OpenTransaction(offset=0, since=1, producer=OpenProducer(4_000, 0, "billing"))
    patch.setattr(KafkaOffsets, "open_transactions", lambda _, ends: {("orders", 3): opened} if ends else {})
    patch.setattr(KafkaOffsets, "committed", lambda *_: 10)
    patch.setattr(KafkaOffsets, "newest", lambda offsets, *_, **__: 1 if offsets._flow == str(FLOW) else None)
    patch.setattr(KafkaTopics, "partitions", lambda *_: counts)
    patch.setattr(KafkaTopics, "configs", lambda _, names, __: ({name: _configs(name) for name in names}, {}))
    patch.setattr(KafkaGroups, "names", lambda *_: ["shop", "console"])
    there = {"shop": {("us-east.orders", 0): OffsetAndMetadata(offset=106, metadata="")}}
    patch.setattr(KafkaGroups, "committed", lambda *_: there)
    patch.setattr(KafkaAcls, "read", acls)
    patch.setattr(KafkaAcls, "create", lambda _, wanted, __: dict.fromkeys(sorted(wanted)[1:], "refused"))
    patch.setattr(KafkaAcls, "delete", lambda *_: {})


def _configs(topic: str) -> list[ConfigEntry]:
    value = "2" if topic == "orders" else "1"
    return [ConfigEntry(name="retention.ms", value=value, is_override=True)]


def end_jobs_at_once(patch: pytest.MonkeyPatch, folder: Path, *, clean: bool = True) -> None:
    """Put a driver that has nothing to do in the place of each job's own. Args: clean: what it reports."""
    patch.setattr(cli.jobs.local, "SCRIPTS", folder)
    for kind in ("backfill", "verify", "reconcile"):
        (folder / f"{kind}.py").write_text(DRIVER)
    lane = LaneProgress(lane="us-east->eu-west orders-0", done=1, total=2, position=1, at=1)
    progress = add_up(
        [lane], run_id="verify-1", kind="verify", flow=str(FLOW), state="succeeded", phase="", started_at=0, at=1
    )
    (folder / "progress.json").write_bytes(msgspec.json.encode(progress))
    report = {"clean": clean, "report": {"verdict": "all is proved"}}
    (folder / "report.json").write_bytes(msgspec.json.encode(report))
