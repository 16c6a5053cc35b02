"""CPU of the forwarder per event, in one run beside a bare loop.

The bare loop does what no forwarder with this protocol can leave out: typed decoding, produce, flush, one prepare,
commit, one confirm. The forwarder is `functions/forward.py`'s handler with everything on: plan, digest, fingerprint,
metrics. Both use the same broker, table and client settings, in alternating rounds, in one process; CPU is the whole
process, the client's threads included. `make bench` prints the table; exits 1 above the limit.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.client import dynamodb_client
from mirrorless.adapters.kafka.target import producer_config
from mirrorless.naming import FLOW_VARIABLE, PROFILE_VARIABLE
from mirrorless.settings import ClusterSettings, FlowSettings
from mirrorless.tables import definitions

LIMIT = 1.4
EVENT_BYTES = 6_000_000
MAX_RECORDS = 10_000
"""Of an event: what a mapping takes at most, in bytes and in number."""
CASES = ((100, 1), (100, 6), (1_000, 1), (1_000, 6), (10_000, 1))
"""Bytes of a value, lanes of an event."""


class BareRecord(msgspec.Struct, gc=False):
    """What the bare loop decodes: headers are left alone."""

    offset: int
    timestamp: int
    headers: msgspec.Raw
    key: bytes | None = None
    value: bytes | None = None


class BareEvent(msgspec.Struct, gc=False):
    """An event of the bare loop."""

    records: dict[str, list[BareRecord]]


class BareLoop:
    """The least that forwards an event with a prepared and confirmed run per lane."""

    def __init__(self, settings: FlowSettings) -> None:
        self._decode = msgspec.json.Decoder(BareEvent).decode
        self._producer = Producer(producer_config(settings) | {"transactional.id": f"bare-{uuid4().hex}"})
        self._producer.init_transactions(30)
        self._dynamodb = dynamodb_client("us-east-1")
        self._table = settings.tables.offset_map
        self._number = 0

    def __call__(self, event: bytes) -> None:
        """Forward one event."""
        lanes = self._decode(event).records
        producer = self._producer
        producer.begin_transaction()
        produce = producer.produce
        delivered: dict[str, list[int]] = {}
        for lane, records in lanes.items():
            offsets: list[int] = []
            delivered[lane] = offsets

            def on_delivery(error: Any, message: Any, offsets: list[int] = offsets) -> None:
                if error is None:
                    offsets.append(message.offset())

            partition = int(lane.rpartition("-")[2])
            for record in records:
                produce("bare", record.value, record.key, partition, on_delivery, None, record.timestamp)
        producer.flush(30)
        if any(len(delivered[lane]) != len(records) for lane, records in lanes.items()):
            raise RuntimeError("the bare loop lost a delivery")
        self._number += 1
        key = {"slice": {"S": "bare"}, "number": {"N": str(self._number)}}
        runs = [[lane, each[-1].offset + 1, delivered[lane][0]] for lane, each in lanes.items()]
        self._dynamodb.put_item(
            TableName=self._table,
            Item={**key, "state": {"S": "prepared"}, "runs": {"B": msgspec.msgpack.encode(runs)}},
            ConditionExpression="attribute_not_exists(slice)",
        )
        producer.commit_transaction(30)
        self._dynamodb.update_item(
            TableName=self._table,
            Key=key,
            UpdateExpression="SET #state = :committed",
            ExpressionAttributeNames={"#state": "state"},
            ExpressionAttributeValues={":committed": {"S": "committed"}},
        )


class Events:
    """Six-megabyte events of one topic, offsets growing from event to event."""

    def __init__(self, topic: str, size: int, lanes: int, most: int = MAX_RECORDS) -> None:
        self._topic, self._lanes = topic, lanes
        self._value = base64.b64encode(os.urandom(size)).decode()
        one = len(json.dumps(self._record(0, 1_000_000)))
        self.records_per_lane = min(EVENT_BYTES // (one + 2), most) // lanes
        self._next = 0

    def _record(self, partition: int, offset: int) -> dict[str, Any]:
        return {
            "topic": self._topic,
            "partition": partition,
            "offset": offset,
            "timestamp": 1_700_000_000_000 + offset,
            "timestampType": "CREATE_TIME",
            "key": "a2V5LTAwMDAwMDAw",
            "value": self._value,
            "headers": [],
        }

    def following(self) -> bytes:
        """The next event."""
        first, self._next = self._next, self._next + self.records_per_lane
        lanes = {
            f"{self._topic}-{p}": [self._record(p, first + i) for i in range(self.records_per_lane)]
            for p in range(self._lanes)
        }
        event = {"eventSource": "SelfManagedKafka", "bootstrapServers": "127.0.0.1:9092", "records": lanes}
        return json.dumps(event, separators=(",", ":")).encode()


class Context:
    """Lambda's context, as far as the handler uses it."""

    aws_request_id = "bench"

    def get_remaining_time_in_millis(self) -> int:
        """As long as the benchmark wants."""
        return 60_000


