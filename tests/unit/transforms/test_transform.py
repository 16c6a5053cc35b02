"""What rules make of records. Expected texts are written out; what is keyed is compared with `ciphers`."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mirrorless.errors import ConfigurationError
from mirrorless.records.record import Headers, Record
from mirrorless.transforms.ciphers import Sealer, opened, opened_json, pseudonym
from mirrorless.transforms.rules import KeyRing, Rule, RuleInForce
from mirrorless.transforms.transform import TopicTransform, TransformFailed, check_rule, function_hash, make_ready

PII = KeyRing(2, {1: b"1" * 32, 2: b"2" * 32})


def rule(**parts: Any) -> Rule:
    return msgspec.convert({"topics": ["customers"], **parts}, Rule)


def ready(entry: Rule, version: int = 1, **in_force: Any) -> TopicTransform:
    return make_ready(RuleInForce(entry, dict.fromkeys(entry.keys, version), **in_force), {"pii": PII}, "customers")


def record(
    value: bytes | str | None = b"{}", key: bytes | None = b"k", headers: Headers | None = None, offset: int = 7
) -> Record:
    return Record(offset, 1_700_000_000_000, headers or [], key, value.encode() if isinstance(value, str) else value)


def changed(entry: Rule, given: Record, partition: int = 3) -> Record | None:
    """The copy; the record itself must be as it was."""
    before = msgspec.structs.astuple(given)
    headers = list(given.headers)
    result = ready(entry).apply(given, partition)
    assert (msgspec.structs.astuple(given), given.headers) == (before, headers)
    return result


def hmac(plain: str) -> str:
    return pseudonym(PII.of(1), plain.encode())


@pytest.mark.parametrize(
    ("fields", "value", "expected"),
    [
        pytest.param(
            {"a": "drop"}, '{ "a" : 1, "b":\t[ 1e400 , 2 ] }', '{"b":[ 1e400 , 2 ]}', id="the rest keeps its bytes"
        ),
        pytest.param(
            {"a.b": "drop", "a.c": {"set": 7}}, '{"a":{"b":1,"c":2,"d":3}}', '{"a":{"c":7,"d":3}}', id="below"
        ),
        pytest.param({"x.y": "drop", "z": {"set": 1}}, '{"a":1}', '{"a":1}', id="what is absent stays absent"),
        pytest.param({"a.b": "drop"}, '{"a":null}', '{"a":null}', id="null on the way"),
        pytest.param({"a[*].b": "drop"}, '{"a":[{"b":1},null,{}]}', '{"a":[{},null,{}]}', id="null among elements"),
        pytest.param({"a.b": "drop"}, " null\n", "null", id="null at the top"),
        pytest.param({"[*].a": "drop"}, '[{"a":1,"b":2}]', '[{"b":2}]', id="an array at the top"),
        pytest.param({"a[*][*]": {"keep.last": 1}}, '{"a":[["xy"],[]]}', '{"a":[["*y"],[]]}', id="arrays in arrays"),
        pytest.param({"a[1]": "drop", "a[9]": "drop"}, '{"a":[1,2,3]}', '{"a":[1,3]}', id="by index"),
        pytest.param({"a[0]": "pass", "a[*]": {"set": 0}}, '{"a":[1,2,3]}', '{"a":[1,0,0]}', id="an index before all"),
        pytest.param({"*": "drop", "id": "pass"}, '{"a":1,"id": 2 }', '{"id":2}', id="what may pass"),
        pytest.param(
            {"*": "drop", "a.b": "pass"}, '{"a":{"b":1,"c":2},"d":3}', '{"a":{"b":1}}', id="what may pass below"
        ),
        pytest.param(
            {"*": "drop", "a[*].b.c": "pass"},
            '{"a":[{"b":{"c":1,"x":2},"x":3}],"x":4}',
            '{"a":[{"b":{"c":1}}]}',
            id="what may pass far below",
        ),
        pytest.param(
            {"*.s.t": "drop", "a.*.u": {"set": 0}},
            '{"a":{"s":{"t":1,"u":2,"v":3}}}',
            '{"a":{"s":{"u":0,"v":3}}}',
            id="what two wildcards lead to",
        ),
        pytest.param(
            {"a.b.c": {"set": 0}, "a.*[*]": {"set": 1}, "*": "drop"},
            '{"a":{"b":{"c":1,"d":2},"e":[5],"f":null},"g":1}',
            '{"a":{"b":{"c":0},"e":[1],"f":null}}',
            id="a wildcard behind one of another kind",
        ),
        pytest.param(
            {"*.s": "drop", "a.b": {"set": 0}, "c": "pass", "d.*": {"set": 1}},
            '{"a":{"b":1,"s":2},"c":{"s":3},"d":{"s":4,"b":5},"e":{"s":6,"b":7}}',
            '{"a":{"b":0},"c":{"s":3},"d":{"s":1,"b":1},"e":{"b":7}}',
            id="a wildcard holds for what names beside it leave open",
        ),
        pytest.param(
            {"*.s": "drop", "a[*]": {"set": 0}}, '{"a":[1],"b":{"s":1}}', '{"a":[0],"b":{}}', id="of two kinds"
        ),
        pytest.param({'"a.b"."*"': "drop"}, '{"a.b":{"*":1,"c":2}}', '{"a.b":{"c":2}}', id="odd names"),
        pytest.param({r'"\u00e9\""': "drop"}, r'{"\u00e9\"":1,"é":2}', '{"é":2}', id="escapes of names, in both"),
        pytest.param(
            {"0": "drop", "a-b_ü": "drop"}, '{"0":1,"a-b_ü":2,"00":3}', '{"00":3}', id="names that need no quotes"
        ),
        pytest.param({"s": "drop"}, '{"s":1,"\\u0073":2,"t":3,"t":4}', '{"t":4}', id="of one name the last"),
        pytest.param(
            {"s": {"set": 0}}, '{"s":"x","s":null}', '{"s":null}', id="of one name the last, if it is null too"
        ),
        pytest.param({"s.t": "drop"}, '{"s":{"t":1},"s":null}', '{"s":null}', id="the same on the way"),
        pytest.param({"a": {"set": {"é": [None, 1.5]}}}, '{"a":1}', '{"a":{"é":[null,1.5]}}', id="set"),
        pytest.param({"a": {"set": None}}, '{"a":1}', '{"a":null}', id="set null"),
        *(
            pytest.param({"a": action}, f'{{"a":{old}}}', f'{{"a":{new}}}', id=f"{action} of {old}")
            for action, old, new in [
                ({"keep.first": 2}, '"abcd"', '"ab**"'),
                ({"keep.last": 4}, '"1234-5678"', '"*****5678"'),
                ({"keep.last": 4}, "12345678", '"****5678"'),
                ({"keep.last": 4}, "-1.5e400", '"****e400"'),
                ({"keep.last": 4}, '"5678"', '"****"'),
                ({"keep.first": 1, "keep.last": 1}, '"abc"', '"a*c"'),
                ({"keep.first": 1, "keep.last": 1}, '"ab"', '"**"'),
                ({"keep.last": 0}, '"ab"', '"**"'),
                ({"keep.first": 1}, '"\\ud83d\\ude00é"', '"😀*"'),
                ({"truncate": 2}, '"a\\nb"', '"a\\n"'),
                ({"truncate": 2}, '"a"', '"a"'),
                ({"truncate": 0}, '"a"', '""'),
                ({"hmac": "pii"}, '"\\u00e9"', f'"{hmac("é")}"'),
                ({"hmac": "pii"}, "1.0", f'"{hmac("1.0")}"'),
                ({"hmac": "pii"}, "true", f'"{hmac("true")}"'),
                ({"hmac": "pii"}, "[ 1 ]", f'"{hmac("[ 1 ]")}"'),
            ]
        ),
        *(
            pytest.param({"a": action}, '{"a": null}', '{"a":null}', id=f"{action} of null")
            for action in ({"keep.first": 2}, {"truncate": 2}, {"hmac": "pii"}, {"encrypt": "pii"}, {"set": 1}, "pass")
        ),
    ],
)
def test_fields_of_json_are_changed_and_nothing_else(fields: dict[str, Any], value: str, expected: str) -> None:
    copy = changed(rule(fields=fields), record(value))

    assert copy == record(expected)


@pytest.mark.parametrize(
    ("fields", "value", "count"),
    [
        (
            {"a.b": {"encrypt": "pii"}, "c[*][*]": {"encrypt": "pii"}, "*": {"encrypt": "pii"}, "d[1]": "pass"},
            r'{"a":{"b":"x"},"a.b":"x","a.\"b\"":"x","c":[["x","x"],["x"]],"d":["x"],"c[0]":"x","e":[ 1e9 ],"n":null}',
            9,
        ),
        (
            {"[*].a.b": {"encrypt": "pii"}, '[*]."a.b"': {"encrypt": "pii"}, "[*].c": {"encrypt": "pii"}},
            '[{"a":{"b":"x"},"a.b":"x","c":{ "x":1 }},{"c":"x"}]',
            4,
        ),
    ],
)
def test_what_is_sealed_has_a_place_of_its_own_and_can_be_opened(
    fields: dict[str, Any], value: str, count: int
) -> None:
    """Two values under one nonce show whether they are equal."""
    entry = rule(fields=fields, headers={"*": {"encrypt": "pii"}})
    given = record(value, headers=[("h", b'"x"'), ("h", b'"x"'), ("n", None)])

    copy = changed(entry, given)

    assert copy is not None
    assert copy.value is not None
    assert opened_json(copy.value, PII.material) == value.encode()
    assert [content and opened(content, PII.material) for _, content in copy.headers] == [b'"x"', b'"x"', None]
    assert copy == changed(entry, given), "an attempt again"
    elsewhere = [changed(entry, given, partition=4), changed(entry, record(value, headers=given.headers, offset=8))]
    sealed = re.findall(r"mle1:[\w-]+", repr([copy, *elsewhere]))
    assert len(sealed) == len(set(sealed)) == 3 * (count + 2)


HEADERS: Headers = [("ip", b"10.0.0.1"), ("trace", b"\xff\x00"), ("ip", None), ("", b"")]


@pytest.mark.parametrize(
    ("entry", "given", "expected"),
    [
        (
            rule(headers={"ip": "drop"}),
            record(b"\xff no JSON", headers=HEADERS),
            record(b"\xff no JSON", headers=[("trace", b"\xff\x00"), ("", b"")]),
        ),
        (
            rule(headers={"ip": {"keep.first": 3}, "*": "drop", "trace": "pass"}),
            record(headers=HEADERS),
            record(headers=[("ip", b"10.*****"), ("trace", b"\xff\x00"), ("ip", None)]),
        ),
        (
            rule(headers={"ip": {"set": "é"}, "trace": {"set": [1]}, "": {"set": None}}),
            record(headers=HEADERS),
            record(headers=[("ip", "é".encode()), ("trace", b"[1]"), ("ip", None), ("", None)]),
        ),
        (
            rule(headers={"trace": {"hmac": "pii"}, "ip": {"truncate": 2}}),
            record(headers=HEADERS),
            record(
                headers=[("ip", b"10"), ("trace", pseudonym(PII.of(1), b"\xff\x00").encode()), ("ip", None), ("", b"")]
            ),
        ),
        (rule(key="drop"), record(key=b"\xff"), record(key=None)),
        (rule(key={"hmac": "pii"}), record(key=b"\xff"), record(key=pseudonym(PII.of(1), b"\xff").encode())),
        (rule(key={"hmac": "pii"}), record(key=None), record(key=None)),
        (
            rule(key={"hmac": "pii"}, headers={"*": "drop"}, fields={"a": "drop"}, keep="value.b"),
            record(None, b"k", [("h", b"")]),
            record(None, hmac("k").encode()),
        ),
        (rule(format="bytes", value={"hmac": "pii"}), record(b""), record(pseudonym(PII.of(1), b""))),
        (rule(format="bytes", value={"keep.last": 1}), record("äöü"), record("**ü")),
        (rule(format="bytes", value={"set": ""}), record(b"\xff"), record(b"")),
        (rule(format="bytes", value={"set": ""}), record(None), record(None)),
        (rule(format="bytes", value="pass", headers={"h": "pass"}), record(b"\xff"), record(b"\xff")),
        (
            rule(format="bytes", value={"encrypt": "pii"}),
            record(b"\xff"),
            record(Sealer(PII.of(1), "customers").seal(b"\xff", 3, 7, "value")),
        ),
    ],
)
def test_headers_keys_and_whole_values_are_changed(entry: Rule, given: Record, expected: Record) -> None:
    assert changed(entry, given) == expected


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ("value.country == 'DE'", True),
        ("value.country == 'FR'", False),
        ("value.absent", False),
        ("value.zero", True),
        ("value.empty || value.list || value.object", False),
        ("value.huge > `1` && value.wide == `123456789012345678901234567890`", True),
        ("value.twice == `2`", True),
        ("headers.region == 'b'", True),
        ("headers.\"no such\" || key == 'k'", True),
        ("length(headers) == `1`", True),
        ("partition == `3` && timestamp == `1700000000000`", True),
        ("[partition, timestamp][0] == `3`", True),
        ("{p: partition}.p == `3`", True),
        ("value.list[?value == `1`] || value.nested[].key | [0] == `5`", True),
        ("@.partition == `3`", True),
        ("sort_by(value.nested, &key)[0].key == `5`", True),
        ("value.list[::2] == `[]` && !contains(value.country, 'x')", True),
    ],
)
def test_what_keep_does_not_hold_for_is_left_out(keep: str, *, kept: bool) -> None:
    value = (
        '{"country":"DE","zero":0,"empty":"","list":[],"object":{},"nested":[{"key":5}],'
        '"huge":1e400,"wide":123456789012345678901234567890,"twice":1,"twice":2}'
    )
    given = record(value, headers=[("region", b"a"), ("region", b"b")])

    assert changed(rule(keep=keep), given) == (given if kept else None)


def test_keep_decodes_what_it_reads_and_no_more() -> None:
    broken = record(b"\xff", b"\xff", [("bad", b"\xff"), ("good", b"yes"), ("null", None)])

    for keep in (
        "headers.good == 'yes' && headers.null == `null`",
        "partition >= `0`",
        "'value' && `true`",
        "map(&key, `[]`) == `[]`",
    ):
        assert changed(rule(keep=keep), broken) is broken
    for keep in ("headers.bad", "key", "value", "*", "keys(@)", "keys(headers)", "to_string(@)", "[value, key]"):
        with pytest.raises(TransformFailed):
            changed(rule(keep=keep), broken)


@pytest.mark.parametrize(
    ("more", "kept"),
    [({}, True), ({"tombstones": "filter"}, False), ({"tombstones": "filter", "keep": "value == `null`"}, True)],
)
def test_keep_decides_about_tombstones_if_it_is_told_so(more: dict[str, str], *, kept: bool) -> None:
    given = record(None)

    assert changed(rule(**{"keep": "value.country == 'DE'"} | more), given) == (given if kept else None)


def test_keep_sees_what_the_source_has_and_not_the_copy() -> None:
    entry = rule(keep="value.a == `1` && key == 'k'", fields={"a": "drop"}, key="drop")

    assert changed(entry, record('{"a":1}')) == record(b"{}", None)


@pytest.mark.parametrize(
    ("entry", "given", "words"),
    [
        *(
            (rule(fields=fields), record(value), words)
            for fields, value, words in [
                ({"a.b": "drop"}, '{"a":"SECRET"}', "value.a has a string, where the rule is for an object"),
                ({"a[*].b": "drop"}, '{"a":[[1]]}', "value.a[*] has an array, where the rule is for an object"),
                ({"a[*]": "drop"}, '{"a":{"SECRET":1}}', "value.a has an object, where the rule is for an array"),
                ({"*.x.y": "drop"}, '{"SECRET":{"x":-1}}', "value.*.x has a number, where the rule is for an object"),
                ({"a": "drop"}, "[]", "value has an array, where the rule is for an object"),
                ({"a": {"truncate": 1}}, '{"a":17}', "value.a has a number, where the rule is for a string"),
                ({"a": {"keep.last": 1}}, '{"a":true}', "value.a has true, where the rule is for a string or a number"),
                (
                    {"*": {"keep.last": 1}},
                    '{"SECRET":{}}',
                    "value.* has an object, where the rule is for a string or a number",
                ),
                (
                    {'"a b"[3]': {"keep.last": 1}},
                    '{"a b":[0,1,2,[]]}',
                    'value."a b"[3] has an array, where the rule is for a string or a number',
                ),
                ({"a": "drop"}, "", "value is no JSON: 0 bytes that cannot be read"),
                ({"a": "drop"}, '{"a":"SECRET"', "value is no JSON: 13 bytes that cannot be read"),
            ]
        ),
        (rule(keep="value.a"), record("SECRET"), "value is no JSON: 6 bytes that cannot be read"),
        (rule(keep="key == 'a'"), record(key=b"SECRET\xff"), "the key that keep reads is no UTF-8 text"),
        (rule(keep="headers.a"), record(headers=[("a", b"SECRET\xff")]), "a header that keep reads is no UTF-8 text"),
        (rule(keep="length(value.a) > `1`"), record('{"a":17}'), "keep ended with JMESPathTypeError"),
        (rule(keep="value.a < `1`"), record('{"a":"SECRET"}'), "keep ended with TypeError"),
        (
            rule(headers={"a": {"keep.last": 1}}),
            record(headers=[("a", b"SECRET\xff")]),
            "headers: a has bytes that are no UTF-8, where a text is to be cut",
        ),
        (
            rule(headers={"*": {"truncate": 1}}),
            record(headers=[("SECRET", b"\xff")]),
            "headers: * has bytes that are no UTF-8, where a text is to be cut",
        ),
        (
            rule(format="bytes", value={"truncate": 1}),
            record(b"SECRET\xff"),
            "value has bytes that are no UTF-8, where a text is to be cut",
        ),
    ],
)
def test_a_rule_that_does_not_fit_fails_without_saying_a_value(entry: Rule, given: Record, words: str) -> None:
    with pytest.raises(TransformFailed) as failed:
        changed(entry, given)

    assert str(failed.value) == words
    assert "SECRET" not in told(failed.value)


def told(failed: BaseException) -> str:
    """All that a report of it could say: nothing may be chained to it, not even where a traceback hides it."""
    assert (failed.__cause__, failed.__context__) == (None, None)
    return repr(failed) + "".join(traceback.format_exception(failed))


OWN = """
from mirrorless.records.record import Record
from mirrorless.transforms.transform import TransformFailed

