"""MirrorMaker's keys, and what became of each: an answer for those that nothing was made of, too.

Some have a counterpart here, and some connectors read them; of the others it is known what there is instead.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mirrorless.config.messages import elsewhere, schema_of
from mirrorless.config.problems import Path
from mirrorless.config.types import Section
from mirrorless.flow.filters import check_pattern, split_list
from mirrorless.flow.java_patterns import in_python
from mirrorless.migration.mirrors import (
    CLIENT_KEY,
    CONNECTOR_KEYS,
    ConnectorKind,
    GivenKey,
    Mirror,
    Properties,
    is_access,
)

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


Outcome = Literal["kept", "blank", "instead", "ignored"]
"""What became of a key: a key here; one whose value the operator must write; nothing, and something else instead;
nothing, as with MirrorMaker itself."""

_RANK: Final[Sequence[Outcome]] = ("ignored", "instead", "blank", "kept")

CLIENTS: Final = "it is a setting of Java's clients; those here have their own, which fit functions and jobs"
_OVERRIDDEN: Final = "each mirror has a value of its own, or none runs"
_NOT_OF_RECORDS: Final = "clients of MirrorMaker's own topics have it, not those that read and write records"


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """What became of a key, and why where it did not stay."""

    outcome: Outcome
    why: str = ""


@dataclass(slots=True)
class Conversion:
    """A configuration, as far as it is made.

    Attributes:
        given: every key of the files.
        document: replication.yaml as data.
        comments: what stands above a key, by its path.
        answers: by the files' keys.
        notes: what the operator must know, beside the comments.
    """

    given: Sequence[GivenKey]
    document: dict[str, Any] = field(default_factory=lambda: {"clusters": {}, "defaults": {}, "flows": {}})
    comments: dict[Path, list[str]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[GivenKey, KeyAnswer] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def answer(self, given: GivenKey | None, outcome: Outcome, why: str = "") -> None:
        """Say what became of a key, if there is one. It may serve several mirrors: what it was good for in one wins."""
        if given is None:
            return
        known = self.answers.get(given)
        if known is None or _RANK.index(outcome) > _RANK.index(known.outcome):
            self.answers[given] = KeyAnswer(outcome, why)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def settle(self, mirror: Mirror, key: str, *kinds: ConnectorKind) -> GivenKey | None:
        """The value of a key that several connectors may have: that of the first, with a note where they differ."""
        if not (found := mirror.each(key, *kinds)):
            return None
        first = found[0]
        for other in found[1:]:
            if first.value.strip() != other.value.strip():
                self.answer(other, "instead", f"{first.file} has another, which is taken")
                self.note(f"{mirror.name}: `{key}` differs between files: that of {first.file} is taken")
            else:
                self.answer(other, "kept")
        return first

    def take(self, path: Path, section: dict[str, Any], model: type[Section], key: str, given: GivenKey) -> None:
        """Write a key into a section, unless its value is none that MirrorMaker would have taken."""
        try:
            value, changed = converted(model, key, given.value)
        except ValueError as exc:
            self.answer(given, "instead", f"its value {exc}: MirrorMaker does not start with it")
            return
        section[key] = value
        self.answer(given, "kept")
        if changed:
            self.comments[*path, key].append(changed)


def answer_the_rest(made: Conversion, mirrors: Sequence[Mirror]) -> None:
    """Answer every key that nothing was made of."""
    # Of what the file says of other pairs nothing was made: what it is good for in a mirror that runs comes first.
    for mirror in sorted(mirrors, key=lambda each: not each.written):
        known = set(made.answers) if not mirror.written else set[GivenKey]()
        for key, each in (pair for have in (*mirror.connectors.values(), mirror.worker) for pair in have.items()):
            if changed := changed_bytes(key, each.value):
                made.note(f"{each.file} {each.key}: {changed}")
                made.answer(each, "instead", changed)
        for kind, properties in mirror.connectors.items():
            for key, each in properties.items():
                if each not in known:
                    made.answer(each, *_of_connector(key, kind, mirror))
        if mirror.written:
            _answer_worker(made, mirror.worker)
    aliases = {alias for mirror in mirrors for alias in (mirror.source, mirror.target)}
    for each in made.given:
        if each not in made.answers:
            made.answer(each, *_unread(each, aliases))


def _answer_worker(made: Conversion, worker: Properties) -> None:
    for key, each in worker.items():
        known = without_counterpart(key) or (CLIENTS if is_tuning(key.removeprefix("producer.")) else None)
        if known and not is_access(key):
            made.answer(each, "ignored" if ".override." in key else "instead", known)


def _of_connector(key: str, kind: str, mirror: Mirror) -> tuple[Outcome, str]:
    """The answer for a property of a connector."""
    plain = next((new for new, old in DEPRECATED.items() if old == key), key)
    if plain in READERS:
        reader = READERS[plain]
        alone = f"Mirror{reader[0].capitalize()}Connector alone reads it"
        holds = f"`{plain}` holds" if key != plain else _OVERRIDDEN
        return "ignored", holds if kind in reader else alone
    if key not in CONNECTOR_KEYS and (found := CLIENT_KEY.fullmatch(key)):
        return _of_clients(found[1] or "", found[2], found[3])
    if said := without_counterpart(key):
        return "instead", said
    if mirror.product != "MirrorMaker":
        return "instead", "it is Replicator's own, or its licence's, monitoring's and schemas': nothing here needs it"
    return "ignored", "no connector reads it"


def _of_clients(end: str, role: str, base: str) -> tuple[Outcome, str]:
    if role == "cluster":
        said = None if is_access(base) else without_counterpart(base)
        return ("instead", said) if said else ("ignored", f"of `{end}.cluster.` only addresses and security are read")
    if end and ".override" in role:
        return "ignored", "what has `override` in it belongs to connectors, not to a cluster"
    if role in {"consumer.override", "admin.override"}:
        return "ignored", f"the client has `{role.partition('.')[0]}.{base}`, without `override`"
    if is_access(base):
        return "instead", "all clients of a cluster authenticate alike, by its `authentication`"
    if said := without_counterpart(f"{role.partition('.')[0]}.{base}"):
        return "instead", said
    of_records = (role == "consumer" and end != "target") or role == "producer.override"
    return ("instead", CLIENTS) if of_records else ("ignored", _NOT_OF_RECORDS)


def _unread(given: GivenKey, aliases: Collection[str]) -> tuple[Outcome, str]:
    """The answer for a key that no connector and no worker is given."""
    pair = re.match(r"(.+?)->(.+?)\.", given.key)
    if pair and not (pair[1] in aliases and pair[2] in aliases):
        return "ignored", f"there is no `{pair[1]}->{pair[2]}` between its clusters"
    if pair or given.key in CONNECTOR_KEYS:
        return "ignored", _OVERRIDDEN
    if given.key == "clusters" or re.fullmatch(r"spec\..*(source|target)Cluster", given.key):
        return "kept", ""
    if said := without_counterpart(given.key):
        return "instead", said
    if given.key.startswith(("spec", "metadata", "apiVersion", "kind", "status")):
        return "instead", "nothing runs on Kubernetes"
    return "ignored", "MirrorMaker reads no such key at the top of its file"
