"""MirrorMaker's keys: those that have a counterpart, who reads them, and what a key without one comes to here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from mirrorless.config.messages import elsewhere, schema_of
from mirrorless.config.types import Section
from mirrorless.flow.filters import check_pattern, split_list
from mirrorless.flow.java_patterns import in_python
from mirrorless.migration.mirrors import CONNECTOR_KEYS, ConnectorKind, GivenKey

_READ: Final[Mapping[tuple[ConnectorKind, ...], str]] = {
    ("source", "checkpoint"): "topics topics.exclude",
    ("source",): """heartbeats.replication.enabled replication.factor refresh.topics.enabled
        refresh.topics.interval.seconds sync.topic.configs.enabled sync.topic.configs.interval.seconds
        config.properties.exclude use.defaults.from sync.topic.acls.enabled sync.topic.acls.interval.seconds
        emit.offset-syncs.enabled offset-syncs.topic.replication.factor""",
    ("checkpoint",): """emit.checkpoints.enabled emit.checkpoints.interval.seconds
        checkpoints.topic.replication.factor sync.group.offsets.enabled sync.group.offsets.interval.seconds groups
        groups.exclude""",
    ("heartbeat",): """emit.heartbeats.enabled emit.heartbeats.interval.seconds
        heartbeats.topic.replication.factor""",
    ("source", "checkpoint", "heartbeat"): "replication.policy.internal.topic.separator.enabled",
}
READERS: Final = {key: kinds for kinds, keys in _READ.items() for key in keys.split()}
"""Keys of a flow that mean the same here, and the connectors that read them, the first of which decides."""

DEPRECATED: Final = {
    "topics.exclude": "topics.blacklist",
    "groups.exclude": "groups.blacklist",
    "config.properties.exclude": "config.properties.blacklist",
}

PRODUCER: Final = {
    "compression.type": "producer.compression.type",
    "linger.ms": "producer.linger.ms",
    "batch.size": "producer.batch.size",
    "max.request.size": "producer.message.max.bytes",
}
CONSUMER: Final = {
    "client.rack": "consumer.client.rack",
    "fetch.min.bytes": "consumer.fetch.min.bytes",
    "fetch.max.wait.ms": "consumer.fetch.wait.max.ms",
    "max.partition.fetch.bytes": "consumer.max.partition.fetch.bytes",
}
"""Settings of the client that writes records, or reads them, and the keys of its cluster."""

_TUNING: Final = re.compile(
    r"max\.poll\..*|.*\.buffer\.bytes|buffer\.memory|.*timeout\.ms|retr.*|.*backoff.*|fetch\..*|metadata\..*|client\.id"
    r"|connections\..*|partitioner\..*|interceptor\.classes|metric.*|max\.(block|request|partition|in).*|message\.max\.bytes"
    r"|acks|enable\..*|auto\..*|batch\.size|linger\.ms|compression\..*|isolation\.level|group\..*|readahead.*"
)
_SECRET: Final = re.compile(r"password|secret|jaas|token|credential|username|auth|url|info|\.key\b", re.IGNORECASE)
_HARMLESS: Final = re.compile(r"[\w.,*$ {}-]{1,120}")


def may_be_shown(given: GivenKey) -> bool:
    """Whether the value of a key is surely no secret: the key, or its end, is a known one."""
    words = given.key.split(".")
    ends = [".".join(words[at:]) for at in range(len(words))]
    known = any(end in CONNECTOR_KEYS or is_tuning(end) or elsewhere(end) for end in ends)
    return known and not _SECRET.search(given.key) and _HARMLESS.fullmatch(given.value) is not None


_CONVERTERS: Final = {"key.converter": "keys", "value.converter": "values", "header.converter": "headers"}


def changed_bytes(key: str, value: str) -> str | None:
    """What a converter did to records; None where it left them alone, or the key is no converter's."""
    parts, name = _CONVERTERS.get(key.removeprefix("src.")), value.strip().rpartition(".")[2]
    if parts is None or name == "ByteArrayConverter":
        return None
    made = " (texts such as `[B@312b1dae`)" if name == "StringConverter" else ""
    return f"{name} made other bytes of {parts}{made}; copies so far differ from their source; here bytes stay"


_WITHOUT: Final = {
    "name": "a flow is called by its clusters",
    "source.cluster.alias": "names of topics are kept, and only MirrorMaker's own topics had it",
    "target.cluster.alias": "only metrics and MirrorMaker's own topics had it",
    "alias": "a cluster has its alias here",
    "offset-syncs.topic.location": "offset syncs, if any are wanted, are on the target",
    "ssl.endpoint.identification.algorithm": "names in certificates are always verified",
    "auto.offset.reset": "it is `start` of a flow: `earliest`, unless `latest` is written",
}
"""What is said otherwise than by `config check`."""


def is_tuning(key: str) -> bool:
    """Whether a key is one by which Java's clients are tuned."""
    return _TUNING.fullmatch(key) is not None


def without_counterpart(key: str) -> str | None:
    """What becomes of a key that has no counterpart; None where nothing is known of it."""
    if key in _WITHOUT:
        return _WITHOUT[key]
    return None if (found := elsewhere(key)) is None else found.removesuffix(": remove it")


def converted(section: type[Section], key: str, text: str) -> tuple[Any, str | None]:
    """A value in this project's form, and what was changed of it.

    Raises:
        ValueError: it is none that MirrorMaker would have taken.
    """
    schema, text = schema_of(section)["properties"][key], text.strip()
    match next(each for each in (schema, *schema.get("anyOf", ())) if "type" in each):
        case {"type": "boolean"}:
            if text.lower() not in {"true", "false"}:
                raise ValueError("is neither `true` nor `false`")
            return text.lower() == "true", None
        case {"type": "integer"} as limits:
            try:
                number = int(text)
            except ValueError:
                raise ValueError("is no whole number") from None
            fitting = min(max(number, limits["minimum"]), limits["maximum"])
            said = f"MirrorMaker had {number}; the {'least' if fitting > number else 'most'} here is {fitting}"
            return fitting, None if fitting == number else said
        case {"type": "array"}:
            return _entries(text)
    return text, None


def _entries(text: str) -> tuple[list[str], str | None]:
    """A list, whose expressions are Java's. What has quotes in it is no name that Kafka takes."""
    given = list(dict.fromkeys(split_list(text)))
    quoted = [each for each in given if {'"', "'"} & set(each)]
    found, changed = [], []
    for each in given:
        python = in_python(each)
        fits = python != each and check_pattern(python) is None
        if each not in quoted:
            found.append(python if fits else each)
            changed += [f"`{each}` in Python's form"] if fits else []
    changed += [f"without {each}: quotes were part of it, so it matched nothing" for each in quoted]
    return found, "; ".join(changed) or None
