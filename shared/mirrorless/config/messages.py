"""Pydantic's errors about a configuration, in this project's words.

A key's type, range and choices have the same words on the reference page.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any

from mirrorless.config.cluster import (
    ClusterSection,
    Iam,
    Mtls,
    OauthBearer,
    Plain,
    Plaintext,
    RegistrySection,
    Scram,
    Tls,
    Vpc,
)
from mirrorless.config.flow_section import (
    FlowSection,
    FunctionSection,
    MappingSection,
    ScheduleSection,
    TransformSection,
)
from mirrorless.config.problems import Path, Problem
from mirrorless.config.schema import AlarmSection, DeploymentSection, Document, KeySection, SparkSection
from mirrorless.config.types import Section

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic_core import ErrorDetails

    from mirrorless.config.yaml_source import YamlSource

AUTHENTICATIONS: dict[str, type[Section]] = {
    "plaintext": Plaintext,
    "tls": Tls,
    "plain": Plain,
    "scram": Scram,
    "oauthbearer": OauthBearer,
    "mtls": Mtls,
    "iam": Iam,
}

PATTERNS = {
    "region": "an AWS region like `us-east-1`",
    "account": "twelve digits in quotes",
    "msk.cluster.arn": "an ARN like `arn:aws:kafka:us-east-1:111122223333:cluster/name/uuid`",
    "id": "an id like `vpc-0abc`",
    "replication.policy.separator": "1 to 16 letters, digits, `.`, `_` or `-`",
    "poller.group.name": "up to 128 letters, digits, `_` or `-`",
    "name": "2 to 20 letters a-z and digits, the first a letter",
    "topic.prefix": "up to 200 letters, digits, `.`, `_` or `-`",
    "scope": "letters, digits, spaces or one of `/*:_+=.@-`",
    "logical.cluster": "letters, digits or `-`",
    "identity.pool": "letters, digits or `-`",
    "url": "an address like `https://registry.example.com:8081`",
    "kms.key.arn": "an ARN like `arn:aws:kms:us-east-1:111122223333:key/uuid`",
    "function": "a module and a function, like `masks.customers:without_notes`",
}
"""Formats of values, in words: an operator should not have to read a regular expression."""


SECTIONS: dict[Path, tuple[type[Section], str]] = {
    (): (Document, "the top of the document"),
    ("clusters", "*"): (ClusterSection, "a cluster"),
    ("clusters", "*", "vpc"): (Vpc, "`vpc:` of a cluster"),
    ("clusters", "*", "schema.registry"): (RegistrySection, ""),
    ("flows", "*"): (FlowSection, "a flow, or `defaults`"),
    ("flows", "*", "mapping"): (MappingSection, "`mapping:` of a flow"),
    ("flows", "*", "function"): (FunctionSection, "`function:` of a flow"),
    ("flows", "*", "schedule"): (ScheduleSection, "`schedule:` of a flow"),
    ("flows", "*", "transforms", "*"): (TransformSection, "an entry of `transforms`"),
    ("keys", "*"): (KeySection, ""),
    ("deployment",): (DeploymentSection, "`deployment`"),
    ("deployment", "alarms"): (AlarmSection, "`alarms:` of `deployment`"),
    ("deployment", "spark"): (SparkSection, "`spark:` of `deployment`"),
}
"""The sections of a document, and what people call those whose keys are looked for elsewhere; `defaults` is a flow."""


def section_at(path: Path, data: Any) -> type[Section] | None:
    """Return the model of the section at `path` of a document; None where the document has no section."""
    if path[:1] == ("clusters",) and path[2:] == ("authentication",):
        return AUTHENTICATIONS.get(str(_get(data, (*path, "type"))))
    if path[:1] == ("defaults",):
        path = ("flows", "*", *path[1:])
    named = path[:1] in {("clusters",), ("flows",), ("keys",)} and len(path) > 1
    inside = tuple("*" if isinstance(step, int) else step for step in path)
    found = SECTIONS.get((inside[0], "*", *inside[2:]) if named else inside)
    return found[0] if found else None


def keys_of(section: type[Section]) -> list[str]:
    """Return the keys of a section, in the order of the model."""
    return [str(field.alias) for field in section.model_fields.values()]


def expectation(section: type[Section], key: str) -> str:
    """Return what the value of one key must be, in words: `a whole number from 1 to 200`."""
    return _in_words(schema_of(section)["properties"][key], key)


@cache
def schema_of(section: type[Section]) -> dict[str, Any]:
    """Return the JSON schema of a section, keys as they are written."""
    return section.model_json_schema(by_alias=True)


def either(choices: Sequence[str]) -> str:
    """Write `a`, `b` or `c`."""
    quoted = [f"`{choice}`" for choice in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _in_words(schema: dict[str, Any], key: str) -> str:  # noqa: C901, PLR0911, PLR0912 -- one line per kind of value
    match schema:
        case {"enum": choices}:
            return either(choices)
        case {"const": choice}:
            return f"`{choice}`"
        case {"anyOf": [{"enum": words}, {"format": "date-time"}]}:
            return f"{either(words)}, or a time like `2026-01-31T12:00:00Z`"
        case {"anyOf": [{"type": "array"}, {"type": "string"}]}:
            return "a list, or names with commas between"
        case {"anyOf": [{"enum": words}, {"type": "object", "properties": kinds}, *_]}:
            return f"{either(words)}, or `{{KIND: …}}` with a KIND of {either(list(kinds))}"
        case {"anyOf": [first, {"type": "null"}]}:
            return _in_words(first, key)
        case {"type": "integer", "minimum": least, "maximum": most}:
            return f"a whole number from {least:,} to {most:,}"
        case {"type": "number", "minimum": least, "maximum": most}:
            return f"a number from {least:,} to {most:,}"
        case {"type": "boolean"}:
            return "`true` or `false`"
        case {"type": "string"}:
            return PATTERNS.get(key, "text")
        case {"type": "array", "items": {"enum": choices}}:
            return f"a list of {either(choices)}"
        case {"type": "array"}:
            return "a list"
        case {"type": "array", "items": {"$ref": _}}:
            return "a list of sections"
        case {"additionalProperties": {"anyOf": [{"enum": _}, {"type": "object"}]}}:
            return "names, each with `drop`, `pass` or a mask"
        case {"additionalProperties": {"enum": choices}}:
            return f"names or patterns, each with {either(choices)}"
        case _:
            return "a section of keys"


def _get(data: Any, path: Path) -> Any:
    for step in path:
        data = data.get(step) if isinstance(data, dict) else None
    return data


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
    "filter.criteria": "write `transforms: [{topics: …, keep: …}]` at the flow",
    "topic": "write `topics: […]`",
    "tasks.max.enforce": "there are no tasks to size: remove it",
    "connector.class": "a flow is what MM2 has three connectors for: remove it",
    "group.id": "there are no Connect workers, and no group of theirs: remove it",
    "plugin.path": "there are no plugins: remove it",
    "plugin.discovery": "there are no plugins: remove it",
    "exactly.once.source.support": "write `delivery: exactly_once`, which is the default",
    "source.cluster.alias": "write the alias under `clusters`; `topic.prefix`, where names of topics have another",
    "target.cluster.alias": "write the alias under `clusters`; `topic.prefix`, where names of topics have another",
    "source.cluster.bootstrap.servers": "write `bootstrap.servers` at the source, under `clusters`",
    "target.cluster.bootstrap.servers": "write `bootstrap.servers` at the target, under `clusters`",
    "topic.filter.class": "topics are chosen by `topics` and `topics.exclude` alone: remove it",
    "group.filter.class": "groups are chosen by `groups` and `groups.exclude` alone: remove it",
    "config.property.filter.class": "topic configs are chosen by `config.properties.exclude` alone: remove it",
    "forwarding.admin.class": "topics and ACLs are changed by Kafka's own calls: remove it",
    "metric.reporters": "metrics go to CloudWatch: remove it",
    "consumer.poll.timeout.ms": "nothing polls: Lambda's pollers and schedules read: remove it",
    "admin.timeout.ms": "each call has a time limit that fits the function's: remove it",
    "predicates": "write `transforms: [{topics: …}]` at the flow: a rule names its topics",
}
"""Keys of MM2, Connect, Kafka clients and Lambda that have no counterpart here, or another name. No section has one."""

_STATE = "there are no Connect workers, and no topics of theirs: remove it"
_WORKERS = "there are no Connect workers: remove it"
_FAMILIES = {
    "offset.storage.": _STATE,
    "status.storage.": _STATE,
    "config.storage.": _STATE,
    "offset.flush.": _STATE,
    "worker.": _WORKERS,
    "task.": _WORKERS,
    "rest.": _WORKERS,
    "listeners": _WORKERS,
    "dedicated.mode.": _WORKERS,
    "connector.client.config.": _WORKERS,
    "scheduled.rebalance.": _WORKERS,
    "config.providers": "secrets are read from Secrets Manager, by `authentication: {secret: …}`: remove it",
    "key.converter.": "records are bytes and are never converted: remove it",
    "value.converter.": "records are bytes and are never converted: remove it",
    "header.converter.": "records are bytes and are never converted: remove it",
    "errors.": "a record that cannot be written stops its lane, and none is skipped in silence: remove it",
    "topic.creation.": "remote topics get the source's partitions and configs, and `replication.factor`: remove it",
    "transforms.": "write `transforms` of the flow as a list of rules",
    "predicates.": "write `transforms: [{topics: …}]` at the flow: a rule names its topics",
    "producer.override.": "write `producer.…` at the target, under `clusters`; what is missing there is set already",
    "consumer.override.": "write `consumer.…` at the source, under `clusters`; what is missing there is set already",
    "ssl.": "write `authentication: {type: …}` at the cluster, with a `secret`, and maybe a `ca`",
    "sasl.": "write `authentication: {type: …}` at the cluster, with a `secret`",
}
"""The same by the beginnings of keys."""


def elsewhere(key: str) -> str | None:
    """What to write in the place of a key of MM2, Connect, Kafka or Lambda; None where that is not known."""
    return ELSEWHERE.get(key) or next((said for begin, said in _FAMILIES.items() if key.startswith(begin)), None)


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
            what = f"{value!r} is not possible"
            choices = re.findall(r"'([^']*)'", context["expected"])
            hint = _INSTEAD.get((key, str(value))) or _closest(str(value), choices)
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


_INSTEAD = {
    ("oversize", "copy"): "write `trigger.overrides: {TOPIC: schedule}` for topics with such records, which are copied "
    "there in order; and `oversize: stop` for the others, whose lanes then stop before one"
}
_LEAST = {
    "bootstrap.servers": "write one broker or more, for example `[broker-1.example.com:9092]`",
    "clusters": "describe the source and the target, each under its alias",
    "flows": "add a flow, for example `us-east->eu-west: {topics: [orders]}`",
    "subnets": "write the subnet ids, for example `[subnet-0abc]`",
    "security.groups": "write the security group ids, for example `[sg-0abc]`",
}


def _advice_on_key(key: str, path: Path, section: type[Section] | None) -> str:
    if said := elsewhere(key):
        return said
    known = keys_of(section) if section else []
    if whole := [name for name in known if name.startswith(f"{key}.")]:
        return f"write the key in one piece: `{whole[0]}: …`"
    for other, name in sorted(SECTIONS.values(), key=lambda each: each[0] is not FlowSection):
        if name and other is not section and key in keys_of(other):
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
