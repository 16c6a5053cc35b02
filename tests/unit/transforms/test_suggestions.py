"""What is taken for personal data in a sample, what is not, and how a record is taken apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mirrorless.records.record import Headers, Record
from mirrorless.transforms.suggestions import PartTexts, RecordPart, parts_of, path_of, suggest

CARD = "4111111111111111"


def parts(value: bytes | None, *, key: bytes | None = None, headers: Headers | None = None) -> PartTexts:
    return parts_of(Record(offset=1, timestamp=1, headers=headers or [], key=key, value=value))


def found(*values: Any) -> list[tuple[str, str, str]]:
    """What is suggested for values that are copied as they are: paths, actions, kinds."""
    sample = [parts(json.dumps(each).encode()) for each in values]
    return [(each.path, each.action, each.kind) for each in suggest((each, each) for each in sample)]


@pytest.mark.parametrize(
    ("value", "suggested"),
    [
        ({"to": "Ann <ann.lee+x@mail.example.org>"}, ("to", "hmac", "e-mail")),
        ({"a": [{"b": ["x", "ann@example.org"]}]}, ("a[*].b[*]", "hmac", "e-mail")),
        ({"a.b": {"c d*": "ann@example.org"}}, ('"a.b"."c d*"', "hmac", "e-mail")),
        ({"n": CARD}, ("n", "keep.last", "payment card")),
        ({"n": ["4111111111111112", CARD]}, ("n[*]", "keep.last", "payment card")),
        ({"n": int(CARD)}, ("n", "keep.last", "payment card")),
        ({"n": "by card 4111 1111 1111 1111."}, ("n", "keep.last", "payment card")),
        ({"n": "3782-822463-10005"}, ("n", "keep.last", "payment card")),
        ({"n": "line\n4111111111111111"}, ("n", "keep.last", "payment card")),
        ({"n": "DE89370400440532013000"}, ("n", "drop", "IBAN")),
        ({"n": "GB33 BUKB 2020 1555 5555 55 BY FRIDAY"}, ("n", "drop", "IBAN")),
        ({"n": "call +49 (170) 123-4567 now"}, ("n", "drop", "telephone")),
        ({"n": "10.1.2.3, 192.0.2.7"}, ("n", "drop", "IP address")),
        ({"n": "2001:db8::8a2e:370:7334"}, ("n", "drop", "IP address")),
        ({"eMail": "at work"}, ("eMail", "hmac", "e-mail")),
        ({"customer_emails": ["none"]}, ("customer_emails[*]", "hmac", "e-mail")),
        ({"CardNumber": "4111"}, ("CardNumber", "keep.last", "payment card")),
        ({"billing-addresses": [{"city": "Ulm", "primary": True}]}, ("billing-addresses", "drop", "address")),
        ({"customer": {"name": "Ann"}}, ("customer.name", "drop", "person's name")),
        ({"user": {"dateOfBirth": "1970-01-01"}}, ("user.dateOfBirth", "drop", "birth")),
        ({"SSN": 78051120}, ("SSN", "drop", "official number")),
        ({"socialSecurityNumber": 78051120}, ("socialSecurityNumber", "drop", "official number")),
        ({"homePhone": "0170 1234567"}, ("homePhone", "drop", "telephone")),
        ({"client_ip": 167772161}, ("client_ip", "drop", "IP address")),
        ({"ipAddress": "unknown"}, ("ipAddress", "drop", "IP address")),
        ([{"ssn": "x"}], ("[*].ssn", "drop", "official number")),
        ({"phone": "ann@example.org"}, ("phone", "drop", "telephone")),
    ],
    ids=str,
)
def test_personal_data_is_found_by_its_name_or_its_shape(value: Any, suggested: tuple[str, str, str]) -> None:
    assert found(value) == [suggested]


def test_what_only_looks_like_it_is_not_suggested() -> None:
    assert (
        found(
            {
                "order": "4111111111111112",
                "orders": [5500005555555550, "6011-0009-9013-9425"],
                "at": [1763700000, 1763700000000, 1763700000000000, 1763700000000000000],
                "when": ["2024-01-15T10:30:45.123456+01:00", "10:30:45", "20240115103045123"],
                "id": ["4ce0b7a4-6f0c-4b3a-9f6c-1f0b8f6d2d11", "41111111-1111-4111-8111-111111111111"],
                "amount": [4111111111111.11, 41111111111111.11, -4111111111111111, "4111111111111111.5", 1e300],
                "sku": ["GB82WEST12345698765433", "DE89-X", "AB12"],
                "agent": "Mozilla/5.0 (X11) Chrome/120.0.0.0 Safari/537.36",
                "version": ["1.2.3.400", "1.2.3", "v1.2.3.4", "1.2.3.4.5", "::"],
                "icon": "img/logo@2x.png",
                "package": "react@18.2.0",
                "code": "std::vector",
                "delta": ["+1.5", "+0100", "1+2345678901"],
                "email_verified": True,
                "emailCount": 3,
                "card_type": "visa",
                "card": {"count": 3},
                "phone": None,
                "addressId": 7,
                "name": "Widget",
                "product": {"name": "Widget", "shipping": "free", "zipped": "no"},
            }
        )
        == []
    )


def test_numbers_with_a_cards_check_digit_by_chance_are_no_cards() -> None:
    """One of ten has it."""
    numbers = [f"41111111111111{number:02}" for number in range(20)]

    assert found(*({"order": each} for each in numbers)) == []
    assert found(*({"order": CARD} for _ in range(11)), *({"order": each} for each in numbers[:9])) != []


def test_keys_headers_and_values_that_are_no_json_have_suggestions_of_their_own() -> None:
    headers: Headers = [("x-forwarded-for", b"192.0.2.7"), ("user-email", b"-"), ("type", b"json"), ("type", b"\xff4")]
    copied = parts(b"ann@example.org", key=b'{"ssn": 1}', headers=headers)
    json_too = parts(b'{"note": "ann@example.org"}', key=b"ann@example.org")
    tombstone = parts(None, key=b"42")

    assert [tuple(each) for each in suggest((each, each) for each in (copied, json_too, tombstone))] == [
        ("headers", "user-email", "hmac", "e-mail", 1),
        ("headers", "x-forwarded-for", "drop", "IP address", 1),
        ("key", "", "hmac", "official number", 1),
        ("value", "", "encrypt", "e-mail", 1),
    ]


def test_what_a_rule_has_changed_is_found_by_its_shape_alone() -> None:
    before = parts(b'{"ssn": "1", "email": "ann@example.org", "phone": "1"}')
    after = parts(b'{"ssn": "***", "email": "ann@example.org, too", "phone": "1"}')

    assert [each.path for each in suggest([(before, after)])] == ["email", "phone"]


def test_where_one_path_leads_into_another_the_outer_one_is_suggested() -> None:
    """A rule takes one of them only."""
    assert found({"contact": "ann@example.org"}, {"contact": {"to": "ann@example.org"}}, {"contacted": "a@b.org"}) == [
        ("contact", "hmac", "e-mail"),
        ("contacted", "hmac", "e-mail"),
    ]


def test_a_record_is_taken_apart_as_it_is_written() -> None:
    deep = b"[" * 200 + b"1e400" + b"]" * 200
    value = (
        b' {"a": {"b": [1.10, "\\u00e9"], "b.c": {}}, "n": 12345678901234567890123, "n": null, "deep": ' + deep + b"}"
    )
    headers: Headers = [("h", b"1"), ("g", None), ("h", b"2")]

    apart = parts(value, key=b"\x00\xff", headers=headers)

    assert {
        path_of(part, numbered=True) or part.of: text for part, text in apart.items() if part.steps != ("h", 1)
    } == {
        "key": "0x00ff",
        "h": "1",
        "g": None,
        "a.b[0]": "1.10",
        "a.b[1]": '"\\u00e9"',
        'a."b.c"': "{}",
        "n": "null",
        f"deep{'[0]' * 200}": "1e400",
    }
    assert apart[RecordPart("headers", ("h", 1))] == "2"
    for whole, text in (
        (None, None),
        (b"", ""),
        (b"{", "{"),
        (b"\xff", "0xff"),
        (b"{}", "{}"),
        (b'"a', '"a'),
    ):
        assert parts(whole) == {RecordPart("key"): None, RecordPart("value"): text}
