"""What a rule might mask: the parts of records that look like personal data, by their names and by their shapes.

What is found is a suggestion. What is not found is no proof: the names are English, and much of what is personal has no
shape.

Pure.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address
from itertools import accumulate
from typing import Final, Literal, NamedTuple

import msgspec

from mirrorless.records.record import Record
from mirrorless.transforms.paths import Wildcard, spelled

Steps = tuple[str | int, ...]
"""Names and indices in a value, from outside; of a header its name, and the number of a later one of that name."""

RuleKey = Literal["key", "headers", "fields", "value"]
"""Where an entry of `transforms` has it; `value` is one without fields."""


class RecordPart(NamedTuple):
    """A place in a record."""

    of: RuleKey
    steps: Steps = ()


PartTexts = Mapping[RecordPart, str | None]
"""What stands at each place: JSON as it is written, other text, or bytes in hexadecimal behind `0x`; None is null."""


class Suggestion(NamedTuple):
    """What a rule might do."""

    of: RuleKey
    path: str
    """Of a field, or the name of a header."""
    action: Literal["drop", "hmac", "encrypt", "keep.last"]
    kind: str
    """What it seems to be."""
    records: int
    """In which it was found."""


class _Kind(NamedTuple):
    name: str
    action: Literal["drop", "hmac", "keep.last"]
    names: str
    """Words of names, as they end: in the singular, with nothing between them."""
    shape: re.Pattern[str] | None = None
    is_one: Callable[[str], bool] = bool
    """Whether what has the shape is one."""


def parts_of(record: Record) -> dict[RecordPart, str | None]:
    """The key, each header, and the value: of a JSON object or array whatever has no parts itself."""
    found: dict[RecordPart, str | None] = {RecordPart("key"): _text(record.key)}
    names: Counter[str] = Counter()
    for name, content in record.headers:
        found[RecordPart("headers", (name, names[name]) if names[name] else (name,))] = _text(content)
        names[name] += 1
    leaves = [] if record.value is None else _json(record.value)
    if not leaves:
        found[RecordPart("value")] = _text(record.value)
    for steps, text in leaves:
        found[RecordPart("fields" if steps else "value", steps)] = text
    return found


def path_of(part: RecordPart, *, numbered: bool = False) -> str:
    """A field's path or a header's name, as a rule has it. Args: numbered: of one element, and not of all of them."""
    if part.of == "headers":
        return str(part.steps[0])
    steps = (Wildcard.ELEMENT if isinstance(each, int) and not numbered else each for each in part.steps)
    return "".join(map(spelled, steps)).removeprefix(".")


def suggest(sample: Iterable[tuple[PartTexts, PartTexts]]) -> list[Suggestion]:
    """What a rule might do beyond what it does.

    Args:
        sample: each record as it is, and as it is copied. A name counts where the copy has what the record has.
    """
    seen: Counter[tuple[RuleKey, str, _Kind]] = Counter()
    unlike: Counter[tuple[RuleKey, str, _Kind]] = Counter()
    for before, after in sample:
        told = {
            each for part, text in after.items() for each in _told(part, text or "", unchanged=before.get(part) == text)
        }
        seen.update(where for where, is_one in told if is_one)
        unlike.update(where for where, is_one in told if not is_one and (where, True) not in told)
    found: dict[tuple[RuleKey, str], Suggestion] = {}
    for (of, path, kind), records in seen.most_common():
        # One number of ten has a card's check digit by chance.
        if records > unlike[of, path, kind]:
            action = "encrypt" if of == "value" else "hmac" if of == "key" else kind.action
            found.setdefault((of, path), Suggestion(of, path, action, kind.name, records))
    whole = ("value", "") in found  # of values that are no JSON a rule names no fields
    inside = tuple(f"{path}{step}" for of, path in found if of == "fields" for step in ".[")
    return sorted(each for each in found.values() if each.of != "fields" or not (whole or each.path.startswith(inside)))


def _told(part: RecordPart, text: str, *, unchanged: bool) -> Iterator[tuple[tuple[RuleKey, str, _Kind], bool]]:
    """The kinds of which a part is by its name, or of which it has the shape; and whether it is one."""
    of = part.of
    named = _named(part, text) if unchanged and text not in _EMPTY else None
    if named is not None:
        yield (of, path_of(RecordPart(of, named[0])), named[1]), True
        if named[1].action == "drop":
            return  # whatever it is besides
    if of == "fields" and text.startswith('"'):
        text = json.loads(text, strict=False)
    for kind in _KINDS:
        if kind.shape is not None and (matches := [each[0] for each in kind.shape.finditer(text)]):
            yield (of, path_of(part), kind), any(map(kind.is_one, matches))


def _named(part: RecordPart, text: str) -> tuple[Steps, _Kind] | None:
    """What a part is by a name: its own, or one on the way to it, with which all inside goes."""
    if part.of == "key":
        return next((((), found[1]) for steps, _ in _json(text.encode()) if (found := _by_name(steps))), None)
    return _by_name(part.steps)


def _by_name(steps: Steps) -> tuple[Steps, _Kind] | None:
    words: list[str] = []
    for end, step in enumerate(steps, 1):
        if isinstance(step, int):
            continue
        words += _WORD.findall(step)
        for count in range(_LONGEST, 0, -1):
            kind = _NAMES.get(_PLURAL.sub("", "".join(words[-count:]).lower()))
            if kind is not None and (kind.action == "drop" or all(isinstance(each, int) for each in steps[end:])):
                return steps[:end] if kind.action == "drop" else steps, kind
    return None


def _json(content: bytes) -> list[tuple[Steps, str]]:
    """What has no parts itself in a JSON text, as it is written; nothing where it is none."""
    try:
        return list(_leaves((), content.strip()))
    except (ValueError, RecursionError):
        return []


def _leaves(steps: Steps, raw: bytes) -> Iterator[tuple[Steps, str]]:
    inside: Iterable[tuple[str | int, msgspec.Raw]] = ()
    if raw.startswith(b"{"):
        inside = _members.decode(raw).items()
    elif raw.startswith(b"["):
        inside = enumerate(_elements.decode(raw))
    parts = [part for step, each in inside for part in _leaves((*steps, step), bytes(each).strip())]
    yield from parts or [(steps, raw.decode())]


def _text(content: bytes | None) -> str | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"0x{content.hex()}"


def _is_card(digits: str) -> bool:
    """By the check digit (Luhn)."""
    numbers = [int(each) for each in reversed(digits) if each.isdigit()]
    return sum(numbers[::2] + [sum(divmod(2 * each, 10)) for each in numbers[1::2]]) % 10 == 0


def _is_iban(text: str) -> bool:
    """By the check digits (ISO 7064 mod 97); words may follow it."""
    return any(
        int("".join(str(int(each, 36)) for each in some[4:] + some[:4])) % 97 == 1
        for some in accumulate(text.split(" "))
        if len(some) >= _SHORTEST_IBAN
    )


def _is_ip(text: str) -> bool:
    try:
        return not ip_address(text).is_unspecified
    except ValueError:
        return False


_KINDS: Final = (
    _Kind(
        "e-mail",
        "hmac",
        "email mail emailaddress mailaddress",
        re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?!\dx\.)(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,}"),  # no picture@2x.png
    ),
    _Kind("login", "hmac", "loginname username"),
    _Kind(
        "payment card",
        "keep.last",
        "card cardnumber creditcard debitcard pan",
        re.compile(
            r"(?<![\w.+-])(?=[3-6]|2[2-7])"  # no time since the epoch, in whatever unit
            r"(?:\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{1,7}|\d{4}([ -])\d{6}\2\d{4,5})(?![\w-]|\.\d)"
        ),
        _is_card,
    ),
    _Kind("card's code", "drop", "cvc cvv"),
    _Kind("IBAN", "drop", "bankaccount iban", re.compile(r"\b[A-Z]{2}\d\d(?: ?[A-Z\d]){11,30}(?!\w)"), _is_iban),
    _Kind(
        "telephone",
        "drop",
        "cellphone fax faxnumber mobile mobilenumber mobilephone msisdn phone phonenumber tel telephone "
        "telephonenumber",
        re.compile(r"(?<![\w+])\+[1-9](?:[ ()/-]{0,2}\d){7,14}(?![\w-]|\.\d)"),
    ),
    _Kind(
        "IP address",
        "drop",
        "ip ipaddr ipaddress remoteaddr",
        re.compile(
            r"(?<![\w./-])(?:\d{1,3}\.){3}\d{1,3}(?![\w-]|\.\d)"
            r"|(?<![\w:.])[\dA-Fa-f]{0,4}(?::[\dA-Fa-f]{0,4}){2,7}(?![\w:.])"
        ),
        _is_ip,
    ),
    _Kind("birth", "drop", "birth birthdate birthday birthplace dob"),
    _Kind(
        "person's name",
        "drop",
        "cardholder contactname customername familyname firstname fullname givenname holdername lastname maidenname "
        "middlename personname surname",
    ),
    _Kind("address", "drop", "address addressline postalcode postcode street zip zipcode"),
    _Kind("official number", "drop", "nationalid passport passportnumber socialsecuritynumber ssn taxid"),
    _Kind("password", "drop", "passwd password"),
)
"""Where two fit as often, the earlier one holds."""

_NAMES: Final = {name: kind for kind in _KINDS for name in kind.names.split()}
_LONGEST: Final = 3
"""Words of a name."""
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PLURAL: Final = re.compile(r"(?<=ss)es$|(?<!s)s$")
_EMPTY: Final = frozenset({"", '""', "{}", "[]", "null", "true", "false"})
_SHORTEST_IBAN: Final = 15

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])
