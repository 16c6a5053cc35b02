"""The loss ledger in DynamoDB: one item for each loss, and one summary for each lane and generation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, cast

from mirrorless.adapters.dynamodb.client import pages, translated, unless_unmet
from mirrorless.chain.lane import Lane
from mirrorless.chain.losses import GapSummary, Harmless, Loss, LossCause
from mirrorless.errors import LostRace
from mirrorless.flow.rate_limit import in_parallel

SUMMARY = "explained"
"""In place of the first upstream offset in a summary's key, so that it follows the losses of its generation."""


class DynamoDbLossLedger:
    """Implements `mirrorless.ports.stores.LossLedger`."""

    def __init__(self, client: Any, table: str) -> None:
        self._client = client
        self._table = table

    def note(self, loss: Loss) -> None:
        """See `LossLedger.note`."""
        item = _key(loss.lane, loss.generation, f"{loss.first:019d}") | {
            "next": {"N": str(loss.next)},
            "cause": {"S": loss.cause},
            "detail": {"S": loss.detail},
            "at": {"N": str(loss.at)},
        }
        with translated("note a loss", loss.lane.at(loss.first)):
            self._client.put_item(TableName=self._table, Item=item)

    def read(self, lane: Lane) -> list[Loss]:
        """See `LossLedger.read`."""
        return [_loss(lane, item) for item in self._items(lane) if "cause" in item]

    def of_lanes(self, lanes: Iterable[Lane]) -> dict[Lane, list[Loss]]:
        """See `LossLedger.of_lanes`.

        A ledger of one page, as most are, is read whole by one request; of a larger one, each lane by its own.
        """
        named = {str(lane): lane for lane in lanes}
        if len(named) > 1:
            with translated("read the loss ledger", self._table):
                page = self._client.scan(TableName=self._table, ConsistentRead=True)
            if "LastEvaluatedKey" not in page:
                found: dict[Lane, list[Loss]] = {lane: [] for lane in named.values()}
                for item in sorted(page["Items"], key=lambda each: str(each["first"]["S"])):
                    lane = named.get(item["lane"]["S"])
                    if lane is not None and "cause" in item:
                        found[lane].append(_loss(lane, item))
                return found
        return dict(zip(named.values(), in_parallel(self.read, list(named.values())), strict=True))

    def summary(self, lane: Lane, generation: int) -> GapSummary:
        """See `LossLedger.summary`."""
        with translated("read what explains gaps", str(lane)):
            answer = self._client.get_item(
                TableName=self._table, Key=_key(lane, generation, SUMMARY), ConsistentRead=True
            )
        if "Item" not in answer:
            return GapSummary(lane=lane, generation=generation)
        return _summary(lane, answer["Item"])

    def summaries(self, lane: Lane) -> list[GapSummary]:
        """See `LossLedger.summaries`."""
        return [_summary(lane, item) for item in self._items(lane) if "until" in item]

    def summarise(self, summary: GapSummary, *, known: GapSummary) -> None:
        """See `LossLedger.summarise`."""
        item = _key(summary.lane, summary.generation, SUMMARY) | {
            "until": {"N": str(summary.until)},
            "offsets": {"M": {cause: {"N": str(count)} for cause, count in summary.offsets.items()}},
            "at": {"N": str(summary.at)},
        }
        # No other check wrote since it was read: either there is still no summary, or it still ends where it ended.
        as_known: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(#until)"}
        if known.until >= 0:
            as_known = {
                "ConditionExpression": "#until = :known",
                "ExpressionAttributeValues": {":known": {"N": str(known.until)}},
            }
        with translated("note what explains gaps", summary.lane.at(summary.until)):
            names = {"#until": "until"}
            noted = unless_unmet(
                self._client.put_item, TableName=self._table, Item=item, ExpressionAttributeNames=names, **as_known
            )
        if noted is None:
            raise LostRace("another run explained these gaps", where=summary.lane.at(known.until))

    def _items(self, lane: Lane) -> Iterator[dict[str, Any]]:
        page = partial(
            self._client.query,
            TableName=self._table,
            KeyConditionExpression="lane = :lane",
            ExpressionAttributeValues={":lane": {"S": str(lane)}},
            ConsistentRead=True,
        )
        return pages("read the loss ledger", str(lane), page)


def _key(lane: Lane, generation: int, first: str) -> dict[str, Any]:
    return {"lane": {"S": str(lane)}, "first": {"S": f"{generation:06d}/{first}"}}


def _loss(lane: Lane, item: dict[str, Any]) -> Loss:
    generation, _, first = item["first"]["S"].partition("/")
    return Loss(
        lane=lane,
        generation=int(generation),
        first=int(first),
        next=int(item["next"]["N"]),
        cause=cast("LossCause", item["cause"]["S"]),
        detail=item["detail"]["S"],
        at=int(item["at"]["N"]),
    )


def _summary(lane: Lane, item: dict[str, Any]) -> GapSummary:
    return GapSummary(
        lane=lane,
        generation=int(item["first"]["S"].partition("/")[0]),
        until=int(item["until"]["N"]),
        offsets={cast("Harmless", cause): int(count["N"]) for cause, count in sorted(item["offsets"]["M"].items())},
        at=int(item["at"]["N"]),
    )
