"""`mirrorless transform test FLOW TOPIC`: what a topic's rule makes of its records, or should; nothing is written.

No key is read: pseudonyms and ciphertexts are by keys that are made up for one test.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from secrets import token_bytes
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from cli.args import BadInput, add_deployment, add_flow, whole
from cli.clusters import offsets_of
from cli.deployment import DeployedFlows
from cli.output import TableColumns, console, picked, print_json, say, table
from mirrorless.chain.lane import Lane
from mirrorless.reports.format import numbered
from mirrorless.transforms.rules import KeyRing, Rule, RuleInForce
from mirrorless.transforms.suggestions import PartTexts, Suggestion, parts_of, path_of, suggest

if TYPE_CHECKING:
    from mirrorless.config import Flow
    from mirrorless.flow.settings import FlowSettings
    from mirrorless.records.record import Record

_RECORDS: Final = whole("a number of records", 10_000, least=1)

SHOWN_RECORDS: Final = 20
"""In tables, first those that the rule does not fit."""

SHOWN_CHARACTERS: Final = 60
"""Of a part of a record, in a table."""

_OUTCOMES: Final = {
    "changed": "changed",
    "unchanged": "nothing to change",
    "filtered": "left out",
    "lost": "left out, and listed as a loss",
    "stops": "STOPS ITS LANE",
}

PartRow = tuple[str, str | None, str | None, str]
"""A part of a record: its place, before, after, and in a word what becomes of it."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `transform` and `transform test`."""
    transform = subparsers.add_parser("transform", help="try the rules by which records are changed on their way")
    commands = transform.add_subparsers(required=True, metavar="COMMAND")
    test = commands.add_parser(
        "test",
        help="show what the rule of a topic makes of its records, or suggest what it should mask",
        description="Read records of the source, and show each before and after the topic's rule, what is left out, "
        "and what would stop its lane (exit code 1). The values are shown, which no log, metric or error does. Nothing "
        "is written, and no key is read: pseudonyms and ciphertexts are by keys that are made up for the test.",
        epilog="Example: mirrorless transform test 'us-east->eu-west' customers --records 5",
    )
    add_flow(test)
    test.add_argument("topic", metavar="TOPIC", help="the topic's name on the source")
    test.add_argument(
        "--records", metavar="N", type=_RECORDS, default=SHOWN_RECORDS, help="at most (default: %(default)s)"
    )
    test.add_argument("--oldest", action="store_true", help="the oldest records, instead of the newest")
    help_ = "only say what looks like personal data in the copies, and print entries to mask it"
    test.add_argument("--find-pii", action="store_true", help=help_)
    add_deployment(test, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What becomes of one record."""

    lane: Lane
    record: Record
    outcome: str
    """See `_OUTCOMES`."""
    why: str = ""
    before: PartTexts
    after: PartTexts
    """Nothing where it is not copied."""
    is_avro: bool

    def rows(self) -> Iterator[PartRow]:
        """Its parts."""
        for part in dict.fromkeys((*self.before, *self.after)):
            before, after, mark = self.before.get(part), self.after.get(part), ""
            if self.after and part not in self.after:
                mark = "gone"
            elif self.after and (part not in self.before or before != after):
                mark = "changed"
            path = path_of(part, numbered=True)
            name = {"fields": path, "headers": f"header {path}"}.get(part.of, part.of)
            yield name, before, after, mark


def run(arguments: argparse.Namespace) -> int:
    """Show what the rule makes of some records. Exit code 1 where one would stop its lane."""
    deployment = DeployedFlows.of(arguments)
    flow, topic = deployment.flow(deployment.flow_name(arguments.flow)), arguments.topic
    settings = flow.all_settings()
    rule = settings.rule_of(topic)
    if rule is None and not arguments.find_pii:
        if arguments.json:
            print_json({"rule": None, "counts": {}, "records": []})
        else:
            say(f"No entry of `transforms` matches {topic}: its records are copied as they are.")
        return 0
    sys.path.insert(0, str(deployment.configuration.folder))  # one's own function lies there
    none = Rule(topics=(topic,), format="avro" if flow.source.schema_registry else "json")
    trials = list(_tried(flow, topic, rule or none, _read(settings, arguments)))
    if arguments.find_pii:
        _print_suggestions(flow, topic, rule, trials, as_json=arguments.json)
    elif rule is not None:
        _print_trials(topic, rule, trials, as_json=arguments.json)
    return 1 if any(each.outcome == "stops" for each in trials) else 0


def _read(settings: FlowSettings, arguments: argparse.Namespace) -> list[tuple[int, Record]]:
    """Records of the source, each with its partition."""
    topic, source = arguments.topic, offsets_of(settings.source, settings.name)
    if topic not in source.partitions():
        hint = f"`mirrorless topics '{settings.name}'` lists what the flow takes"
        raise BadInput(f"{settings.name.source} has no topic {topic}", where=str(settings.name), hint=hint)
    return source.sample(topic, arguments.records, oldest=arguments.oldest)


def _tried(flow: Flow, topic: str, rule: Rule, records: Iterable[tuple[int, Record]]) -> Iterator[Trial]:
    from mirrorless.adapters.schema_registry import writer_schemas  # noqa: PLC0415 -- help needs no client of it
    from mirrorless.transforms.avro_fields import AvroFields  # noqa: PLC0415 -- nor ciphers
    from mirrorless.transforms.masks import KeysInUse, TransformFailed  # noqa: PLC0415 -- same
    from mirrorless.transforms.transform import function_hash, make_ready  # noqa: PLC0415 -- same

    keys = {name: KeyRing(each.version, {each.version: token_bytes(32)}) for name, each in flow.keys.items()}
    registry = flow.source.schema_registry if rule.format == "avro" else None
    schemas = writer_schemas(registry.settings() if registry else None, flow.source.region)
    avro = AvroFields("pass", KeysInUse(rings=keys, topic=topic), schemas) if schemas else None
    own = function_hash(rule.function) if rule.function else ""
    known = flow.all_settings().keys
    transform = make_ready(RuleInForce.of(rule, known, own), keys, topic, schemas)
    without_own = make_ready(RuleInForce.of(replace(rule, function=""), known), keys, topic, schemas)

    def become(record: Record, number: int) -> tuple[str, str, Record | None]:
        try:
            copy = transform.apply(record, number)
        except TransformFailed as exc:
            return "stops" if rule.on_error == "stop" else "lost", str(exc), None
        if copy is None:
            by_own = without_own.apply(record, number) is not None
            return "filtered", f"{rule.function} says so" if by_own else "`keep` is false", None
        return "changed", "", copy

    def as_json(record: Record) -> Record:
        """With JSON for its value, where a schema says what that means."""
        if avro is not None and record.value is not None:
            with suppress(TransformFailed):
                return replace(record, value=msgspec.json.encode(avro.decoded(record.value)))
        return record

    for number, record in records:
        outcome, why, copy = become(record, number)
        readable = as_json(record)
        before, after = parts_of(readable), {} if copy is None else parts_of(as_json(copy))
        yield Trial(
            lane=Lane(flow.name, topic, number),
            record=record,
            outcome="unchanged" if after == before else outcome,
            why=why,
            before=before,
            after=after,
            is_avro=readable is not record,
        )


def _print_trials(topic: str, rule: Rule, trials: Sequence[Trial], *, as_json: bool) -> None:
    counts = Counter(each.outcome for each in trials)
    if as_json:
        records = [
            {"partition": each.lane.partition, "upstream_offset": each.record.offset}
            | picked(each, "outcome why")
            | {"parts": [dict(zip(("part", "before", "after", "mark"), row, strict=True)) for row in each.rows()]}
            for each in trials
        ]
        print_json({"rule": picked(rule, "topics version"), "counts": counts, "records": records})
        return
    shown = sorted(trials, key=lambda each: each.outcome not in {"stops", "lost"})[:SHOWN_RECORDS]
    for each in shown:
        title = f"{each.lane.at(each.record.offset)}: {_OUTCOMES[each.outcome]}{each.why and f', {each.why}'}"
        console().print(table(title, _COLUMNS, each.rows()), "")
    if more := len(trials) - len(shown):
        say(f"{numbered(more, 'more record')}: `--json` shows them all.", "")
    told = ", ".join(f"{counts[outcome]:,} {words}" for outcome, words in _OUTCOMES.items() if counts[outcome])
    say(f"{numbered(len(trials), 'record')} of {topic}, by its rule in version {rule.version}: {told or 'nothing'}.")
    if rule.keys:
        say("Pseudonyms and ciphertexts are by keys made up for this test: those of copies are others.")


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


_COLUMNS: Final[TableColumns[PartRow]] = (
    ("=part", itemgetter(0)),
    ("before", lambda row: _cut(row[1])),
    ("after", lambda row: _cut(row[2])),
    ("=", itemgetter(3)),
)


def _print_suggestions(flow: Flow, topic: str, rule: Rule | None, trials: Sequence[Trial], *, as_json: bool) -> None:
    copied = [each for each in trials if each.after]
    found = suggest((each.before, each.after) for each in copied)
    entry = "\n".join(entry_of(flow, topic, found, copied)) if found else ""
    if as_json:
        print_json({"records": len(copied), "suggestions": [each._asdict() for each in found], "entry": entry})
        return
    say(f"# {numbered(len(found), 'suggestion')} by {numbered(len(copied), 'record')}; others may have more in them.")
    if found and rule is not None:
        say(f"# For the entry that holds for {topic} now. Raise its version, which is {rule.version}.")
    if found:
        say(*entry.splitlines())


def entry_of(flow: Flow, topic: str, found: Sequence[Suggestion], copied: Sequence[Trial]) -> Iterator[str]:
    """Lines of YAML for replication.yaml, which do what was suggested.

    Args:
        flow: for which they are.
        topic: of the source.
        found: what was suggested; at least one thing.
        copied: in which it was looked for.
    """
    from mirrorless.config.key_edits import scalar  # noqa: PLC0415 -- YAML costs a tenth of a second

    key = next(iter(flow.keys), "pii")
    actions = {"drop": "drop", "keep.last": "{keep.last: 4}"} | {
        each: f"{{{each}: {scalar(key)}}}" for each in ("hmac", "encrypt")
    }
    if not flow.keys and any(each.action in {"hmac", "encrypt"} for each in found):
        yield from ("keys:", f"  {key}: {{secret: mirrorless/{key}}}")
    yield from ("flows:", f"  {flow.name}:", "    transforms:", f"      - topics: [{scalar(topic)}]")
    for of, some in groupby(found, attrgetter("of")):
        if of == "value" or (of == "fields" and any(each.is_avro for each in copied)):
            yield f"        format: {'bytes' if of == 'value' else 'avro'}"
        if of in {"fields", "headers"}:
            yield f"        {of}:"
        for each in some:
            name = f"          {scalar(each.path)}" if each.path else f"        {of}"
            yield f"{name}: {actions[each.action]}  # {each.kind}, in {each.records:,} of {len(copied):,} records"
