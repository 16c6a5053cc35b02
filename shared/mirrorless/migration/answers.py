"""What became of each key: an answer for those that nothing was made of, too."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mirrorless.config.problems import Path
from mirrorless.config.types import Section
from mirrorless.migration.keys import DEPRECATED, READERS, changed_bytes, converted, is_tuning, without_counterpart
from mirrorless.migration.mirrors import (
    CLIENT_KEY,
    CONNECTOR_KEYS,
    ConnectorKind,
    GivenKey,
    Mirror,
    Properties,
    is_access,
)

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