def shout(record):
    record.headers.append(("seen", record.value))
    record.value = record.value.upper()
    return record

def forget(record):
    return None

def fail(record):
    raise KeyError(record.value)

def fail_in_our_words(record):
    raise TransformFailed(record.value)

def recurse(record):
    return recurse(record)

def move(record):
    return Record(record.offset + 1, record.timestamp, [])

def age(record):
    return Record(record.offset, 0, [])

def text(record):
    record.value = "SECRET"
    return record

def text_header(record):
    return Record(record.offset, record.timestamp, [("a", "SECRET")])

def flat_headers(record):
    return Record(record.offset, record.timestamp, [b"SECRET"])

def tuple_of_headers(record):
    return Record(record.offset, record.timestamp, (("a", b""),))

def number(record):
    return 17
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The module of someone's own functions."""
    module = tmp_path / "own_masks.py"
    module.write_text(OWN)
    (tmp_path / "no_module").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        monkeypatch.delitem(sys.modules, name)  # another test's
    yield module
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def with_function(name: str, **parts: Any) -> TopicTransform:
    entry = rule(function=f"own_masks:{name}", **parts)
    return ready(entry, function_hash=function_hash(entry.function))


@pytest.mark.usefixtures("own")
def test_ones_own_function_gets_a_copy_after_all_else() -> None:
    given = record('{"a":"x","b":"y"}', headers=[("h", b"1")])

    copy = with_function("shout", fields={"a": "drop"}, headers={"h": {"set": "2"}}).apply(given, 3)

    assert copy == record('{"B":"Y"}', headers=[("h", b"2"), ("seen", b'{"b":"y"}')])
    assert with_function("forget").apply(given, 3) is None
    shout = with_function("shout")
    assert shout.apply(given, 3) == shout.apply(given, 3), "it changes a copy, so an attempt again is the same"
    assert given == record('{"a":"x","b":"y"}', headers=[("h", b"1")])


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fail", "ended with KeyError"),
        ("fail_in_our_words", "ended with TransformFailed"),
        ("recurse", "ended with RecursionError"),
        ("flat_headers", "ended with ValueError"),
        *(
            (name, "gave no record of bytes with the offset and the timestamp of its own")
            for name in ("move", "age", "text", "text_header", "tuple_of_headers", "number")
        ),
    ],
)
def test_ones_own_function_that_fails_is_named_and_not_quoted(name: str, words: str) -> None:
    transform, given = with_function(name), record("SECRET")

    with pytest.raises(TransformFailed) as failed:
        transform.apply(given, 3)

    assert str(failed.value) == f"own_masks:{name} {words}"
    assert "SECRET" not in told(failed.value)


