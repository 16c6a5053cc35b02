"""What the audit expects of a topic with a rule: the right copy, and no other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.audit.expected_copies import ExpectedCopies, RecordParts
from mirrorless.transforms.ciphers import Sealer, pseudonym, sealed_text
from mirrorless.transforms.rules import KeyRing

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
    raw = value if value is None or isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    return None, raw, [(name, text.encode()) for name, text in headers.items()]


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
