"""Types of the values in replication.yaml, each with its own message, and the base of all sections.

A message is a ValueError whose text is `what is wrong | what to write instead`.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)

from mirrorless.flow.filters import check_pattern, is_literal, split_list
from mirrorless.flow.java_patterns import in_python
from mirrorless.flow.policy import LONGEST_TOPIC, is_legal_topic
from mirrorless.flow.triggers import Trigger
from mirrorless.transforms.rules import Action, Mask


class Section(BaseModel):
    """A mapping of replication.yaml: nothing unknown in it, nothing converted in silence, nothing changed later."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=lambda name: name.replace("_", "."),
        hide_input_in_errors=True,
    )


START_WORDS = ("earliest", "latest", "backfill")

_PATTERN_SIGNS = re.compile(r"[.^$*+?{}\[\]\\|()]")
_HOST_AND_PORT = re.compile(r"[A-Za-z0-9._-]+:([0-9]{1,5})|\[[0-9a-fA-F:]+\]:([0-9]{1,5})")
_LONGEST_HOST_AND_PORT = 300
_HIGHEST_PORT = 65_535

_TAG = re.compile(r"[A-Za-z0-9 /_.:=+@-]*")
"""What EMR Serverless takes, the narrowest of the services: a tag of the deployment is one of everything in it."""
_LONGEST_TAG_NAME = 128
_LONGEST_TAG_VALUE = 256


def _entries(value: Any) -> Any:
    """Read a YAML list, or MM2's comma list, as a tuple."""
    if isinstance(value, str):
        return split_list(value)
    if isinstance(value, list):
        return tuple(value)
    raise ValueError("must be a list, or names with commas between | write `[orders, payments]` or `orders, payments`")


def _no_twins(entries: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted(entry for entry, times in Counter(entries).items() if times > 1):
        raise ValueError(f"{twice[0]!r} is written twice | remove one of the two")
    return entries


def _pattern(entry: str) -> str:
    if problem := check_pattern(entry):
        python = in_python(entry)
        if entry.startswith("*"):
            advice = "write `.*` for anything"
        elif python != entry and check_pattern(python) is None:
            advice = f"write `{python}`"
        else:
            advice = "put a backslash before a sign that means itself"
        raise ValueError(f"{problem} | {advice}")
    return entry


def _topic(entry: str) -> str:
    if is_literal(entry):
        if is_legal_topic(entry):
            return entry
        too_long = f"is {len(entry)} characters long, a topic has at most {LONGEST_TOPIC}"
        raise ValueError(f"{entry[:40]!r} {too_long if len(entry) > LONGEST_TOPIC else 'is no topic name'} | rename it")
    if not _PATTERN_SIGNS.search(entry):
        raise ValueError(f"{entry!r} is no topic name | use letters, digits, `.`, `_` and `-`, or write a pattern")
    return _pattern(entry)


def _not_reserved(name: str) -> str:
    """Parameters, groups of schedules and buckets may not begin so."""
    if taken := next((each for each in ("aws", "amazon", "amzn", "ssm", "sthree") if name.startswith(each)), None):
        raise ValueError(f"{name!r} begins with {taken!r}, which AWS keeps for itself | write another name")
    return name


def _topic_prefix(entry: str) -> str:
    if not is_literal(entry) or not is_legal_topic(entry):
        raise ValueError(f"{entry[:40]!r} begins no topic name | write letters, digits, `.`, `_` and `-`, without `*`")
    return entry


def _address(entry: str) -> str:
    match = _HOST_AND_PORT.fullmatch(entry)
    port = int(match[1] or match[2]) if match else 0
    if not 0 < port <= _HIGHEST_PORT or len(entry) > _LONGEST_HOST_AND_PORT:
        raise ValueError(f"{entry!r} is no broker address | write `host:port`, for example `broker-1.example.com:9092`")
    return entry


def _start(value: str) -> str:
    if value in START_WORDS:
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        words = ", ".join(START_WORDS)
        raise ValueError(f"{value!r} is no start | write {words}, or a time like 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"{value!r} does not say its time zone | write {moment.isoformat()}Z for UTC")
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _replication_factor(value: int) -> int:
    if value == 0:
        raise ValueError("0 replicas cannot hold a record | write 1 or more, or -1 for the target's own default")
    return value


def _whole_minutes(value: int) -> int:
    if value % 60:
        before = value // 60 * 60
        raise ValueError(f"{value} is no whole number of minutes | write {before} or {before + 60}")
    return value


def _topic_entries(entries: dict[str, Trigger]) -> dict[str, Trigger]:
    for entry in entries:
        _topic(entry)
    return entries


def _legal_tags(tags: dict[str, str]) -> dict[str, str]:
    for name, value in tags.items():
        for text, least, most in ((name, 1, _LONGEST_TAG_NAME), (value, 0, _LONGEST_TAG_VALUE)):
            if not least <= len(text) <= most:
                raise ValueError(f"{text[:40]!r} has {len(text)} characters | write {least} to {most} characters")
            if not _TAG.fullmatch(text):
                raise ValueError(f"{text!r} is no tag | use letters a-z, digits, spaces and `. _ : / = + - @`")
        if name.lower().startswith("aws:"):
            raise ValueError(f"{name!r} is reserved for AWS | use another prefix")
    return tags


_NAMED_KEY: Final = {"type": "string"}
_LENGTH: Final = {"type": "integer", "minimum": 0}
_MASKS: Final[dict[str, dict[str, Any]]] = {
    "hmac": _NAMED_KEY,
    "encrypt": _NAMED_KEY,
    "set": {},
    "keep.first": _LENGTH,
    "keep.last": _LENGTH,
    "truncate": _LENGTH,
}


def _action(value: Any) -> Action:
    advice = f"write `drop` or `pass`, or one of {', '.join(_MASKS)} with its value, for example `{{keep.last: 4}}`"
    if value in ("drop", "pass"):
        return "drop" if value == "drop" else "pass"
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} is no action | {advice}")  # noqa: TRY004 -- pydantic takes ValueError
    if len(value) != 1 and value.keys() != {"keep.first", "keep.last"}:
        raise ValueError(f"{len(value)} kinds of mask are written where one belongs | {advice}")
    for kind, argument in value.items():
        if kind not in _MASKS:
            raise ValueError(f"{kind!r} is no kind of mask | {advice}")
        if _MASKS[kind] is _LENGTH and (type(argument) is not int or argument < 0):
            raise ValueError(f"{argument!r} is no number of characters | write `{kind}: 4`, or another from 0 on")
        if _MASKS[kind] is _NAMED_KEY and not (isinstance(argument, str) and argument):
            raise ValueError(f"{argument!r} is no name of a key | write one of those under `keys`")
    return msgspec.convert(value, Mask)


_KEY_ARN = r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/\S+$"

_LIST_SCHEMA = WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]})

