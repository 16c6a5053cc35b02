"""The replicator of a flow's functions, with its adapters."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.source import KafkaSource
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.clock import now_ms
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import Replicator
from mirrorless.settings import FlowSettings


def flow_replicator(settings: FlowSettings, dynamodb: Any, *, environment: str) -> Replicator:
    """The replicator of a flow; none of its clients connects here.

    Args:
        settings: the flow's.
        dynamodb: a client of the tables' region and account.
        environment: part of the transactional id; two writers of the same one fence each other.
    """
    tables = settings.tables
    chains = DynamoDbChains(dynamodb, tables.offset_map, retention_days=settings.map_retention_days)
    states = DynamoDbLaneStates(dynamodb, tables.lanes)
    target = KafkaTarget(settings, environment=environment)
    return Replicator(
        flow=settings.name,
        delivery=settings.delivery,
        remote_topic=settings.remote_topic,
        chains=chains,
        positions=Positions(chains=chains, states=states, target=target, clock=now_ms),
        ledger=DynamoDbLossLedger(dynamodb, tables.loss_ledger),
        target=target,
        source=KafkaSource(settings),
        clock=now_ms,
        new_id=lambda: uuid4().hex,
        history_first=settings.begins_with_history,
    )
