"""Poller groups: within Lambda's limits, and left as they are when topics come and go."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from mirrorless.chain.lane import FlowName
from mirrorless.flow.poller_groups import flow_groups, groups_of_found, literal_group

PREFIX = "mirrorless-pollers-us-east_eu-west"


def named(number: int, word: str = "orders") -> list[str]:
    return [f"{word}-{each}" for each in range(number)]


def literal(topics: Sequence[str], pollers: int = 10) -> dict[str, str]:
    return {each: literal_group(PREFIX, each, topics, maximum_pollers=pollers) for each in topics}


def found(
    topics: Sequence[str], present: Mapping[str, str] | None = None, literals: Sequence[str] = (), pollers: int = 10
) -> dict[str, str]:
    groups = groups_of_found(PREFIX, topics, present or {}, literals, maximum_pollers=pollers)
    return {topic: groups[topic] for topic in topics}


@pytest.mark.parametrize("number", [1, 100, 101, 494, 2_000])
@pytest.mark.parametrize(("most", "pollers"), [(100, 10), (100, 20), (40, 50)])
def test_no_group_has_more_mappings_or_pollers_than_lambda_takes(number: int, most: int, pollers: int) -> None:
    """As many found topics as literal ones, with heartbeats; a group has 2,000 pollers at most."""
    literals = named(number)
    of_literals = literal(literals, pollers)
    of_found = found([*named(number, "found"), "heartbeats"], of_literals, literals, pollers)
    sizes = Counter([*of_literals.values(), *of_found.values()])

    assert sizes.total() == 2 * number + 1
    assert max(sizes.values()) <= most
    # So much may a deployment make before it deletes others.
    assert max(size for group, size in sizes.items() if group in of_literals.values()) <= most * 4 // 5


def test_mappings_with_as_many_pollers_as_a_group_may_have_share_none() -> None:
    literals = named(100)
    groups = [*literal(literals, 2_000).values(), *found(named(100, "found"), {}, literals, 2_000).values()]

    assert len(set(groups)) == 200


@pytest.mark.parametrize(("number", "groups"), [(1, 1), (60, 1), (61, 2), (494, 13)])
def test_literal_topics_share_few_groups(number: int, groups: int) -> None:
    assert len(set(literal(named(number)).values())) == groups


@pytest.mark.parametrize(("number", "groups"), [(1, 1), (100, 1), (101, 2), (494, 5), (2_000, 20)])
def test_found_topics_fill_one_group_after_the_other(number: int, groups: int) -> None:
    assert set(found(named(number)).values()) == {f"{PREFIX}_found{each}" for each in range(1, groups + 1)}


def test_a_few_found_topics_share_the_group_of_literal_ones() -> None:
    """The heartbeats of a flow are found, and would pay for a group of their own."""
    few, more = (found(["heartbeats", *named(number)], {}, ["payments"]) for number in (19, 20))

    assert set(few.values()) == set(literal(["payments"]).values())
    assert set(more.values()) == {*few.values(), f"{PREFIX}_found1"}


def test_a_literal_topic_that_comes_or_goes_moves_others_only_where_their_group_is_divided() -> None:
    """All of that group then, to new names: an old name would be overfull until the others have left."""
    topics = named(180)
    before, divided = literal(topics[:1]), 0
    for number in range(2, len(topics) + 1):
        after = literal(topics[:number])
        if moved := {topic: group for topic, group in before.items() if after[topic] != group}:
            divided += 1
            assert len(set(moved.values())) == 1
            assert len(moved) == 60
            assert not {after[topic] for topic in moved} & set(before.values())
        before = after

    assert divided == 3


def test_the_order_of_literal_topics_does_not_matter() -> None:
    topics = named(300)

    assert literal(topics) == literal(topics[::-1])


def test_a_found_topic_stays_in_its_group_while_others_come_and_go() -> None:
    """Also while literal topics come, and divide the group that it shares."""
    chance = random.Random(2)
    topics, literals = named(300), named(50, "literal")
    present = found(topics, literal(literals), literals)
    for number in range(30):
        gone = set(chance.sample(topics, chance.randrange(60)))
        coming = named(chance.randrange(60), f"round-{number}")
        topics = [*(each for each in topics if each not in gone), *coming]
        literals = named(50 + 5 * number, "literal")

        # Mappings of topics that are gone are there until they are deleted.
        now = found(topics, literal(literals) | present, literals)

        assert present.items() - now.items() == {(each, present[each]) for each in gone}
        sizes = Counter([*now.values(), *(present[each] for each in gone), *literal(literals).values()])
        assert max(sizes.values()) <= 100
        present = now


def test_a_new_topic_takes_the_place_of_one_that_is_gone() -> None:
    present = found(named(250))
    group = present.pop("orders-0")

    assert found(["new"], present) == {"new": group}


def test_mappings_of_other_groups_and_of_none_are_taken_in() -> None:
    assert set(found(["a", "b"], {"a": "", "b": "mirrorless"}).values()) == {f"{PREFIX}_found1"}


def test_only_those_leave_a_group_that_have_no_room_with_more_pollers() -> None:
    before = found(named(100))

    now = found(named(100), before, pollers=50)

    assert Counter(now.values()) == {f"{PREFIX}_found1": 40, f"{PREFIX}_found2": 40, f"{PREFIX}_found3": 20}
    assert found(named(100), now, pollers=50) == now


def test_no_two_flows_share_a_group() -> None:
    aliases = ["a", "b", "a-1", "b-1", "b-0", "pollers-a", "b-found1"]
    flows = [FlowName(source, target) for source in aliases for target in aliases if source != target]

    groups = [
        {
            *(literal_group(flow_groups(flow), each, named(61), maximum_pollers=10) for each in named(61)),
            literal_group(flow_groups(flow), "a", ["a"], maximum_pollers=10),
            *groups_of_found(flow_groups(flow), named(101), {}, (), maximum_pollers=10).values(),
        }
        for flow in flows
    ]

    assert len(set.union(*groups)) == sum(map(len, groups)) == 5 * len(flows)
