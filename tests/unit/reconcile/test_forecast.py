"""The forecast of a failback, and the groups that had read orphans."""

from __future__ import annotations

from mirrorless.ports.kafka import OffsetAndMetadata
from mirrorless.reconcile.forecast import OrphanReader, forecast, readers_of
from mirrorless.reconcile.orphans import Stretch


def test_a_failback_takes_as_long_as_its_longest_lane_or_all_of_them_or_the_read() -> None:
    # Of 80 MB: 16 windows of 5 MB, and ten transactions of three round trips each.
    assert forecast([80_000_000], round_trip=0.1, bytes_per_second=0, at_a_time=8).seconds == 5
    assert forecast([80_000_000] * 16, round_trip=0.1, bytes_per_second=0, at_a_time=8).seconds == 10
    assert forecast([80_000_000], round_trip=0.1, bytes_per_second=1_000_000, at_a_time=8).seconds == 80
    assert forecast([0, 0], round_trip=0.1, bytes_per_second=1, at_a_time=8).seconds == 0


def test_groups_count_the_orphans_below_their_offsets() -> None:
    places = {"all": 30, "some": 13, "few": 11, "none": 10}
    committed = {group: {("orders", 0): OffsetAndMetadata(offset)} for group, offset in places.items()}
    orphans = {("orders", 0): [Stretch(10, 14, 4, 0), Stretch(20, 25, 5, 0)], ("orders", 1): [Stretch(0, 9, 9, 0)]}

    found = readers_of(committed | {"elsewhere": {}}, orphans)

    assert found == [OrphanReader("all", 9), OrphanReader("some", 3), OrphanReader("few", 1)]
