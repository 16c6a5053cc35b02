"""`mirrorless transform test` on records in memory: what a rule makes of them, and what it should."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirrorless.adapters.kafka.offsets import KafkaOffsets
from mirrorless.adapters.schema_registry import ConfluentSchemas
from mirrorless.records.record import Headers, Record
from mirrorless.transforms.avro_fields import SchemaId
from mirrorless.transforms.masks import TransformFailed
from tests.frozen.small_flow import FLOW
from tests.support.commands import Answer
from tests.support.yaml_text import dump_yaml, load_yaml

InLab = Callable[..., Answer]
Sampled = Callable[..., None]

TEST = ("transform", "test", str(FLOW), "orders")
CONFIG = Path("replication.yaml")


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Sampled:
    """Lets the source have records, in partition 3."""

    def sample(*records: Record) -> None:
        monkeypatch.setattr(KafkaOffsets, "sample", lambda *_, **__: [(3, each) for each in records])

    return sample


def record(offset: int, value: Any, *, key: bytes | None = b"1", headers: Headers | None = None) -> Record:
    text = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return Record(offset=offset, timestamp=1, headers=headers or [], key=key, value=text)


def configure(**rule: Any) -> None:
    """Give the flow one rule for all its topics but payments."""
    data = load_yaml(CONFIG.read_text())
    data["keys"] = {"pii": {"secret": "mirrorless/pii"}}
    data["flows"][str(FLOW)]["transforms"] = [{"topics": ["payments"]}, {"topics": [".*"], "version": 7} | rule]
    CONFIG.write_text(dump_yaml(data))


def outcomes(answer: Answer) -> dict[int, tuple[str, str]]:
    return {each["upstream_offset"]: (each["outcome"], each["why"]) for each in answer.json["records"]}


def test_each_record_is_shown_before_and_after_its_rule(in_lab: InLab, sampled: Sampled) -> None:
    configure(
        keep="value.country == 'DE'",
        fields={"email": {"hmac": "pii"}, "card": {"keep.last": 4}, "note": "drop", "tags[*]": {"set": None}},
        headers={"user-ip": "drop"},
        key={"hmac": "pii"},
    )
    value = {"country": "DE", "email": "ann@example.org", "card": "4111111111111111", "note": "n" * 300, "tags": ["x"]}
    headers: Headers = [("user-ip", b"192.0.2.7"), ("type", b"json")]
    sampled(record(5, value, headers=headers), record(6, {"country": "FR"}), record(7, None, key=None))

    answer, shown = in_lab(*TEST, "--json"), in_lab(*TEST)

    assert (answer.code, answer.json["rule"]) == (0, {"topics": [".*"], "version": 7})
    assert answer.json["counts"] == {"changed": 1, "filtered": 1, "unchanged": 1}
    assert outcomes(answer) == {5: ("changed", ""), 6: ("filtered", "`keep` is false"), 7: ("unchanged", "")}
    first, second, _ = answer.json["records"]
    parts = {each["part"]: (each["before"], each["after"], each["mark"]) for each in first["parts"]}
    assert len(parts.pop("key")[1]) == len(parts["email"][1].strip('"')) == 43
    assert parts | {"email": ()} == {
        "header user-ip": ("192.0.2.7", None, "gone"),
        "header type": ("json", "json", ""),
        "country": ('"DE"', '"DE"', ""),
        "email": (),
        "card": ('"4111111111111111"', '"************1111"', "changed"),
        "note": (json.dumps("n" * 300), None, "gone"),
        "tags[0]": ('"x"', "null", "changed"),
    }
    assert [tuple(each.values()) for each in second["parts"]] == [("key", "1", None, ""), ("country", '"FR"', None, "")]
    lines = shown.out.splitlines()
    assert (shown.code, lines[0].strip()) == (0, "us-east->eu-west orders-3 @ 5: changed")
    assert ["card", '"4111111111111111"', '"************1111"', "changed"] in [line.split() for line in lines]
    assert "n" * 61 not in shown.out
    assert "3 records of orders, by its rule in version 7: 1 changed, 1 nothing to change, 1 left out." in shown.out
    assert "made up for this test" in shown.out


@pytest.mark.parametrize(("on_error", "outcome", "code"), [("stop", "stops", 1), ("drop", "lost", 0)])
def test_a_record_that_would_stop_its_lane_is_the_exit_code(
    on_error: str, outcome: str, code: int, in_lab: InLab, sampled: Sampled
) -> None:
    configure(fields={"a.b": "drop"}, **{"on.error": on_error})
    sampled(record(5, {"a": {"b": 1}}), record(6, {"a": "secret"}))

    answer, shown, silent = in_lab(*TEST, "--json"), in_lab(*TEST), in_lab(*TEST, "--find-pii")

    assert (answer.code, shown.code, silent.code) == (code, code, code)
    (found, why) = outcomes(answer)[6]
    assert (found, "an object" in why, "secret" in why) == (outcome, True, False)
    assert ("orders-3 @ 6: STOPS ITS LANE, " in shown.out) == bool(code)


def test_of_many_records_those_that_the_rule_does_not_fit_are_shown(in_lab: InLab, sampled: Sampled) -> None:
    configure(fields={"a": {"truncate": 1}})
    sampled(*(record(offset, {"a": "xy" if offset < 30 else 1}) for offset in range(32)))

    shown = in_lab(*TEST, "--records", "32")

    titles = [line.split(":")[0].split()[-1] for line in shown.out.splitlines() if " orders-3 @ " in line]
    assert titles == ["30", "31", *map(str, range(18))]
    assert "12 more records" in shown.out
    assert "32 records of orders, by its rule in version 7: 30 changed, 2 STOPS ITS LANE." in shown.out


def test_ones_own_function_lies_beside_the_configuration(
    in_lab: InLab, sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    configure(keep="value.n > `1`", function="own_masks:odd")
    Path("own_masks.py").write_text("def odd(record):\n    return record if b'3' in record.value else None\n")
    sampled(*(record(number, {"n": number}) for number in (1, 2, 3)))

    assert outcomes(in_lab(*TEST, "--json")) == {
        1: ("filtered", "`keep` is false"),
        2: ("filtered", "own_masks:odd says so"),
        3: ("unchanged", ""),
    }


def test_a_topic_without_a_rule_is_said_to_have_none(in_lab: InLab) -> None:
    answer, shown = in_lab(*TEST, "--json"), in_lab(*TEST)

    assert (answer.code, answer.json["rule"], shown.code) == (0, None, 0)
    assert "No entry of `transforms` matches orders" in shown.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("transform", "test", str(FLOW), "nothing", "--find-pii"), "us-east has no topic nothing"),
        ((*TEST, "--records", "0"), "write a whole number from 1 to 10000"),
        ((*TEST, "--records", "10001"), "write a whole number from 1 to 10000"),
    ],
)
def test_words_that_mean_no_records_are_bad_input(words: tuple[str, ...], says: str, in_lab: InLab) -> None:
    answer = in_lab(*words)

    assert (answer.code, says in answer.err) == (2, True), answer


PEOPLE = [
    {
        "id": f"4111111111111{number:03}",
        "customer": {"email": f"p{number}@example.org", "name": "Ann", "address": {"city": "Ulm"}},
        "pay": [{"card": "4111 1111 1111 1111"}, {"iban": "DE89370400440532013000"}],
        "odd.name*": {"": f"p{number}@example.org"},
        "yes": {"note": "call +49 170 1234567"} if number % 2 else None,
        "email": None,
    }
    for number in range(20)
]
"""Values as a shop has them."""


@pytest.mark.parametrize("known", [True, False])
def test_what_is_suggested_is_pasted_and_leaves_nothing_to_find(
    in_lab: InLab, sampled: Sampled, *, known: bool
) -> None:
    """By whoever has a rule already, and by whoever has none."""
    if known:
        configure(fields={"id": "pass"})
    headers: Headers = [("x-real-ip", b"192.0.2.7")]
    sampled(*(record(at, value, key=b"ann@example.org", headers=headers) for at, value in enumerate(PEOPLE)))

    shown, answer = in_lab(*TEST, "--find-pii"), in_lab(*TEST, "--find-pii", "--json")

    assert (shown.code, answer.code, answer.json["records"]) == (0, 0, 20)
    assert "  # telephone, in 10 of 20 records\n" in shown.out
    assert ("its version, which is 7" in shown.out) == known
    entry = load_yaml(shown.out)
    assert entry == load_yaml(answer.json["entry"])
    (rule,) = entry["flows"][str(FLOW)]["transforms"]
    assert rule == {
        "topics": ["orders"],
        "fields": {
            "customer.address": "drop",
            "customer.email": {"hmac": "pii"},
            "customer.name": "drop",
            '"odd.name*".""': {"hmac": "pii"},
            "pay[*].card": {"keep.last": 4},
            "pay[*].iban": "drop",
            "yes.note": "drop",
        },
        "headers": {"x-real-ip": "drop"},
        "key": {"hmac": "pii"},
    }
    assert entry.get("keys") == (None if known else {"pii": {"secret": "mirrorless/pii"}})
    data = load_yaml(CONFIG.read_text()) | ({} if known else {"keys": entry["keys"]})
    data["flows"][str(FLOW)]["transforms"] = [rule]
    CONFIG.write_text(dump_yaml(data))
    again = in_lab(*TEST, "--find-pii", "--json").json
    assert again == {"records": 20, "suggestions": [], "entry": ""}
    assert in_lab(*TEST, "--json").json["counts"] == {"changed": 20}
    assert in_lab(*TEST, "--find-pii").out.startswith("# 0 suggestions by 20 records")


def test_values_that_are_no_json_are_sealed_whole(in_lab: InLab, sampled: Sampled) -> None:
    sampled(record(1, b"ann@example.org"), record(2, {"ssn": 1}))

    entry = load_yaml(in_lab(*TEST, "--find-pii").out)

    (rule,) = entry["flows"][str(FLOW)]["transforms"]
    assert rule == {"topics": ["orders"], "format": "bytes", "value": {"encrypt": "pii"}}
    configure(**{name: each for name, each in rule.items() if name != "topics"})
    assert in_lab(*TEST, "--find-pii", "--json").json["suggestions"] == []


def test_avro_is_shown_by_its_schema(in_lab: InLab, sampled: Sampled, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no schema is shown as it is."""
    fields = [{"name": "id", "type": "int"}, {"name": "mail", "type": ["null", "string"]}]

    def definitions(_: ConfluentSchemas, schema_id: SchemaId) -> tuple[str, ...]:
        if schema_id != 7:
            raise TransformFailed(f"there is no schema {schema_id}")
        return (json.dumps({"type": "record", "name": "Person", "fields": fields}),)

    monkeypatch.setattr(ConfluentSchemas, "definitions", definitions)
    data = load_yaml(CONFIG.read_text())
    data["clusters"][FLOW.source]["schema.registry"] = {"url": "https://registry.example.com"}
    CONFIG.write_text(dump_yaml(data))
    avro = b"\2" + b"\2" + bytes([2 * 15]) + b"ann@example.org"
    of_it, of_none = record(1, b"\0\0\0\0\7" + avro), record(2, b"\0\0\0\0\x08" + avro)
    sampled(of_it)

    (rule,) = load_yaml(in_lab(*TEST, "--find-pii").out)["flows"][str(FLOW)]["transforms"]
    assert rule == {"topics": ["orders"], "format": "avro", "fields": {"mail": {"hmac": "pii"}}}
    configure(**{name: each for name, each in rule.items() if name != "topics"})
    sampled(of_it, of_none)
    answer = in_lab(*TEST, "--json")

    assert (answer.code, answer.json["counts"]) == (1, {"changed": 1, "stops": 1})
    first, second = (each["parts"] for each in answer.json["records"])
    assert [(each["part"], each["before"], each["mark"]) for each in first] == [
        ("key", "1", ""),
        ("id", "1", ""),
        ("mail", '"ann@example.org"', "changed"),
    ]
    assert len(first[2]["after"]) == len('""') + 43
    assert second[1]["before"] == "\0\0\0\0\x08\2\2\x1eann@example.org"