def cpu_ms(call: Callable[[bytes], object], event: bytes) -> float:
    """CPU of the whole process for one event, its output swallowed."""
    with redirect_stdout(io.StringIO()):
        began = time.process_time()
        call(event)
        return (time.process_time() - began) * 1000


def measure(rounds: int, profile: bool) -> bool:  # noqa: FBT001 -- the command line's own flags
    """Print the table; whether every ratio keeps the limit."""
    with tempfile.TemporaryDirectory() as folder:
        target = KafkaCluster(alias="target", folder=Path(folder, "target"), heap_mb=1024)
        dynamodb = DynamoDbLocal(folder=Path(folder, "dynamodb"))
        servers = (target, dynamodb)
        try:
            for server in servers:
                server.begin_start()
            for server in servers:
                server.wait_ready()
            return _measure(target.bootstrap, dynamodb, rounds, profile)
        finally:
            for server in servers:
                server.stop()


def _measure(bootstrap: str, dynamodb: DynamoDbLocal, rounds: int, profile: bool) -> bool:  # noqa: FBT001 -- same
    cluster = ClusterSettings(alias="source", bootstrap=bootstrap)
    settings = FlowSettings(
        flow="source->target",
        source=cluster,
        target=ClusterSettings(alias="target", bootstrap=bootstrap, region="us-east-1"),
        replication_factor=1,
    )
    for table in definitions(settings.tables):
        dynamodb.client().create_table(**table.create_request())
    os.environ |= {
        FLOW_VARIABLE: msgspec.json.encode(settings).decode(),
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint,
        "AWS_ACCESS_KEY_ID": "lab",
        "AWS_SECRET_ACCESS_KEY": "lab",
        PROFILE_VARIABLE: str(profile).lower(),
    }
    sys.path.insert(0, str(Path(__file__).parents[2] / "functions"))
    import forward  # noqa: PLC0415 -- it wires itself when imported, from the variables above

    bare = BareLoop(settings)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    print(f"{'value B':>8} {'lanes':>5} {'records':>8} {'bare ms':>8} {'ours ms':>8} {'ratio':>6}  records per CPU-s")
    kept = True
    for number, (size, lanes) in enumerate(CASES):
        topics = [NewTopic("bare", 6, 1)] if number == 0 else []
        topics.append(NewTopic(f"source.t{number}", 6, 1))
        for future in admin.create_topics(topics).values():
            future.result()
        ours, theirs = Events(f"t{number}", size, lanes), Events(f"bare{number}", size, lanes)
        figures: dict[str, list[float]] = {"bare": [], "ours": []}
        for round_number in range(rounds + 3):
            bare_ms = cpu_ms(bare, theirs.following())
            ours_ms = cpu_ms(lambda event: forward.handler(event, Context()), ours.following())
            if round_number >= 3:  # the first rounds warm both up
                figures["bare"].append(bare_ms)
                figures["ours"].append(ours_ms)
        if profile and forward.profile is not None:
            print("  ", forward.profile.milliseconds())
        records = ours.records_per_lane * lanes
        bare_ms, ours_ms = median(figures["bare"]), median(figures["ours"])
        ratio = median(o / b for o, b in zip(figures["ours"], figures["bare"], strict=True))
        kept = kept and ratio <= LIMIT
        per_second = records / ours_ms * 1000
        print(f"{size:>8} {lanes:>5} {records:>8} {bare_ms:>8.1f} {ours_ms:>8.1f} {ratio:>6.2f}  {per_second:,.0f}")
    print(f"limit {LIMIT}: {'kept' if kept else 'broken'}")
    return kept


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--profile", action="store_true", help="print the handler's stage profile, wall ms")
    arguments = parser.parse_args()
    sys.exit(0 if measure(arguments.rounds, arguments.profile) else 1)
