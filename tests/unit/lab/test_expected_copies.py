"""What the audit expects of a topic with a rule: the right copy, and no other."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from ruamel.yaml import YAML

from lab.audit.expected_copies import ExpectedCopies, RecordParts
from lab.audit.leaks import SecretSearch
from lab.drills.soak_topic import KEEPS
from lab.drills.workload import soak_shape
from lab.faults.schedule import SoakRule
from mirrorless.config.flow_section import TransformSection
from mirrorless.config.loading import load
from mirrorless.records.record import Record
from mirrorless.transforms.ciphers import Sealer, pseudonym, sealed_text
from mirrorless.transforms.rules import KeyRing, KeySettings, RuleInForce
from mirrorless.transforms.transform import TopicTransform, TransformFailed, make_ready

MATERIAL = {1: b"1" * 32, 2: b"2" * 32}
OLD, NEW, STRANGE = KeyRing(1, MATERIAL), KeyRing(2, MATERIAL), KeyRing(1, {1: b"?" * 32})
RULE: dict[str, Any] = {
    "keep": "headers.region != 'internal' && value.country == 'DE'",
    "fields": {
        "customer.name": "drop",
        "customer.email": {"hmac": "pii"},
        "card": {"keep.last": 4},
        '"odd.name"': {"keep.first": 1},
        "items[*].note": {"set": None},
        "more.*": "drop",
        "more.id": "pass",
        "about": {"truncate": 3},
        "ssn": {"encrypt": "pii"},
    },
    "headers": {"user-ip": "drop", "session": {"hmac": "pii"}},
    "key": {"hmac": "pii"},
}
WRITTEN = (
    '{"country":"DE","customer":{"name":"Ada","email":"ada@example.com","age":1.50},"card":"4111111111111111",'
    '"odd.name":"Zoë","items":[{"note":"x","n":1e400},{"n":12345678901234567890}],"more":{"id":7,"x":1},'
    '"about":"everything","ssn":123456789,"left":[null,"käse"]}'
)
EMAIL, SSN = b"ada@example.com", b"123456789"
HEADERS = [("user-ip", b"10.0.0.1"), ("region", b"eu"), ("session", b"s"), ("region", None)]
SOURCE: RecordParts = (b"customer-7", WRITTEN.encode(), HEADERS)


def expected(**changes: Any) -> ExpectedCopies:
    def keeps(value: Any, headers: Any) -> bool:
        return headers.get("region") != "internal" and value is not None and value["country"] == "DE"

    return ExpectedCopies(RULE | changes, keeps, {"pii": MATERIAL})


def copy(ring: KeyRing = OLD, *, text: str = "", ssn: bytes = SSN, **parts: Any) -> RecordParts:
    """What a right flow writes. Args: text: of a member, in the place of its right one: `old->new`."""
    sealed = sealed_text(Sealer(ring, "people").seal(ssn, 0, 1, "ssn"))
    value = (
        f'{{"country":"DE","customer":{{"email":"{pseudonym(ring, EMAIL)}","age":1.50}},"card":"************1111",'
        '"odd.name":"Z**","items":[{"note":null,"n":1e400},{"n":12345678901234567890}],"more":{"id":7},'
        f'"about":"eve","ssn":"{sealed}","left":[null,"käse"]}}'
    )
    if text:
        before, after = text.split("->")
        assert before in value
        value = value.replace(before, after)
    session = pseudonym(ring, b"s").encode()
    whole: dict[str, Any] = {
        "key": pseudonym(ring, b"customer-7").encode(),
        "value": value.encode(),
        "headers": [("region", b"eu"), ("session", session), ("region", None)],
    }
    return tuple((whole | parts).values())  # in this order


@pytest.mark.parametrize("ring", [OLD, NEW])
def test_a_right_copy_has_the_form_of_its_original_by_whichever_version_of_the_key(ring: KeyRing) -> None:
    copies = expected()

    assert copies.of_source(SOURCE) == copies.of_target(copy(ring))


@pytest.mark.parametrize(
    "wrong",
    [
        SOURCE,
        copy(STRANGE),
        copy(ssn=b'"123456789"'),
        copy(ssn=b"123456780"),
        copy(text='"email":->"name":"Ada","email":'),
        copy(text='"email":"->"email":"x'),
        copy(text='"email":->"mail":'),
        copy(text="************1111->4111111111111111"),
        copy(text='"note":null->"note":"x"'),
        copy(text='"note":null,->'),
        copy(text='"id":7->"id":7,"x":1'),
        copy(text="1.50->1.5"),
        copy(text="1e400->null"),
        copy(text="12345678901234567890->12345678901234567000"),
        copy(text='"DE",->"DE", '),
        copy(text='"about":"eve"->"about":"everything"'),
        copy(key=b"customer-7"),
        copy(key=None),
        copy(key=pseudonym(STRANGE, b"customer-7").encode()),
        copy(value=None),
        copy(headers=HEADERS),
        copy(headers=[("region", b"eu"), ("session", b"s"), ("region", None)]),
        copy(headers=[("region", None), ("session", pseudonym(OLD, b"s").encode()), ("region", b"eu")]),
    ],
)
def test_any_other_copy_differs_from_its_original(wrong: RecordParts) -> None:
    copies = expected()

    assert copies.of_source(SOURCE) != copies.of_target(wrong)


def written(value: Any, **headers: str) -> RecordParts:
    if value is not None and not isinstance(value, bytes):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return None, value, [(name, text.encode()) for name, text in headers.items()]


@pytest.mark.parametrize(
    ("record", "changes", "left"),
    [
        (written({"country": "FR"}), {}, None),
        (written({"country": "DE"}, region="internal"), {}, None),
        (written({"country": "DE"}), {}, written({"country": "DE"})),
        (written(None), {}, written(None)),
        (written(None), {"tombstones": "filter"}, None),
        (written(b"no JSON"), {"on.error": "drop"}, None),
        (written({"country": "DE", "customer": "Ada"}), {"on.error": "drop"}, None),
        (written({"country": "DE", "items": {"note": 1}}), {"on.error": "drop"}, None),
        (
            written({"country": "DE", "customer": None, "ssn": None}),
            {},
            written({"country": "DE", "customer": None, "ssn": None}),
        ),
        (written(b'{"country":"DE","a":1,"a":2}'), {}, written(b'{"country":"DE","a":2}')),
    ],
)
def test_what_a_rule_leaves_out_is_no_record(record: RecordParts, changes: Any, left: RecordParts | None) -> None:
    assert expected(**changes).of_source(record) == left


@pytest.mark.parametrize("value", [b"no JSON", {"country": "DE", "customer": "Ada"}])
def test_a_record_that_would_stop_its_lane_is_no_expectation(value: Any) -> None:
    with pytest.raises(ValueError, match=r"no object|Expecting value"):
        expected().of_source(written(value))


def test_whole_values_are_opened_too() -> None:
    copies = ExpectedCopies({"format": "bytes", "value": {"encrypt": "pii"}}, lambda *_: True, {"pii": MATERIAL})
    sealed = Sealer(NEW, "people").seal(b"\0anything", 0, 1, "")

    assert copies.of_source((None, b"\0anything", [])) == copies.of_target((None, sealed, []))
    assert copies.of_source((None, b"\0anything", [])) != copies.of_target((None, b"\0anything", []))


SOAK = Path(__file__).parents[3] / "lab" / "soak.yaml"
SECRET = b"0a1b2c3d4e5f6789"


def applied(transform: TopicTransform, number: int, parts: RecordParts) -> RecordParts | None:
    """What the product makes of a record, and what it drops."""
    key, value, headers = parts
    try:
        made = transform.apply(Record(number, number, headers, key, value), partition=1)
    except TransformFailed:
        return None
    return None if made is None else (made.key, made.value, made.headers)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("place", range(2))
def test_the_rules_of_the_soak_give_what_the_audit_expects_of_them_and_show_no_secret(place: int, version: int) -> None:
    """Two implementations that share no code, on the records of the soak."""
    (flow,) = load(SOAK).flows.values()
    (written,) = YAML(typ="safe").load(SOAK)["flows"].values()
    name: SoakRule = [rule for rule in get_args(SoakRule) if rule][place]
    assert name in written["transforms"][place]["topics"][0]
    in_force = RuleInForce.of(flow.rules[place], {"pii": KeySettings(version=version)})
    transform = make_ready(in_force, {"pii": KeyRing(version, MATERIAL)}, "people")
    copies = ExpectedCopies(written["transforms"][place], KEEPS[name], {"pii": MATERIAL})
    random, record, seen = Random(version), soak_shape(1, SECRET).record, Counter[str]()

    for number in range(3_000):
        value, key, headers = record(random, b"%d" % number)
        original: RecordParts = (key, value, [(name, raw) for name, raw in headers if not isinstance(raw, str)])
        copy = applied(transform, number, original)
        expected = copies.of_source(original)

        assert expected == (copy and copies.of_target(copy))
        seen["left out" if copy is None else "tombstone" if copy[1] is None else "copied"] += 1
        search = SecretSearch(SECRET)
        assert any(search.shows(part or b"") for part in (key, value, *dict(original[2]).values()))
        assert copy is None or not any(search.shows(part or b"") for part in (*copy[:2], *dict(copy[2]).values()))

    assert (seen["left out"] > 900) is (name == "masked")
    assert min(seen["copied"], seen["tombstone"]) > 100


PATHS: Mapping[str, Any] = {
    "a": [{"hmac": "pii"}, {"encrypt": "pii"}, {"keep.first": 2}, {"truncate": 1}, {"set": [1, {"x": "é"}]}, "drop"],
    "b.c": [{"hmac": "pii"}, {"keep.last": 2}, "drop", "pass"],
    "b.d[*].e": [{"encrypt": "pii"}, {"set": None}, "drop"],
    "f[*]": [{"hmac": "pii"}, "drop", {"keep.first": 1}],
    '"g.h"': ["drop", {"hmac": "pii"}],
    "b.*": ["drop"],
    "*": ["drop", {"hmac": "pii"}],
}


def something(random: Random, depth: int = 3) -> Any:
    """JSON whose members have the names of PATHS, and others."""
    kind = random.random()
    if depth and kind < 0.45:
        names = random.sample(["a", "b", "c", "d", "e", "f", "g.h", "g", ""], random.randint(0, 6))
        return {name: something(random, depth - 1) for name in names}
    if depth and kind < 0.6:
        return [something(random, depth - 1) for _ in range(random.randint(0, 3))]
    return random.choice((None, True, False, 0, -7, 2**70, 1.5, "", "a", "käse\n", "\U0001f600 and more", '"\\'))


def test_any_rule_gives_what_the_audit_expects_of_it_and_fits_the_same_records() -> None:
    random, outcomes = Random(7), Counter[str]()
    for number in range(3_000):
        paths = random.sample(list(PATHS), random.randint(1, len(PATHS)))
        rule = {"fields": {path: random.choice(PATHS[path]) for path in paths}, "on.error": "drop"}
        section = TransformSection.model_validate({"topics": ["people"], **rule})
        transform = make_ready(RuleInForce(section.rule(), {"pii": 1}), {"pii": OLD}, "people")
        copies = ExpectedCopies(rule, lambda *_: True, {"pii": {1: MATERIAL[1]}})
        value = something(random) if number % 3 else {name: something(random) for name in ("a", "b", "f", "x")}
        original = written(value)

        copy = applied(transform, number, original)
        expected = copies.of_source(original)

        assert expected == (copy and copies.of_target(copy)), (rule, value)
        outcomes["dropped" if copy is None else "as it was" if copy == original else "changed"] += 1

    assert min(outcomes.values()) > 200, outcomes