Addresses = Annotated[
    tuple[Annotated[str, AfterValidator(_address)], ...],
    BeforeValidator(_entries),
    AfterValidator(_no_twins),
    _LIST_SCHEMA,
]
"""Broker addresses, `host:port`: a YAML list or a comma list."""

TopicList = Annotated[
    tuple[Annotated[str, AfterValidator(_topic)], ...],
    BeforeValidator(_entries),
    AfterValidator(_no_twins),
    _LIST_SCHEMA,
]
"""Topic names and patterns: a YAML list or a comma list."""

TopicPrefixes = Annotated[
    tuple[Annotated[str, AfterValidator(_topic_prefix)], ...],
    BeforeValidator(_entries),
    AfterValidator(_no_twins),
    _LIST_SCHEMA,
]
"""Beginnings of topic names: a YAML list or a comma list."""

TriggerOverrides = Annotated[dict[str, Trigger], AfterValidator(_topic_entries)]
"""Triggers by topic name or pattern, in the order of the file."""

Patterns = Annotated[
    tuple[Annotated[str, AfterValidator(_pattern)], ...],
    BeforeValidator(_entries),
    AfterValidator(_no_twins),
    _LIST_SCHEMA,
]
"""Names and patterns: a YAML list or a comma list."""

RecordAction = Annotated[
    Action,
    PlainValidator(_action),
    PlainSerializer(msgspec.to_builtins),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["drop", "pass"]},
                {
                    "type": "object",
                    "properties": _MASKS,
                    "additionalProperties": False,
                    "minProperties": 1,
                    "maxProperties": 2,
                },
            ]
        }
    ),
]
"""What becomes of a value: `drop`, `pass`, or one kind of mask; `keep.first` and `keep.last` may be together."""

Identifiers = Annotated[tuple[str, ...], BeforeValidator(_entries), AfterValidator(_no_twins), _LIST_SCHEMA]
"""AWS resource ids: a YAML list or a comma list."""

Tags = Annotated[dict[str, str], AfterValidator(_legal_tags)]
"""Tags of AWS resources."""

Start = Annotated[
    str,
    AfterValidator(_start),
    WithJsonSchema({"anyOf": [{"enum": list(START_WORDS)}, {"type": "string", "format": "date-time"}]}),
]
"""Where a flow begins: a word, or a moment with its time zone."""

ReplicationFactor = Annotated[int, Field(ge=-1, le=32_767), AfterValidator(_replication_factor)]
"""Copies of each partition; -1 leaves it to the target cluster."""

Seconds = Annotated[int, Field(ge=1, le=86_400)]
WholeMinutes = Annotated[int, Field(ge=60, le=86_400), AfterValidator(_whole_minutes)]
"""Seconds of an EventBridge schedule, whose shortest interval is a minute."""
DeploymentName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{1,19}$"), AfterValidator(_not_reserved)]
"""What names begin with. Without a hyphen, names of two deployments are never the same."""
KeyArns = Annotated[
    tuple[Annotated[str, Field(pattern=_KEY_ARN)], ...],
    BeforeValidator(_entries),
    AfterValidator(_no_twins),
    _LIST_SCHEMA,
]
"""ARNs of keys, for example one for each account: a YAML list or a comma list."""
KeyArn = Annotated[str, Field(pattern=_KEY_ARN)]
