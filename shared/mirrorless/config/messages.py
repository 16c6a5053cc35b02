"""Problems of a configuration, each with its place and with what to write instead; all are reported at once.

Most are pydantic's errors, in this project's words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from typing import TYPE_CHECKING, Any

from mirrorless.config.cluster import ClusterSection, Vpc
from mirrorless.config.expectations import AUTHENTICATIONS, either, expectation, keys_of, section_at
from mirrorless.config.flow_section import FlowSection, FunctionSection, MappingSection, ScheduleSection
from mirrorless.config.schema import AlarmSection, DeploymentSection, Document, SparkSection
from mirrorless.config.types import Section
from mirrorless.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import ErrorDetails

    from mirrorless.config.yaml_source import YamlSource


Path = tuple[str | int, ...]
"""Keys and list positions from the top of the document."""


def written(path: Path) -> str:
    """Return a path as text: `flows.us-east->eu-west.topics[1]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that must be changed before the configuration can be used.

    Attributes:
        path: the field, from the top of the document.
        what: what is wrong.
        hint: what to write instead.
        line: of the document, counted from 1; None when the document does not have the field.
    """

    path: Path
    what: str
    hint: str
    line: int | None = None

    @property
    def where(self) -> str:
        """The field as text."""
        return written(self.path)

    def __str__(self) -> str:
        place = self.where or "the document"
        line = f"line {self.line}, " if self.line else ""
        return f"{line}{place}: {self.what}. What to do: {self.hint}{'' if self.hint.endswith('?') else '.'}"


class InvalidConfiguration(ConfigurationError):
    """The configuration cannot be used. `problems` has all its problems, in the document's order."""

    def __init__(self, origin: str, problems: Iterable[Problem]) -> None:
        self.origin = origin
        self.problems = tuple(problems)
        count = f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"
        super().__init__(f"{count}; nothing was created", where=origin, hint="; ".join(p.hint for p in self.problems))

    def __str__(self) -> str:
        return "\n  ".join([f"{self.where}: {self.what} (a retry does not help)", *map(str, self.problems)])


ELSEWHERE = {
    "tasks.max": "there are no tasks to size: set `mapping: {maximum.pollers: …}`",
    "offset.lag.max": "every offset is translated exactly, there is nothing to tune: remove it",
    "offset-syncs.topic.location": "the offset-syncs topic is on the target: remove it",
    "exactly.once.support": "write `delivery: exactly_once`, which is the default",
    "transaction.boundary": "one event is one transaction: remove it",
    "replication.policy.class": "write `replication.policy: prefixed` or `replication.policy: identity`",
    "security.protocol": "it follows from `authentication: {type: …}`",
    "sasl.mechanism": "write `authentication: {type: plain}`, `scram` with its `mechanism`, `oauthbearer` or `iam`",
    "sasl.jaas.config": "write `authentication: {type: …, secret: …}`; a password has no place in this file",
    "topics.blacklist": "write `topics.exclude`",
    "groups.blacklist": "write `groups.exclude`",
    "config.properties.blacklist": "write `config.properties.exclude`",
    "refresh.groups.enabled": "groups are listed anew for every checkpoint: remove it",
    "refresh.groups.interval.seconds": "groups are listed anew for every checkpoint: remove it",
    "key.converter": "records are bytes and are never converted: remove it",
    "value.converter": "records are bytes and are never converted: remove it",
    "header.converter": "records are bytes and are never converted: remove it",
    "transforms": "records are never changed: remove it",
    "producer.acks": "exactly once depends on `all`, which is always set: remove it",
    "producer.enable.idempotence": "exactly once depends on it, it is always on: remove it",
    "producer.transactional.id": "each function environment has its own: remove it",
    "producer.max.in.flight.requests.per.connection": "order depends on it and it is always set: remove it",
    "consumer.isolation.level": "aborted records are never replicated: remove it",
    "consumer.auto.offset.reset": "write `start` at the flow",
    "consumer.group.id": "the group of a topic is `mirrorless.<source>.<target>.<topic>`: remove it",
    "starting.position": "write `start` at the flow",
    "maximum.retry.attempts": "a batch is retried until it is replicated, or records would be lost: remove it",
    "maximum.record.age.seconds": "no record is too old to be replicated: remove it",
    "on.failure": "a failing lane stops and waits, nothing is sent elsewhere: remove it",
    "filter.criteria": "a replica has every record: remove it",
    "topic": "write `topics: […]`",
}
"""Keys of MM2, of Kafka clients and of Lambda that have no counterpart here, or another name. No section has one."""


def problems_of(errors: Iterable[ErrorDetails], text: YamlSource) -> list[Problem]:
    """Translate pydantic's errors about a document."""
    found = [(error["type"], _problem(error, text)) for error in errors]
    # A list whose entries are all refused counts as empty too; that second error says nothing new.
    refused = {problem.path[:-1] for _, problem in found}
    return [problem for kind, problem in found if not (kind == "too_short" and problem.path in refused)]


def _problem(error: ErrorDetails, text: YamlSource) -> Problem:
    path = _path(error["loc"], text.data)
    what, hint = _words(error, path, text)
    return Problem(path=path, what=what, hint=hint)


def _words(error: ErrorDetails, path: Path, text: YamlSource) -> tuple[str, str]:
    """Return what is wrong and what to write instead."""
    key = str(path[-1]) if path else ""
    section = section_at(path[:-1], text.data)
    match error["type"]:
        case "extra_forbidden":
            return "there is no such key", _advice_on_key(key, path, section)
        case "missing":
            description = section.model_fields[key.replace(".", "_")].description if section else ""
            return "is missing", f"add `{key}: …`. {(description or '').rstrip('.')}"
        case "union_tag_not_found":
            return "does not say its type", f"add `type: …`, which is {either(list(AUTHENTICATIONS))}"
        case "union_tag_invalid":
            tag = str(error["ctx"]["tag"])
            return f"{tag!r} is no type of authentication", _closest(tag, list(AUTHENTICATIONS))
        case "value_error":
            what, _, hint = str(error["ctx"]["error"]).rpartition(" | ")
            return what, hint
        case _:
            expected = expectation(section, key) if section and key in keys_of(section) else "a section of keys"
            return _words_on_value(error, key, expected)


def _words_on_value(error: ErrorDetails, key: str, expected: str) -> tuple[str, str]:
    value, context = error["input"], error.get("ctx", {})
    what, hint = "it has no value" if value is None else f"{value!r} does not fit", f"write {expected}"
    match error["type"]:
        case "literal_error":
            what, hint = (
                f"{value!r} is not possible",
                _closest(str(value), re.findall(r"'([^']*)'", context["expected"])),
            )
        case "model_type" | "dict_type":
            found = "it is empty" if value is None else f"it is {value!r}"
            what, hint = f"must be a section of keys, but {found}", "write keys below it, indented, or remove it"
        case "too_short":
            what, hint = f"needs {context['min_length']} or more entries", _LEAST.get(key, hint)
        case "too_long":
            what, hint = f"has more than {context['max_length']} entries", "remove some"
        case "int_type" if isinstance(value, str) and re.fullmatch(r"-?[0-9_]+", value):
            what, hint = f"{value!r} is text", f"write {expected}, without quotes"
        case "string_type" if isinstance(value, int | float) and not isinstance(value, bool):
            what, hint = f"{value} is a number", f"put it in quotes: {key}: '{value}'"
        case "greater_than_equal" | "less_than_equal":
            what = f"{value} is too {'small' if error['type'].startswith('greater') else 'large'}"
    return what, hint


_LEAST = {
    "bootstrap.servers": "write one broker or more, for example `[broker-1.example.com:9092]`",
    "clusters": "describe the source and the target, each under its alias",
    "flows": "add a flow, for example `us-east->eu-west: {topics: [orders]}`",
    "subnets": "write the subnet ids, for example `[subnet-0abc]`",
    "security.groups": "write the security group ids, for example `[sg-0abc]`",
}


def _advice_on_key(key: str, path: Path, section: type[Section] | None) -> str:
    if key in ELSEWHERE:
        return ELSEWHERE[key]
    known = keys_of(section) if section else []
    if whole := [name for name in known if name.startswith(f"{key}.")]:
        return f"write the key in one piece: `{whole[0]}: …`"
    for name, other in _SECTIONS.items():
        if other is not section and key in keys_of(other):
            return f"`{key}` belongs to {name}"
    if near := _nearest(key, known):
        return f"did you mean {either(near)}?"
    holder = path[-2] if len(path) > 1 else "the document"
    if len(known) > _LISTED:
        return f"remove it; no key of {holder} is like it: docs/reference/configuration.md has all of them"
    return f"remove it; {holder} has only {either(known)}"


_LISTED = 12
"""Keys of a section that a message lists."""


def _nearest(key: str, known: list[str]) -> list[str]:
    """Up to three keys that may have been meant, the likeliest first; one, where it differs by a slip of the hand."""
    written = re.sub(r"[-_ ]", ".", key).lower()
    if slip := get_close_matches(written, known, n=1, cutoff=0.85):
        return slip
    # Words in another order, some left out, or written as one: `checkpoint.interval`, `syncgroups`.
    words = _stems(written)

    def shared(name: str) -> int:
        return sum(len(stem) for stem in _stems(name) if any(stem in word or stem.startswith(word) for word in words))

    def like(name: str) -> float:
        return SequenceMatcher(None, written.replace(".", ""), name.replace(".", "")).ratio()

    best = max(map(shared, known), default=0)
    of_words = [name for name in known if best and 2 * shared(name) > best]
    close = get_close_matches(written, known, n=3)
    return sorted(dict.fromkeys([*of_words, *close]), key=lambda name: (-shared(name), -like(name)))[:3]


def _stems(name: str) -> list[str]:
    """The words of a key without their plural; not those of two letters, which are in any word."""
    return [stem for word in re.split(r"[.-]", name) if len(stem := word.rstrip("s")) > 2]  # noqa: PLR2004 -- as said


_SECTIONS: dict[str, type[Section]] = {
    "a flow, or `defaults`": FlowSection,
    "`mapping:` of a flow": MappingSection,
    "`function:` of a flow": FunctionSection,
    "`schedule:` of a flow": ScheduleSection,
    "a cluster": ClusterSection,
    "`vpc:` of a cluster": Vpc,
    "`deployment`": DeploymentSection,
    "`alarms:` of `deployment`": AlarmSection,
    "`spark:` of `deployment`": SparkSection,
    "the top of the document": Document,
}


def _closest(word: str, choices: list[str]) -> str:
    close = get_close_matches(word.lower().replace("-", "_"), choices, n=1) or get_close_matches(word, choices, n=1)
    guess = f"did you mean `{close[0]}`? " if close else ""
    return f"{guess}write {either(choices)}"


def _path(location: tuple[int | str, ...], data: Any) -> Path:
    """Drop from pydantic's location what is not in the document: the names of alternatives."""
    path: list[int | str] = []
    for place, step in enumerate(location):
        if isinstance(data, dict) and step not in data and place + 1 < len(location):
            continue
        path.append(step)
        if isinstance(data, dict):
            data = data.get(str(step))
        elif isinstance(data, list) and isinstance(step, int):
            data = data[step]
    return tuple(path)
