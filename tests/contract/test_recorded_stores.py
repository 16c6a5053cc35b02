"""What an earlier version left in a flow's tables is read by this one, and what this one writes is what that one wrote.

`recorded_stores.json` has the items of the five tables as a version wrote them that ran before. Each kind of entry,
state, order, loss and document is in it once. Where nothing new is written the items are equal, attribute by attribute:
so the earlier version reads what this one leaves, too. A group's offsets have one more value now, a bound, which it
does not read: they are equal as it reads them.

    python -m tests.contract.test_recorded_stores FILE      writes the items anew, with the version that is checked out
"""

from __future__ import annotations

import base64
import json
import sys
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.process import running
from mirrorless.adapters.dynamodb.chains import DynamoDbChains, lanes_in
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head, LaneState, Lease, LeftOut, Stop
from mirrorless.chain.losses import GapSummary, Loss
from mirrorless.chain.run import Run
from mirrorless.copy.shards import ShardHolder
from mirrorless.failover.state import Failback, FailoverDocument, FailoverOrder, StepResult, read_document
from mirrorless.flow.settings import Tables
from mirrorless.groups.checkpoints import GroupCheckpoints, GroupOffset
from mirrorless.groups.ownership import ClaimedOffsets
from mirrorless.lanes.check_state import LaneNotes, TopicNotes, read_notes, write_notes
from mirrorless.scheduled.runner import TaskReport
from mirrorless.scheduled.standby import RegionRun
from mirrorless.topics.acl_sync import AclDocument
from mirrorless.topics.acls import Acl
from mirrorless.topics.mapping_sync import MappingRefusal
from mirrorless.topics.pause import PausedMappings, PauseOrder
from tests.support.chains import FLOW, NOW, reset, run

RECORDED = Path(__file__).with_name("recorded_stores.json")
AT = 1_763_686_800_123

ORDERS, SECOND, DOUBTED, ANEW = (Lane(FLOW, "orders", partition) for partition in range(4))
FAR = Lane(FLOW, "orders.eu-central", 17)
PREPARED = run(0, 4, (0, 9, 4), lane=DOUBTED, state="prepared", attempt="doubted")
NEWEST = replace(
    run(12, 40, (14, 60, 3), (17, 64, 20), quarantined=(12, 39), attempt="newest"),
    returned=((37, 39),),
    examined=True,
    epoch=7,
)
WHOLE = replace(run(0, 2**40, (2**40 - 1, 2**41, 1), lane=FAR), digest_of="batches", passed_bytes=8)
HEADS: Mapping[Lane, Head] = {
    ORDERS: Head(generation=0, position=40, run=NEWEST),
    SECOND: Head(generation=0, position=2, run=run(0, 2, quarantined=(0, 1), lane=SECOND)),
    DOUBTED: Head(generation=0, position=0, run=PREPARED),
    ANEW: Head(generation=1, position=3, run=run(0, 3, (0, 500, 3), lane=ANEW, generation=1)),
    FAR: Head(generation=0, position=2**40, run=WHOLE),
}

STOP = Stop(reason="refused", upstream_offset=40, detail="too large", at=AT, cause="too_large")
OF_FLOW = replace(STOP, reason="held", upstream_offset=0, cause="", detail="failover-1")
PARTED = replace(STOP, reason="truncated", untrue_from=38, cause="", replicated=((41, 44), (50, 52)))
LEFT_OUT = (*LeftOut.each(12), LeftOut(first=50, next=52, cause="too_large"))
STATES: Mapping[Lane, LaneState] = {
    ORDERS: LaneState(stop=STOP, quarantine=LEFT_OUT),
    SECOND: LaneState(stop=OF_FLOW, of_flow=True, lease=Lease(holder="backfill-1", until=AT)),
    DOUBTED: LaneState(stop=OF_FLOW, of_flow=True, waiting=3),
    ANEW: LaneState(stop=PARTED, begun=1),
}

LOSSES = [
    Loss(lane=ORDERS, generation=0, first=12, next=13, cause="quarantined", detail="by an order", at=AT),
    Loss(lane=ORDERS, generation=0, first=13, next=14, cause="retention", detail="gone", at=AT),
    Loss(lane=FAR, generation=0, first=0, next=2**40 - 1, cause="oversize", detail="larger than an event", at=AT),
]
SUMMARY = GapSummary(lane=ORDERS, generation=0, until=40, at=AT, offsets={"compaction": 3, "aborted": 1})

