"""Filters of names: included and not excluded."""

from __future__ import annotations

import pytest

from mirrorless.chain.lane import FlowName
from mirrorless.config.types import _pattern
from mirrorless.flow.filters import (
    GROUPS_EXCLUDE,
    TOPICS_EXCLUDE,
    NameFilter,
    check_pattern,
    is_literal,
    should_replicate,
    split_list,
)
from mirrorless.flow.java_patterns import in_python
from mirrorless.flow.policy import DefaultPolicy

FLOW = FlowName("us-east", "eu-west")
POLICY = DefaultPolicy(aliases=frozenset({"us-east", "eu-west"}))


def test_a_pattern_matches_the_whole_name_or_not_at_all() -> None:
    topics = NameFilter(include=["orders-.*"])

    assert topics.accepts("orders-eu")
    assert not topics.accepts("old-orders-eu")
    assert not topics.accepts("orders")


def test_a_literal_dot_is_a_dot() -> None:
    """MM2 would take `orders-v1` here, which the list does not name."""
    topics = NameFilter(include=["orders.v1"])

    assert topics.accepts("orders.v1")
    assert not topics.accepts("orders-v1")


def test_the_exclusion_wins() -> None:
    topics = NameFilter(include=[".*", "orders"], exclude=["orders", "tmp-.*"])

    assert topics.accepts("payments")
    assert not topics.accepts("orders")
    assert not topics.accepts("tmp-1")
    assert topics.literals == ()


def test_a_name_is_compared_whole_and_by_its_case() -> None:
    topics = NameFilter(include=["orders", "Orders.v2"])

    assert [
        name for name in ("orders", "Orders.v2", "Orders", "orders\n", "order", "orders.v2") if topics.accepts(name)
    ] == [
        "orders",
        "Orders.v2",
    ]
    assert not NameFilter(include=["tmp.*"], exclude=["tmp.1"]).accepts("tmp.1")
    assert NameFilter(include=["tmp.*"], exclude=["tmp.1"]).accepts("tmp-1")


def test_an_empty_list_takes_nothing() -> None:
    assert not NameFilter(include=[]).accepts("orders")
    assert not NameFilter(include=[]).accepts("")


def test_literals_and_patterns_are_distinguished() -> None:
    topics = NameFilter(include=["orders", "audit-log", "pay.*", "a.b_c"])

    assert topics.literals == ("orders", "audit-log", "a.b_c")
    assert topics.patterns == ("pay.*",)
    assert not is_literal("a b")


def test_inline_flags_and_groups_hold_for_their_own_entry() -> None:
    topics = NameFilter(include=["(?i)orders.*", r"(a)\1", r"(b)\1"])

    assert topics.accepts("ORDERS-1")
    assert topics.accepts("aa")
    assert topics.accepts("bb")
    assert not topics.accepts("BB")


def test_a_broken_pattern_is_named_with_its_place() -> None:
    assert (
        check_pattern("orders-[")
        == "'orders-[' is not a valid regular expression: unterminated character set at character 8"
    )
    with pytest.raises(ValueError, match="'\\*' is not a valid regular expression"):
        NameFilter(include=["orders", "*"])


def test_an_operator_that_only_java_has_is_refused() -> None:
    """Python would take the ampersands for characters, and replicate other topics than MM2 did."""
    assert check_pattern("orders-[a-z&&[^x]]") == "'orders-[a-z&&[^x]]' is in Java's form"
    assert "ambiguous" in (check_pattern("orders-[a-z--b]") or "")


def test_signs_of_kinds_of_characters_are_of_ascii_as_in_java() -> None:
    topics = NameFilter(include=[r"\w+", r"(?i)k-\d"])

    assert [name for name in ("Ä", "a", "k-٣", "\u212a-3", "K-3") if topics.accepts(name)] == ["a", "K-3"]


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("orders", ("orders",)),
        (" orders , payments-.* ,", ("orders", "payments-.*")),
        ("a{1,3},b", ("a{1,3}", "b")),
        ("", ()),
    ],
)
def test_a_comma_list_is_read_as_mm2_reads_it(text: str, entries: tuple[str, ...]) -> None:
    assert split_list(text) == entries


@pytest.mark.parametrize("topic", ["mm2-offsets.us-east.internal", "orders.replica", "__consumer_offsets"])
def test_the_default_exclusion_is_mm2s(topic: str) -> None:
    assert not NameFilter(include=[".*"], exclude=TOPICS_EXCLUDE).accepts(topic)


def test_tools_groups_are_not_followed() -> None:
    groups = NameFilter(include=[".*"], exclude=GROUPS_EXCLUDE)

    assert groups.accepts("billing")
    assert not groups.accepts("console-consumer-4711")


@pytest.mark.parametrize(
    ("topic", "replicated"),
    [
        ("orders", True),
        ("orders.v1", True),
        ("heartbeats", True),
        ("ap-south.heartbeats", True),
        ("eu-west.orders", False),
        ("eu-west.heartbeats", False),
        ("us-east.checkpoints.internal", False),
        ("__consumer_offsets", False),
        ("secrets", False),
    ],
)
def test_a_topic_is_replicated_when_wanted_and_neither_internal_nor_a_cycle(topic: str, *, replicated: bool) -> None:
    topics = NameFilter(include=["orders.*", "eu-west.*", ".*internal", "__.*"])

    assert should_replicate(topic, flow=FLOW, topics=topics, policy=POLICY) is replicated


