"""The end of what another replicator has copied, for histories of copying, kills and restarts by chance."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from mirrorless.verify.copied_end import KeyedRecord, LogWindow, Reach, copied_end
from tests.support.copied_history import History, window


@pytest.mark.parametrize("seed", range(150))
def test_the_place_is_behind_the_last_record_that_any_life_has_copied(seed: int) -> None:
    chance = Random(seed)
    history = History(chance, contents=2**60, keys=chance.choice([0, 10, 300]))
    history.produce(chance.choice([30, 300, 3_000]))
    history.copy(chance.randint(1, 6), chance.choice([10, 100, 1_000]))
    twice = len(history.copied) - len(set(history.copied))
    removed = chance.choice(["nothing", "values", "the beginning"])
    if removed == "values":
        history.compact()
    if removed == "the beginning" and history.said is not None:
        history.expire(chance.randrange(1 + sum(each.offset < history.said for each in history.source)), 0)

    found = history.found(compacts=removed == "values")

    assert found.place is not None, found.why
    assert history.is_right(found.place), (found, max(history.copied))
    assert found.duplicates <= twice
    if len(history.target) <= 100 and removed == "nothing":
        assert found.duplicates == twice


@pytest.mark.parametrize(("contents", "places"), [(1, 8), (2, 20), (5, 51), (50, 225)])
def test_where_records_are_alike_the_place_is_right_or_there_is_none(contents: int, places: int) -> None:
    """A place too far on would lose records; among few contents the logs often leave a choice."""
    found = 0
    for seed in range(300):
        history = History(Random(seed), contents=contents)
        history.produce(history.chance.choice([30, 150]))
        history.copy(history.chance.randint(1, 4), history.chance.choice([10, 40]))
        end = history.found()
        found += end.place is not None
        assert end.place is None or history.is_right(end.place), seed
    assert found >= places


def of(*offsets: int, at: int = 0) -> list[KeyedRecord]:
    """Records of a log from an offset on, each named by its place on the source."""
    return [KeyedRecord(at + number, offset.to_bytes(16), None) for number, offset in enumerate(offsets)]


def whole(records: Sequence[KeyedRecord], *, start: int = 0, end: int | None = None) -> LogWindow:
    """All of a log."""
    end = (records[-1].offset + 1 if records else start) if end is None else end
    return window(records, (start, end), start, end)


TEN = of(*range(10))


@pytest.mark.parametrize(
    ("source", "target", "said", "place", "why"),
    [
        (whole(TEN), whole(of(*range(8), 5, 6)), 4, 8, "stands at 7"),
        (whole(TEN), whole([]), None, 0, "never had a record"),
        (whole(TEN), whole([], end=2), None, 0, "never had a record"),
        (whole(TEN), whole([]), 3, None, "never had a record, and it says 3"),
        (whole(TEN), whole(of(*range(4))), 10, None, "the source ends at 10"),
        (whole(TEN), whole(of(*range(4))), 5, None, "stands at 3"),
        (whole(TEN), whole(of(*range(100, 120))), 5, None, "none of the last 20"),
        (whole(TEN), whole(of(*range(6), 100)), 5, None, "others write to it"),
        (whole(TEN), whole([], start=6), 5, None, "no record of it any more"),
        (whole([], start=10), whole([], start=10), 8, 9, "no record behind what it says"),
        (whole([], start=10), whole([], end=5), 9, 10, "no record behind what it says"),
        (whole(TEN), whole([], start=10), 9, 10, "no record behind what it says"),
        (whole(of(*[7] * 300)), whole(of(7, 7)), None, None, "more than 200"),
    ],
)
def test_what_shows_no_place_is_said(
    source: LogWindow, target: LogWindow, said: int | None, place: int | None, why: str
) -> None:
    found = copied_end(source, target, said)

    assert (found.place, found.needs) == (place, "")
    assert why in found.why


def test_a_reach_grows_on_the_side_that_needs_it_and_ends() -> None:
    reach, sizes = Reach(), list[tuple[int, int, int]]()
    while (wider := reach.wider("source" if len(sizes) % 2 else "target")) is not None:
        reach = wider
        sizes.append((reach.back, reach.ahead, reach.tail))
    assert (sizes[:2], len(sizes)) == ([(500, 500, 9_600), (4_000, 4_000, 9_600)], 7)
    assert Reach().wider("") is None


def test_no_more_is_read_than_shows_the_end() -> None:
    source, target, said = of(*range(3_000)), of(*range(2_000)), 1_900

    ours = window(source, Reach().of_source(said, 0, 3_000), 0, 3_000)
    theirs = window(target, Reach().of_target(0, 2_000), 0, 2_000)

    assert copied_end(ours, theirs, said).place == 2_000


def test_records_that_were_not_read_are_no_end_of_the_source() -> None:
    """What it has copied last was removed; behind that are markers, and more than was read."""
    source = window(TEN[:6], (0, 9), 0, 100)

    found = copied_end(source, whole(of(*range(100, 120))), 5)

    assert (found.place, found.needs) == (None, "source")


def test_a_place_is_not_before_what_it_says_where_that_was_removed() -> None:
    source = [*TEN[:3], *TEN[5:]]

    assert copied_end(whole(source), whole(TEN[:5]), 4, source_compacts=True).place == 5


@pytest.mark.parametrize(
    ("source", "said", "target", "compacts", "place", "needs"),
    [
        (TEN[7:], 4, whole(TEN[:6]), True, 5, ""),
        (TEN[7:], 4, whole(TEN[:6]), False, None, ""),
        ([TEN[2], *TEN[7:]], 4, whole(of(20, 21, 22)), True, None, ""),  # 2 was copied: as something else
        (TEN[7:], None, whole(TEN[:6]), True, None, ""),
        (TEN[7:], 4, window(TEN[3:6], (3, 6), 0, 6), True, None, "target"),
    ],
)
def test_a_compacted_source_that_has_removed_all_that_was_copied_is_copied_from_what_is_said(
    source: Sequence[KeyedRecord],
    said: int | None,
    target: LogWindow,
    *,
    compacts: bool,
    place: int | None,
    needs: str,
) -> None:
    found = copied_end(whole(source), target, said, source_compacts=compacts)

    assert (found.place, found.needs) == (place, needs), found.why


def keyed(*some: tuple[int, int | None]) -> list[KeyedRecord]:
    """Records of a log, each with its place on the source and its key."""
    return [KeyedRecord(at, offset.to_bytes(16), key) for at, (offset, key) in enumerate(some)]


SEVEN = whole(keyed((0, 1), (1, 1), (2, 7), (3, 8), (4, 7), (5, 9), (6, 7)))
CUT = whole([each._replace(offset=at) for at, each in enumerate([*SEVEN.records, SEVEN.records[2]])])
"""An earlier configuration of MirrorMaker wrote one record once more, after the flow had copied all."""


@pytest.mark.parametrize(
    ("source", "target", "said", "copied", "found"),
    [
        (whole(TEN), whole(TEN[:8]), 7, 8, (8, None, "")),
        (whole(TEN), whole(TEN[:9]), 7, 8, (9, None, "")),  # it went on, and has not said so
        (whole(TEN), whole(of(*range(8), 4, 5)), 3, 8, (8, None, "")),  # without keys
        (whole(TEN[:8], end=9), whole(TEN[:8]), 3, 9, (9, None, "")),  # a marker lies before the position
        (whole(TEN[:8], end=9), whole(TEN[:8]), None, 9, (9, None, "")),
        (whole(TEN), whole(TEN[:6]), 3, 8, (None, 6, "")),  # the target has lost its end
        (whole(TEN), whole(TEN[:6]), 7, 8, (None, 6, "")),
        (whole(TEN), whole(TEN[:6]), 7, 0, (None, 6, "")),
        (whole(TEN), whole([]), None, 8, (None, 0, "")),
        (window([], (0, 500), 0, 900), whole([]), None, 700, (None, 0, "")),  # records may stand behind what was read
        (SEVEN, CUT, 2, 7, (None, 4, "")),
        (SEVEN, CUT, 6, 7, (None, 4, "")),  # what it says does not hide that keys went back
        (window(TEN, (0, 8), 0, 90), whole(TEN[:8]), 3, 20, (None, None, "source")),
    ],
)
def test_a_place_before_what_the_flow_had_copied_itself_is_none_but_for_markers(
    source: LogWindow, target: LogWindow, said: int | None, copied: int, found: tuple[int | None, int | None, str]
) -> None:
    end = copied_end(source, target, said, copied=copied)

    assert (end.place, end.earlier, end.needs) == found, end.why
    if end.earlier is not None and copied:
        assert end.why.startswith(
            f"the flow itself had copied all below {copied}, and the logs show {end.earlier}, before"
        )


def test_duplicates_are_named_on_both_sides() -> None:
    found = copied_end(whole(TEN), whole(of(0, 1, 2, 3, 1, 2, 3, 4, 2)), 4)

    assert found.place == 5
    assert [(each.upstream, each.downstream, each.records) for each in found.twice] == [
        ((1, 4), (4, 7), 3),
        ((2, 3), (8, 9), 1),
    ]


@pytest.mark.parametrize(
    ("said", "lives", "compacts"),
    [
        (None, [(0, 2_500), (0, 20)], False),  # it was killed before it had said anything
        (5, [(0, 10), (2_500, 2_600)], True),  # aborted records, which it has left out
        (1_000, [(0, 1_001), (1_001, 2_800), (1_001, 1_020)], False),
    ],
)
def test_an_end_that_lies_far_from_what_it_says_is_found(
    said: int | None, lives: Sequence[tuple[int, int]], *, compacts: bool
) -> None:
    history = History(Random(1), contents=2**60)
    history.source = of(*range(3_000))
    history.source_end = 3_000
    history.said = said
    for first, following in lives:
        history.target += of(*range(first, following), at=len(history.target))
    history.target_end = len(history.target)

    assert history.found(Reach(), compacts=compacts).place == max(following for _, following in lives)


def test_a_key_that_a_cut_life_set_back_comes_again_from_its_next_value_on() -> None:
    source = SEVEN.records
    furthest = source[:6]

    def place(*again: KeyedRecord) -> int | None:
        target = [each._replace(offset=at) for at, each in enumerate([*furthest, *again])]
        return copied_end(SEVEN, whole(target), 1).place

    assert [place(), place(source[2]), place(*source[2:4]), place(*source[2:5])] == [6, 4, 4, 6]
    assert place(source[2]._replace(key=None)) == 6
    # The cleaner has removed the newer value, and the older one is the last.
    target = whole([each._replace(offset=at) for at, each in enumerate([*source[:4], source[5], source[2]])])
    assert copied_end(whole(source), target, 1).place == 4
