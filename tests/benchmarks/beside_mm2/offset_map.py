"""What an event of six lanes costs in the offset map, counted: write units by DynamoDB's word, and stored bytes."""

from __future__ import annotations

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.cost.assumptions import Assumptions
from mirrorless.settings import Tables
from tests.benchmarks.beside_mm2.clusters import Ground
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.results import Measurement, Results, now
from tests.benchmarks.beside_mm2.side import OURS
from tests.support.metered import MeteredClient
from tests.support.write_units import replicated, stored_bytes

KIND, CASE = "offset map", "6 lanes"
LANES, EVENTS = 6, 10


def measure(ground: Ground, results: Results, _: Profile) -> None:
    """Write events of a topic of its own."""
    table = Tables().offset_map
    stored = stored_bytes(ground.dynamodb.client(), table, lanes=LANES) + Assumptions().item_bytes
    client = MeteredClient(ground.dynamodb.client())
    chains = DynamoDbChains(client, table)
    for number in range(2, 2 + EVENTS):
        replicated(chains, number, range(LANES))
    figures = {"write_units_per_event": client.write_units / EVENTS, "stored_bytes_per_event": float(stored)}
    results.add(Measurement(kind=KIND, case=CASE, round=1, side=OURS, figures=figures, at=now()))