def test_heartbeats_are_left_alone_when_switched_off() -> None:
    topics = NameFilter(include=["orders"])

    assert not should_replicate("heartbeats", flow=FLOW, topics=topics, policy=POLICY, heartbeats=False)


# What java.util.regex matches of each pattern; JDK 17.
JAVA = [
    # Classes within classes.
    ("[a-c[x-z]]", "(?:[a-c]|[x-z])", "a y", "d [ a]"),
    ("t-[^a-c[x-z]]", "t-(?:(?!(?:[a-c]|[x-z])).)", "t-d", "t-a t-y"),
    ("[a-z&&[^b]]+", "(?:(?=[a-z])[^b])+", "ac", "abc a&"),
    ("[a-z&&def]", "(?:(?=[a-z])[def])", "d", "a &"),
    ("[^a-z&&[def]]", "(?:(?!(?=[a-z])[def]).)", "a 1", "d"),
    # Kinds of characters.
    (r"\p{Lu}+-x", "[A-Z]+-x", "AB-x", "ab-x Lu-x"),
    (r"\p{Lower}\pN", "[a-z][0-9]", "a1", "A1 aN"),
    (r"[\p{IsAlphabetic}-]+", "[A-Za-z-]+", "A-b", "a1"),
    (r"\P{L}+", "[^A-Za-z]+", "1-", "a1"),
    (r"[\P{L}a]", "(?:[a]|[^A-Za-z])", "a 1", "b"),
    (
        r"a\H\V",
        "a[^ \\t\\xa0\\u1680\\u180e\\u2000-\\u200a\\u202f\\u205f\\u3000][^\\n\\x0b\\f\\r\\x85\\u2028\\u2029]",
        "abc",
        "a",
    ),
    (r"a\h?", r"a[ \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000]?", "a", "ah"),
    (r"a[\v.]", r"a[\n\x0b\f\r\x85\u2028\u2029.]", "a.", "av"),
    (r"a\R?", r"a(?:\r\n|[\n\x0b\f\r\x85\u2028\u2029])?", "a", "aR"),
    # Characters.
    (r"\Qa.b-c\E.*", r"a\.b\-c.*", "a.b-cd", "axb-c"),
    (r"\Qa.b", r"a\.b", "a.b", "axb"),
    (r"[\Q]-\Ea]b", r"[\]\-a]b", "-b", "cb"),
    (r"\x{41}b", r"\x41b", "Ab", "x41b"),
    (r"a\x{1F600}?", r"a\U0001f600?", "a", "b"),
    (r"\0101b", r"\x41b", "Ab", "1b"),
    (r"\cA?b", r"\x01?b", "b", "cAb"),
    (r"\e?b", r"\x1b?b", "b", "eb"),
    # Groups and places.
    (r"(?<n>a|b)-\k<n>", "(?P<n>a|b)-(?P=n)", "a-a", "a-b"),
    (r"(a|b)\123", r"(a|b)(?:\1)23", "aa23", "aS ab23"),
    (r"orders\z", r"orders\Z", "orders", "ordersz"),
    # Flags.
    ("(?d)a.*", "a.*", "ab", "b"),
    ("(?u)a.*", "a.*", "ab", "b"),
    ("(?iu)a.*", "(?i)a.*", "AB", "b"),
    ("(?U)a.*", "a.*", "ab", "b"),
    ("a(?i)b|c", "a(?i:b)|(?i:c)", "aB C", "AB"),
    ("(?i)a(?-i)b", "(?i)a(?-i:b)", "Ab", "aB"),
    ("(a(?i)b|c)d", "(a(?i:b)|(?i:c))d", "aBd Cd", "cD"),
]


@pytest.mark.parametrize(("java", "python", "taken", "left"), JAVA)
def test_what_only_java_reads_so_is_refused_with_a_translation(java: str, python: str, taken: str, left: str) -> None:
    with pytest.raises(ValueError, match="is in Java's form") as refused:
        _pattern(java)

    assert str(refused.value).endswith(f" | write `{python}`")
    names = NameFilter(include=[_pattern(python)])
    assert all(map(names.accepts, taken.split()))
    assert not any(map(names.accepts, left.split()))


@pytest.mark.parametrize(
    "pattern",
    [
        "orders-.*",
        "a|b",
        r"orders\.v[0-9]+",
        "[]a]+",
        "[^]a]+",
        r"[\[\]&-]",
        "[a&b]",
        "a++b?+c*+d{1,2}+",
        "(?>a|b)c",
        "(?:a|b)(?=c)(?!d)(?<=e)(?<!f)g",
        r"(a)\1",
        "(?i)orders",
        "(?i)(?s)orders",
        "a(?i:b)(?-i:c)",
        "(?P<name>a)(?P=name)",
        r"^a$\Z",
        r"\Aa\b\B",
        r"\d\D\w\W\s\S\t\n\x41\u0041\07\\Q",
    ],
)
def test_what_both_read_alike_is_taken_as_it_is(pattern: str) -> None:
    assert in_python(pattern) == pattern
    assert check_pattern(pattern) is None


@pytest.mark.parametrize("pattern", [r"\p{IsGreek}", r"\X", r"\G", "(?<=a+)b", "a{2}{3}", "[a", r"[\p{L}"])
def test_what_has_no_translation_is_refused_all_the_same(pattern: str) -> None:
    assert "is not a valid regular expression" in (check_pattern(pattern) or "")