STEP = StepResult(step="drain", at=AT, ms=5, said="all there", facts={"lanes": 4}, commands=("stopped",), again=True)
ACL = Acl("TOPIC", "LITERAL", "orders", "User:shop", "*", "ALLOW", "READ")
CHECKPOINTS: Mapping[str, Any] = {
    "forward/shop": GroupCheckpoints(
        group="shop",
        direction="forward",
        at=AT,
        readiness="behind",
        offsets={"orders": {0: GroupOffset(14, 60, "exact", "m")}},
        by="group",
        reread=1,
        skip=2,
        ahead=3,
        carried={"orders": {0: 14}},
        own={"orders": {0: (60, 64)}},
        left_at=None,
        emitted=False,
    ),
    "claim/left/reverse/shop": ClaimedOffsets("shop", "reverse", {"orders": {0: 60}}, {"orders": {1: 2}}, left=True),
}
CONTROL: Mapping[str, Any] = {
    "task/lanes": TaskReport("lanes", AT, 2, 3, 4, 5, 6, 7, "no answer", ("a trouble",), {"doubts-open": 1}),
    "pause": PauseOrder(AT, "a new cluster", AT + 1),
    "pause/mappings": PausedMappings(("14e0db71-5d35-4eb5-b481-8945cf9d10c2",)),
    "acls": AclDocument((ACL,), (ACL,), ("orders",), (ACL,)),
    "mappings": {"orders": MappingRefusal("digest", 2, AT, "too many pollers")},
    "pull/0/holder": ShardHolder("one", AT),
    "region/home": RegionRun("us-east-1", AT, works=False),
    "failover": FailoverDocument(
        run="failover-1",
        order=FailoverOrder(mode="planned", fencing="wait"),
        began_at=AT,
        steps=(STEP,),
        back=Failback(began_at=AT, steps=(STEP,), reconcile_run="r", runs=("r",), reconcile_ends={"orders": [1]}),
    ),
}
LARGE = b"x" * 500_000
"""A document of several items."""
NOTES = {"orders": TopicNotes({0: LaneNotes(64, 1, 40, 64, AT, 3, 7, 2, 1, AT)}, AT)}


def write_everything(client: Any, tables: Tables) -> None:
    """A flow's life in short, as its functions, its jobs and its operator write it."""
    chains = DynamoDbChains(client, tables.offset_map, clock=lambda: NOW)
    for lanes in (_first_runs(), [NEWEST], [HEADS[ANEW].run]):
        runs = [replace(each, state="prepared") for each in lanes if each is not None]
        if lanes[0] is HEADS[ANEW].run:
            chains.reset(reset(9, 0, lane=ANEW))
        chains.prepare(runs)
        chains.confirm([each for each in runs if each.attempt != PREPARED.attempt])
    given_up = replace(run(40, 41, (40, 84, 1), attempt="given-up"), state="prepared")
    chains.prepare([given_up])
    chains.withdraw([given_up])
    states = DynamoDbLaneOrders(client, tables.lanes)
    states.quarantine(ORDERS, *LEFT_OUT)
    states.stop(ORDERS, STOP)
    states.take(SECOND, Lease(holder="backfill-1", until=AT), now=1)
    states.wait(DOUBTED, 3)
    states.begin(ANEW, 1)
    states.stop(ANEW, PARTED)
    states.stop_flow(FLOW, OF_FLOW)
    ledger = DynamoDbLossLedger(client, tables.loss_ledger)
    for loss in LOSSES:
        ledger.note(loss)
    ledger.summarise(SUMMARY, known=GapSummary(lane=ORDERS, generation=0))
    for table, documents in ((tables.checkpoints, CHECKPOINTS), (tables.control, CONTROL)):
        DynamoDbDocuments(client, table).write(
            FLOW, {key: msgspec.json.encode(each) for key, each in documents.items()}
        )
    control = DynamoDbDocuments(client, tables.control)
    control.claim(FLOW, "lease/control", holder="one", now=1, until=AT)
    control.write(FLOW, {"large": LARGE})
    write_notes(control, FLOW, NOTES)


def _first_runs() -> list[Run]:
    runs = [run(0, 12, (0, 50, 10)), PREPARED, run(0, 9, (0, 100, 9), lane=ANEW)]
    return runs + [head.run for lane, head in HEADS.items() if lane in (SECOND, FAR) and head.run is not None]


