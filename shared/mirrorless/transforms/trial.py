"""A trial of one's own function on records that are made up, for `mirrorless config check`.

    python -m mirrorless.transforms.trial FOLDER RULE

The rule is JSON, and the function's module is looked for in the folder first. The answer is a line of JSON: a digest of
each result, which must be the same in every process, or the error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec

from mirrorless.errors import ConfigurationError
from mirrorless.records.record import Record
from mirrorless.transforms.paths import steps_of
from mirrorless.transforms.rules import Rule, RuleInForce
from mirrorless.transforms.transform import TopicTransform, TransformFailed, function_hash, make_ready


class TrialAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a trial came to."""

    rounds: list[list[str]] = []
    """Of each a digest for each record."""
    error: str = ""


def records_for(rule: Rule) -> list[Record]:
    """Records of many shapes; some have what the rule's paths name."""
    named: dict[str, Any] = {}
    for path in rule.fields:
        place = named
        *way, last = [step if isinstance(step, str) else "any" for step in steps_of(path)]
        for step in way:
            place = found if isinstance(found := place.get(step), dict) else place.setdefault(step, {})
            place = place if isinstance(place, dict) else named
        place[last] = f"{last} of a person"
    whole = {"id": 7, "name": "Ada Lovelace", "email": "ada@example.com", "tags": ["a", "b", "c"]} | named
    values = [msgspec.json.encode(each) for each in (whole, named, [whole, 1e300, None], "text", 12)]
    texts = [*values, None, b"", b"no JSON", b"\xff\x00\xfe"]
    headers: list[list[tuple[str, bytes | None]]] = [[], [("region", b"eu"), ("region", None), ("user-ip", b"\xff")]]
    return [
        Record(number, 1_700_000_000_000 + number, headers[number % 2], None if number % 3 else b"key", value)
        for number, value in enumerate([*texts, *texts])
    ]


def tried(rule: Rule) -> TrialAnswer:
    """Apply the function to each record twice; a number that it counts, or a moment, makes another result."""
    alone = Rule(topics=rule.topics, function=rule.function)
    try:
        ready = make_ready(RuleInForce.of(alone, {}, function_hash(alone.function)), {}, "topic")
    except ConfigurationError as exc:
        return TrialAnswer(error=exc.what if exc.__cause__ is None else f"{exc.what}: {exc.__cause__}")
    made = records_for(rule)
    return TrialAnswer(rounds=[list(_results(ready, made)) for _ in range(2)])


def _results(ready: TopicTransform, records: list[Record]) -> Iterator[str]:
    for record in records:
        try:
            result = repr(ready.apply(record, 0))
        except TransformFailed as exc:
            result = str(exc)
        yield sha256(result.encode()).hexdigest()[:16]


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    answer = msgspec.json.encode(tried(msgspec.json.decode(sys.argv[2], type=Rule)))
    sys.stdout.write("\n" + answer.decode() + "\n")
