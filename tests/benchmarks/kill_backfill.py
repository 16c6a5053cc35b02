"""Backfills whose processes are killed, round after round, each from another seed.

    python -m tests.benchmarks.kill_backfill --rounds 20

A round fills a topic, starts the job in `local-cluster` mode, kills -9 a Python worker, an executor and the driver at
drawn moments, runs it again and audits every record and its translation. Prints a line for each round, and one line of
JSON; exits 1 if anything was lost, repeated, out of order, different or mistranslated. A round that failed comes again
by its seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from lab.servers.dynamodb import DynamoDbLocal
from lab.servers.kafka import KafkaCluster
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneOrders
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.settings import ClusterSettings, FlowSettings, Tables
from mirrorless.tables import definitions
from tests.support.kill_rounds import kill_round
from tests.support.lane_stage import LaneStage


def main() -> int:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each next one has the next seed")
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--records", type=int, default=100_000, help="of each lane")
    arguments = parser.parse_args()
    faults: Counter[str] = Counter()
    records = 0
    with tempfile.TemporaryDirectory(prefix="kill-backfill-") as temporary, servers(Path(temporary)) as started:
        for seed in range(arguments.seed, arguments.seed + arguments.rounds):
            folder = Path(temporary) / f"round-{seed}"
            folder.mkdir()
            stage = new_stage(*started)
            found = kill_round(stage, started[2], folder, seed=seed, lanes=arguments.lanes, records=arguments.records)
            faults.update(found.faults)
            records += found.records
            wrong = {name: count for name, count in found.faults.items() if count}
            print(
                f"seed {seed}: {found.records:,} records, {found.written_before_the_end:,} of them by runs that were "
                f"killed, {found.seconds:.0f} s: {wrong or 'every record once, in order, as it was, and in the map'}",
                flush=True,
            )
    print(json.dumps({"rounds": arguments.rounds, "records": records, **faults}))
    return 1 if any(faults.values()) else 0


@contextmanager
def servers(
    folder: Path, *, target_properties: Mapping[str, str] | None = None
) -> Iterator[tuple[KafkaCluster, KafkaCluster, DynamoDbLocal]]:
    """A source, a target and DynamoDB Local. Args: target_properties: of the target's broker."""
    source = KafkaCluster(alias="us-east", folder=folder / "us-east")
    target = KafkaCluster(alias="eu-west", folder=folder / "eu-west", properties=target_properties)
    dynamodb = DynamoDbLocal(folder=folder / "dynamodb")
    try:
        for cluster in (source, target):
            cluster.begin_start()
        dynamodb.start()
        for cluster in (source, target):
            cluster.wait_ready()
        yield source, target, dynamodb
    finally:
        for server in (source, target, dynamodb):
            server.stop()


def new_stage(source: KafkaCluster, target: KafkaCluster, dynamodb: DynamoDbLocal) -> LaneStage:
    """The stage of a topic that is not there yet, with tables of its own."""
    suffix = uuid4().hex[:8]
    kinds = ("offset_map", "lanes", "loss_ledger", "checkpoints", "control")
    tables = Tables(**{kind: f"{kind}-{suffix}" for kind in kinds})
    client: Any = dynamodb.client()
    for definition in definitions(tables):
        client.create_table(**definition.create_request())
    settings = FlowSettings(
        flow=f"{source.alias}->{target.alias}",
        source=ClusterSettings(alias=source.alias, bootstrap=source.bootstrap),
        target=ClusterSettings(alias=target.alias, bootstrap=target.bootstrap, region="us-east-1"),
        transaction_timeout_ms=2000,
        replication_factor=1,
        tables=tables,
    )
    return LaneStage(
        topic=f"orders-{suffix}",
        settings=settings,
        source=source,
        target=target,
        chains=DynamoDbChains(client, tables.offset_map),
        orders=DynamoDbLaneOrders(client, tables.lanes),
        ledger=DynamoDbLossLedger(client, tables.loss_ledger),
        checkpoints=DynamoDbDocuments(client, tables.checkpoints),
        wire=_nobody,
    )


def _nobody(settings: FlowSettings) -> Any:
    raise NotImplementedError(f"no function replicates {settings.flow} here")


if __name__ == "__main__":
    sys.exit(main())
