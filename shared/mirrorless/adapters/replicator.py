"""The replicator of a flow's functions, with its adapters."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.lane_states import DynamoDbLaneStates
from mirrorless.adapters.dynamodb.loss_ledger import DynamoDbLossLedger
from mirrorless.adapters.kafka.source import KafkaSource
from mirrorless.adapters.kafka.target import KafkaTarget
from mirrorless.clock import now_ms
from mirrorless.flow.settings import FlowSettings
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import Replicator

if TYPE_CHECKING:
    from mirrorless.protocol.copy_choice import Engine
    from mirrorless.protocol.flow_rules import FlowRules
    from mirrorless.records.record_batch import PassTerms


LARGEST_RECORD: Final = 100_000_000
"""Bytes that the Kafka client takes of what is read from the log itself: the target's topic judges it."""


def flow_replicator(
    settings: FlowSettings, dynamodb: Any, *, environment: str, engine: Engine = "records", examined: bool = False
) -> Replicator:
    """The replicator of a flow; none of its clients connects here.

    Args:
        settings: the flow's.
        dynamodb: a client of the tables' region and account.
        environment: part of the transactional id; two writers of the same one fence each other.
        engine: of its copies.
        examined: whether it reads the source's log itself.
    """
    target = KafkaTarget(settings, environment=environment)
    terms: Callable[[str], PassTerms | None] = _none
    if engine == "batches":
        from mirrorless.adapters.kafka.batch_target import KafkaBatchTarget  # noqa: PLC0415  a forwarder needs none

        target = by_batches = KafkaBatchTarget(settings, environment=environment)
        terms = by_batches.terms
    return wired_replicator(
        settings,
        dynamodb,
        target,
        terms=terms,
        examined=examined,
        history_first=settings.begins_with_history,
        origin=cache(settings.origin_rule) if settings.origins else _none,
        rules=flow_rules(settings, dynamodb),
    )


def wired_replicator(settings: FlowSettings, dynamodb: Any, target: KafkaTarget, **more: Any) -> Replicator:
    """The same with a target that is there. Args: more: of the replicator, in the place of what is usual."""
    tables = settings.tables
    chains = DynamoDbChains(dynamodb, tables.offset_map, retention_days=settings.offset_map_retention_days)
    states = DynamoDbLaneStates(dynamodb, tables.lanes)
    usual: dict[str, Any] = {"remote_topic": settings.remote_topic, "source": KafkaSource(settings)}
    return Replicator(
        flow=settings.name,
        delivery=settings.delivery,
        chains=chains,
        positions=Positions(chains=chains, states=states, target=target, clock=now_ms),
        ledger=DynamoDbLossLedger(dynamodb, tables.loss_ledger),
        target=target,
        clock=now_ms,
        new_id=lambda: uuid4().hex,
        **usual | more,
    )


def flow_rules(
    settings: FlowSettings, dynamodb: Any, topic_of: Callable[[str], str] = lambda topic: topic
) -> FlowRules | None:
    """The rules of a flow; None where it has none. Args: dynamodb: of the tables; topic_of: see `FlowRules`."""
    return kept_rules(settings, dynamodb, topic_of) if settings.transforms else None


def kept_rules(
    settings: FlowSettings, dynamodb: Any, topic_of: Callable[[str], str] = lambda topic: topic
) -> FlowRules:
    """The same of a flow that may have none any more."""
    from mirrorless.adapters.aws.keys import read_keys  # noqa: PLC0415  flows without rules load none of it
    from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments  # noqa: PLC0415  same
    from mirrorless.adapters.schema_registry import writer_schemas  # noqa: PLC0415  same
    from mirrorless.protocol.flow_rules import FlowRules  # noqa: PLC0415  same

    return FlowRules(
        settings=settings,
        documents=DynamoDbDocuments(dynamodb, settings.tables.control),
        read_keys=read_keys,
        schemas=writer_schemas(settings.schema_registry, settings.source.region),
        topic_of=topic_of,
    )


def _none(_: str) -> None:
    """No terms, of an engine that reads records; and no rule, of a flow whose records cannot return."""
