"""The source's records as the flow copies them: with the origin header, or as the rule of their run makes them.

Each run is proved by its own rule, not by the flow's present one. The rule decides anew about every record of the run,
and the run must say the same:

    the rule           the run has it    becomes
    keeps it           in a span         the copy, to be compared
    keeps it           as filtered       a record that is missing
    leaves it out      as filtered       nothing
    leaves it out      in a span         a copy that is none: it has the place, and is equal to nothing
    cannot be applied  in either         the same

What is in neither needs an explanation, whatever the rule says of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final, Self

from mirrorless.chain.run import Run
from mirrorless.errors import ConfigurationError
from mirrorless.records.origin import OriginRule
from mirrorless.records.record import Record
from mirrorless.verify.findings import LaneVerdict

if TYPE_CHECKING:
    from mirrorless.transforms.masked_values import MaskedValues
    from mirrorless.transforms.transform import TopicTransform

LEAST_CHARACTERS: Final = 4
"""Of a value that is searched for in its copy: shorter ones stand anywhere by chance."""

RuleById = Callable[[bytes], "TopicTransform"]
"""The rule of an id, ready for the lane's topic. Raises ConfigurationError: it, or a key that it needs, is gone."""


class CopyByRule(Record, gc=False):
    """What the rule of a run makes of a record: a copy, or none."""

    no_copy: str = ""
    """Why there should be none; then it has nothing of the record, and is equal to nothing."""

    @classmethod
    def of(cls, copy: Record) -> Self:
        """A copy."""
        return cls(copy.offset, copy.timestamp, copy.headers, copy.key, copy.value)

    @classmethod
    def none(cls, record: Record, why: str) -> Self:
        """No copy, for a reason in words."""
        return cls(record.offset, record.timestamp, [(why, None)], no_copy=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCopies:
    """Implements `mirrorless.verify.walk.SeenAs` on the source of one lane."""

    origin: OriginRule | None
    partition: int
    rules: RuleById
    verdict: LaneVerdict
    looks: bool
    """Whether copies are searched for what their rule masks: in one reading of two."""
    _ready: dict[bytes, tuple[TopicTransform, MaskedValues] | None] = field(default_factory=dict)

    def can_make(self, run: Run) -> bool:
        """Whether the copies of a run can be made again; if not, it is noted.

        Raises:
            Retriable: what keeps rules or keys does not answer.
        """
        return not run.rule or self._rule_of(run) is not None

    def _rule_of(self, run: Run) -> tuple[TopicTransform, MaskedValues] | None:
        from mirrorless.transforms.masked_values import masked_values  # noqa: PLC0415 -- only where there is a rule

        if run.rule not in self._ready:
            self._ready[run.rule] = None
            try:
                rule = self.rules(run.rule)
                self._ready[run.rule] = rule, masked_values(rule)
            except ConfigurationError as exc:
                self.verdict.note(f"runs of rule {run.rule.hex()} cannot be compared with the source: {exc}")
        return self._ready[run.rule]

    def __call__(self, run: Run | None, records: list[Record]) -> list[Record]:
        """What the records of a run's range should have become."""
        if run is None or not run.rule:
            return records if self.origin is None else [self.origin.marked(each) for each in records]
        ready = self._rule_of(run)
        copied = _offsets((span.upstream, span.upstream + span.length) for span in run.spans)
        filtered = _offsets(run.filtered)
        if ready is None:
            return [each for each in records if each.offset not in filtered]
        rule, masked = ready
        found: list[Record] = []
        for record in records:
            if record.offset not in copied and record.offset not in filtered:
                found.append(record)
            elif (copy := self._copy(rule, record)) is not None:
                found.append(copy)
                if self.looks and record.offset in copied and not copy.no_copy:
                    self._look(run, masked, record, copy)
            elif record.offset in copied:
                found.append(CopyByRule.none(record, "its rule leaves it out"))
        return found

    def _copy(self, rule: TopicTransform, record: Record) -> CopyByRule | None:
        from mirrorless.transforms.transform import TransformFailed  # noqa: PLC0415 -- only where there is a rule

        try:
            copy = rule.apply(record, self.partition)
        except TransformFailed as exc:
            return CopyByRule.none(record, f"its rule cannot be applied to it: {exc}")
        return None if copy is None else CopyByRule.of(copy)

    def _look(self, run: Run, masked: MaskedValues, record: Record, copy: Record) -> None:
        """Search a copy for values that its rule masks or drops: they may stand in another field, too."""
        from mirrorless.transforms.transform import TransformFailed  # noqa: PLC0415 -- see `_copy`

        parts = (copy.key, copy.value, *(value for _, value in copy.headers))
        text = b"\0".join(each for each in parts if each).lower()
        try:
            shows = any(form in text for value in masked(record) for form in _forms(value))
        except TransformFailed:
            return  # it is not counted as searched
        self.verdict.rules[run.rule.hex()].look(record.offset, shows=shows)


def _offsets(rows: Iterable[tuple[int, int]]) -> set[int]:
    return set(chain.from_iterable(range(first, following) for first, following in rows))


def _forms(value: str) -> Iterator[bytes]:
    """A value in small letters as headers, JSON and Avro's bytes may have it; nothing for one that is too short."""
    if len(value) >= LEAST_CHARACTERS:
        texts = (value, *(json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True)))
        yield from (text.encode(errors="surrogateescape").lower() for text in texts)
        with suppress(UnicodeEncodeError):
            yield value.encode("latin-1").lower()