def items_in(client: Any, tables: Tables) -> dict[str, list[str]]:
    """Every item, as JSON in one line, by what its table holds."""
    found = {}
    for kind in Tables.__struct_fields__:
        pages = client.get_paginator("scan").paginate(TableName=getattr(tables, kind))
        items = (item for page in pages for item in page["Items"])
        found[kind] = sorted(json.dumps(item, sort_keys=True, default=_base64) for item in items)
    return found


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _attribute(pair: dict[str, Any]) -> dict[str, Any]:
    """An attribute with its bytes: DynamoDB's JSON has them as base64."""
    return {"B": base64.b64decode(pair["B"])} if set(pair) == {"B"} and isinstance(pair["B"], str) else pair


class _EarlierOffset(msgspec.Struct, array_like=True):
    """A group's offset as the earlier version read it."""

    upstream: int | None
    downstream: int | None
    state: str
    metadata: str = ""


class _EarlierCheckpoints(GroupCheckpoints, frozen=True, forbid_unknown_fields=True):
    offsets: dict[str, dict[int, _EarlierOffset]]  # type: ignore[assignment] # what the earlier version read


def _as_it_was_read(items: Mapping[str, list[str]]) -> dict[str, list[object]]:
    """Items, and documents of groups in place of theirs."""
    read: dict[str, list[object]] = {kind: list(of_kind) for kind, of_kind in items.items()}
    for place, text in enumerate(items["checkpoints"]):
        item = json.loads(text, object_hook=_attribute)
        if item["key"]["S"].startswith("forward/"):
            document = zlib.decompress(item["document"].pop("B"))
            read["checkpoints"][place] = item, msgspec.json.decode(document, type=_EarlierCheckpoints)
    return read


@pytest.mark.integration
def test_this_version_writes_what_the_earlier_one_wrote(dynamodb: DynamoDbLocal, tables: Tables) -> None:
    client = dynamodb.client()

    write_everything(client, tables)

    assert _as_it_was_read(items_in(client, tables)) == _as_it_was_read(json.loads(RECORDED.read_text()))


@pytest.mark.integration
def test_this_version_reads_what_the_earlier_one_wrote(dynamodb: DynamoDbLocal, tables: Tables) -> None:
    client = dynamodb.client()
    for kind, items in json.loads(RECORDED.read_text()).items():
        for item in items:
            client.put_item(TableName=getattr(tables, kind), Item=json.loads(item, object_hook=_attribute))
    chains = DynamoDbChains(client, tables.offset_map, clock=lambda: NOW)
    states = DynamoDbLaneOrders(client, tables.lanes)
    ledger = DynamoDbLossLedger(client, tables.loss_ledger)
    control, checkpoints = (DynamoDbDocuments(client, table) for table in (tables.control, tables.checkpoints))

    assert chains.heads(HEADS) == HEADS
    assert chains.at_or_before(ORDERS, 0, 11) == run(0, 12, (0, 50, 10))
    assert chains.after(ANEW, 0, -1, limit=5) == [run(0, 9, (0, 100, 9), lane=ANEW), reset(9, 0, lane=ANEW)]
    assert states.read(STATES) == STATES
    assert states.flow_stop(FLOW) == OF_FLOW
    assert [loss for lane in lanes_in(client, tables.loss_ledger, FLOW) for loss in ledger.read(lane)] == LOSSES
    assert ledger.summary(ORDERS, 0) == SUMMARY
    for documents, expected in ((control, CONTROL), (checkpoints, CHECKPOINTS)):
        for key, document in expected.items():
            type_ = dict[str, MappingRefusal] if key == "mappings" else type(document)
            assert msgspec.json.decode(documents.read(FLOW, key)[key], type=type_) == document
    assert read_document(control, FLOW) == CONTROL["failover"]
    assert read_notes(control, FLOW) == NOTES
    assert control.read(FLOW, "large") == {"large": LARGE}
    assert control.claim(FLOW, "lease/control", holder="two", now=AT - 1, until=AT + 1) is None, "another has it"


def main(path: Path) -> None:
    """Write the items of this version."""
    with TemporaryDirectory() as folder:
        server = DynamoDbLocal(folder=Path(folder), in_memory=True)
        with running(server):
            client, tables = server.client(), Tables()
            server.create_tables(tables)
            write_everything(client, tables)
            path.write_text(json.dumps(items_in(client, tables), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
