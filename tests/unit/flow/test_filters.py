"""Filters of names: included and not excluded."""

from __future__ import annotations

from collections.abc import Sequence

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


@pytest.mark.parametrize(
    ("include", "exclude", "taken", "left"),
    [
        pytest.param(["orders-.*"], [], ["orders-eu"], ["old-orders-eu", "orders"], id="a pattern is of whole names"),
        pytest.param(["orders.v1"], [], ["orders.v1"], ["orders-v1"], id="a literal dot is a dot, unlike MM2's"),
        pytest.param([".*", "orders"], ["orders", "tmp-.*"], ["payments"], ["orders", "tmp-1"], id="exclusions win"),
        pytest.param(["tmp.*"], ["tmp.1"], ["tmp-1"], ["tmp.1"], id="a literal excludes itself alone"),
        pytest.param(
            ["orders"], [], ["orders"], ["Orders", "orders\n", "order"], id="a name is compared whole, with its case"
        ),
        pytest.param([], [], [], ["orders", ""], id="an empty list takes nothing"),
        pytest.param(
            ["(?i)orders.*", r"(a)\1", r"(b)\1"],
            [],
            ["ORDERS-1", "aa", "bb"],
            ["BB"],
            id="flags and groups of an entry",
        ),
        pytest.param(
            [r"\w+", r"(?i)k-\d"], [], ["a", "K-3"], ["Ä", "k-٣", "\u212a-3"], id="kinds of ASCII, as in Java"
        ),
        pytest.param(
            [".*"],
            TOPICS_EXCLUDE,
            ["orders"],
            ["mm2-offsets.us-east.internal", "orders.replica", "__consumer_offsets"],
            id="MM2's default exclusion",
        ),
        pytest.param([".*"], GROUPS_EXCLUDE, ["billing"], ["console-consumer-4711"], id="tools' groups"),
    ],
)
def test_a_name_is_taken_that_is_included_and_not_excluded(
    include: Sequence[str], exclude: Sequence[str], taken: Sequence[str], left: Sequence[str]
) -> None:
    names = NameFilter(include=include, exclude=exclude)

    assert [name for name in (*taken, *left) if names.accepts(name)] == [*taken]


def test_literals_and_patterns_are_distinguished() -> None:
    assert NameFilter(include=[".*", "orders"], exclude=["orders"]).literals == ()
    topics = NameFilter(include=["orders", "audit-log", "pay.*", "a.b_c"])

    assert topics.literals == ("orders", "audit-log", "a.b_c")
    assert topics.patterns == ("pay.*",)
    assert not is_literal("a b")


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
    without = should_replicate(topic, flow=FLOW, topics=topics, policy=POLICY, heartbeats=False)
    assert without is (replicated and "heartbeats" not in topic)


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
