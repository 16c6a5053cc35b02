"""What is counted and not timed: what an event writes to the offset map."""

from __future__ import annotations

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.cost.bill import ITEM_BYTES
from mirrorless.flow.settings import Tables
from tests.benchmarks.beside_mm2.profiles import Profile
from tests.benchmarks.beside_mm2.results import Figures, Results
from tests.benchmarks.beside_mm2.sides import OURS
from tests.benchmarks.ground import Ground
from tests.support.metered import MeteredClient
from tests.support.write_units import replicated, stored_bytes

LANES, EVENTS = 6, 10


def measure_offset_map(ground: Ground, results: Results, _: Profile) -> None:
    """Events of a topic of its own, as a warm forwarder writes them: write units by DynamoDB's word, and bytes."""

    def counted() -> dict[str, Figures]:
        table = Tables().offset_map
        stored = stored_bytes(ground.dynamodb.client(), table, lanes=LANES) + ITEM_BYTES
        client = MeteredClient(ground.dynamodb.client())
        chains = DynamoDbChains(client, table)
        for number in range(2, 2 + EVENTS):
            replicated(chains, number, range(LANES))
        return {OURS: {"write_units_per_event": client.write_units / EVENTS, "stored_bytes_per_event": float(stored)}}

    results.measure(counted, kind="offset map", case="6 lanes", turn=1, sides={OURS: ("",)})