def test_ones_own_function_is_of_the_source_that_is_in_force(own: Path) -> None:
    """Another version of it cannot prove what this one has made."""
    entry = rule(function="own_masks:shout")
    old = function_hash(entry.function)

    assert old == sha256(OWN.encode()).hexdigest()
    own.write_text(OWN + "# changed")

    assert function_hash(entry.function) != old
    for in_force in (RuleInForce(entry, {}, old), RuleInForce(entry)):
        with pytest.raises(ConfigurationError, match="function: the source of own_masks:shout is not that"):
            make_ready(in_force, {}, "customers")


@pytest.mark.parametrize("module", ["own_package.masks", "own_package.deep.masks", "own_package.deep"])
def test_ones_own_function_is_of_all_modules_of_its_package(module: str, own: Path) -> None:
    for name in ("__init__", "names", "masks", "deep/__init__", "deep/masks"):
        file = own.parent / "own_package" / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(OWN)
    old = function_hash(f"{module}:shout")

    assert function_hash(f"{module}:shout") == old
    (own.parent / "own_package" / "names.py").write_text(OWN + "# changed")
    assert function_hash(f"{module}:shout") != old


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    "name", ["own_masks:absent", "absent_package.x:y", "own_masks.x:y", "no_module:x", "sys:exit", "importlib.x:y"]
)
def test_a_function_that_there_is_not_is_found_when_the_rule_is_made_ready(name: str) -> None:
    check_rule(rule(function=name))

    with pytest.raises(ConfigurationError, match=f"function: {name} cannot be imported"):
        make_ready(RuleInForce(rule(function=name), {}, sha256(OWN.encode()).hexdigest()), {}, "customers")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        *(
            ({"fields": {path: "drop"}}, f"fields: {path}: no path: what begins at character {at} cannot be read")
            for path, at in [
                *(("", 1), (".a", 1), ("a.", 2), ("a..b", 2), ("a[x]", 2), ("a[-1]", 2), ("a[]", 2), ('a"b"', 2)),
                *(("a b", 2), ("a*", 2), ("a[*]b", 5), ("a.[0]", 2), ('"a', 1), (" a", 1), ("**", 2), ("a\n", 2)),
            ]
        ),
        ({"fields": {r'a."\x"': "drop"}}, "a name in quotes that is no string of JSON"),
        ({"fields": {r'"\ud800"': "drop"}}, "a name in quotes that is no string of JSON"),
        ({"fields": {"a": "drop", "a.b": "drop"}}, "fields: a.b: it leads into what another path decides about"),
        ({"fields": {"a.b": "drop", "a": "pass"}}, "fields: a: another path decides about it, or leads into it"),
        ({"fields": {"a.b": "drop", '"a".b': "pass"}}, 'fields: "a".b: another path decides about it'),
        ({"fields": {"a.b": "drop", "a[*]": "pass"}}, "fields: a[*]: it takes for an array what another path takes"),
        ({"fields": {"a[0].b": "drop", "a.*": "pass"}}, "fields: a.*: it takes for an array what another path takes"),
        ({"fields": {"[0]": "drop", "a": "pass"}}, "fields: a: it takes for an array what another path takes"),
        ({"fields": {"a": {}}}, "fields: a: an action that is none"),
        ({"fields": {"a": {"hmac": "pii", "set": None}}}, "fields: a: an action that is hmac, set"),
        ({"headers": {"a": {"keep.last": 1, "truncate": 1}}}, "headers: a: an action that is keep, truncate"),
        ({"headers": {"a": {"keep.first": 1, "keep.last": -1}}}, "headers: a: an action that is keep"),
        ({"headers": {"a": {"truncate": -1}}}, "headers: a: an action that is truncate"),
        ({"key": "pass"}, "key: compaction goes by the key"),
        ({"key": {"encrypt": "pii"}}, "key: compaction goes by the key"),
        ({"key": {"truncate": 1}}, "key: compaction goes by the key"),
        ({"value": {"set": ""}}, "value: it is for bytes only"),
        ({"format": "bytes", "value": "drop"}, "value: a record without a value is a tombstone"),
        ({"format": "bytes", "value": {"set": None}}, "value: a record without a value is a tombstone"),
        ({"format": "bytes", "fields": {"a": "drop"}}, "format: fields and keep look into values"),
        ({"format": "bytes", "keep": "value.a"}, "format: fields and keep look into values"),
        ({"keep": "value.a ="}, "keep: no JMESPath: "),
        ({"keep": "value.age > 17"}, "keep: no JMESPath: "),
        ({"keep": "country == 'DE'"}, "keep: a record has no country"),
        ({"keep": "value.a == null"}, "keep: a record has no null"),
        ({"keep": "value.a[?lenght(@) == `1`]"}, "keep: Unknown function: lenght()"),
        ({"keep": "length(key, value) == `1`"}, "keep: Expected 1 argument for function length(), received 2"),
        *(
            ({"function": name}, f"function: {name} is no function's name")
            for name in ("a.b", "a:b:c", "a:b.c", ":b", "a:", "a-b:c", ".a:b", "1:b")
        ),
    ],
)
def test_what_is_wrong_about_a_rule_is_found_without_its_keys(parts: dict[str, Any], words: str) -> None:
    for find in (check_rule, lambda entry: make_ready(RuleInForce(entry), {}, "customers")):
        with pytest.raises(ConfigurationError) as wrong:
            find(rule(**parts))

        assert words in str(wrong.value)
        assert wrong.value.hint


@pytest.mark.parametrize(("versions", "rings"), [({"pii": 3}, {"pii": PII}), ({"pii": 1}, {}), ({}, {"pii": PII})])
def test_a_key_without_the_version_that_is_in_force_is_named(
    versions: dict[str, int], rings: dict[str, KeyRing]
) -> None:
    with pytest.raises(ConfigurationError, match="keys: pii: it has no version"):
        make_ready(RuleInForce(rule(key={"hmac": "pii"}), versions), rings, "customers")


def test_the_version_in_force_counts_and_not_the_one_in_use() -> None:
    """So an old run is proved by the version that made it."""
    entry = rule(key={"hmac": "pii"}, headers={"a": {"encrypt": "pii"}})
    given = record(headers=[("a", b"1")])

    copies = [ready(entry, version).apply(given, 3) for version in (1, 2)]

    for version, copy in zip((1, 2), copies, strict=True):
        assert copy is not None
        assert copy.key == pseudonym(PII.of(version), b"k").encode()
        assert opened(copy.headers[0][1] or b"", {version: PII.material[version]}) == b"1"
    assert ready(entry, 1).id != ready(entry, 2).id
    assert ready(entry, 1).id == RuleInForce(entry, {"pii": 1}).id
