"""Reads of the source cluster, and the advice on a mapping's consumer group."""

from __future__ import annotations

from typing import Any

import pytest

from cli.clusters import SourceView, group_advice
from mirrorless.adapters.kafka.offsets import Extent
from mirrorless.errors import Retriable
from tests.support.chains import LANE


@pytest.mark.parametrize(
    ("committed", "to", "extent", "says"),
    [
        (10, 10, Extent(0, 20), "from 10 on by itself"),
        (0, 10, Extent(10, 20), "from 10 on by itself"),
        (15, 10, Extent(0, 20), "may not deliver what lies between"),
        (5, 10, Extent(0, 20), "and stop again"),
        (5, 10, None, "and stop again"),
        (None, 10, Extent(0, 20), "If that is below 10"),
        (None, 0, Extent(0, 20), "begins where `start` says."),
    ],
)
def test_the_advice_for_a_reset_compares_the_groups_commit(
    committed: int | None, to: int, extent: Extent | None, says: str
) -> None:
    advice = " ".join(group_advice(LANE, "mirrorless.us-east.eu-west.orders", committed, to, extent))

    assert says in advice
    assert ("--reset-offsets" in advice) == ("between" in says or "again" in says)


class SilentCluster:
    """A cluster that never answers, and counts its requests."""

    requests = 0

    def partitions(self) -> dict[str, int]:
        """See KafkaOffsets."""
        self.requests += 1
        raise Retriable("the cluster did not list its topics", where="us-east")

    def extents(self, partitions: Any) -> dict[tuple[str, int], Extent]:
        """See KafkaOffsets."""
        raise AssertionError(f"a second request, for {partitions}")

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """See KafkaOffsets."""
        raise AssertionError(f"a second request, for {group} {topic}-{partition}")


def test_a_source_that_does_not_answer_is_contacted_once() -> None:
    cluster = SilentCluster()
    source = SourceView(cluster)  # type: ignore[arg-type]  # a fake of the methods that are used here

    assert source.partitions() is None
    assert source.extents([LANE]) == {}
    assert source.committed("group", LANE) is None
    assert "us-east" in source.trouble
    assert cluster.requests == 1
