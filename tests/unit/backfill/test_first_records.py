"""The age of records that a plan rests on: of every lane, however many there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from mirrorless.backfill.plan import RequestedRange
from mirrorless.errors import Retriable
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.jobs.request import BackfillOptions, JobRequest
from mirrorless.ports.kafka import TopicPartition
from mirrorless.settings import ClusterSettings, FlowSettings
from spark.jobs.backfill.plan import PEEKED, BackfillFacts

CLUSTER = ClusterSettings(alias="any", bootstrap="any:9092")
OPTIONS = BackfillOptions()


@dataclass
class SlowPeek:
    """A source that shows half of what it is asked for in time, and of some partitions nothing."""

    silent: frozenset[TopicPartition] = frozenset()
    asked: list[int] = field(default_factory=list)

    def first_timestamps(self, places: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """See `KafkaPeek.first_timestamps`."""
        self.asked.append(len(places))
        shown = [place for place in places if place not in self.silent]
        return dict.fromkeys(shown[: len(shown) // 2 + 1], 7) if shown else {}


def oldest(monkeypatch: pytest.MonkeyPatch, peek: SlowPeek, lanes: int) -> Mapping[TopicPartition, int | None]:
    monkeypatch.setattr("spark.jobs.backfill.plan.KafkaPeek", lambda *_, **__: peek)
    flow = FlowSettings(flow="us-east->eu-west", source=CLUSTER, target=CLUSTER)
    unread = cast("Any", None)
    request = JobRequest(run_id="backfill-1", flow=flow, topics=("orders",), options=OPTIONS)
    facts = BackfillFacts(request=request, options=OPTIONS, log=unread, chains=unread, states=unread)
    wanted = RequestedRange(first=0, range=OffsetRange(0, 10))
    return facts._oldest({("orders", partition): wanted for partition in range(lanes)}, {})


def test_what_one_look_does_not_show_in_time_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes that were not seen passed the check of the target's retention."""
    peek = SlowPeek()

    assert len(oldest(monkeypatch, peek, 2_500)) == 2_500
    assert max(peek.asked) == PEEKED


def test_a_lane_that_shows_nothing_ends_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Retriable, match="how old"):
        oldest(monkeypatch, SlowPeek(frozenset({("orders", 3)})), 5)
