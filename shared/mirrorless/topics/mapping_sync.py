"""The sync of event source mappings with discovered topics, as far as a round's time allows.

The changes are independent, so a round may end after any of them and the next one continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as but
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.flow.counts import Count
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.discovery import Discovery, some
from mirrorless.topics.group_start import GroupStart
from mirrorless.topics.mapping_plan import (
    NEAR_SECONDS,
    SET_BY_NO_FLOW,
    MappingOutcome,
    MappingPlan,
    MappingRefused,
    Mappings,
    Request,
    is_ours,
    mapping_requests,
    not_polling,
    plan_mappings,
)
from mirrorless.topics.topic_state import TopicState

DOCUMENT: Final = "mapping-refusals"
"""The key of the document."""

LONGEST_MINUTES: Final = 60
"""Between two attempts, at most."""

_LONGEST_REASON: Final = 300


class MappingRefusal(msgspec.Struct, frozen=True):
    """The last refusal of one topic's mapping."""

    request: str
    """Digest of the refused request."""
    times: int
    """How often it was refused in a row."""
    at: int
    """ms since the epoch."""
    why: str

    @property
    def again_at(self) -> int:
        """When it is tried again, ms since the epoch."""
        return self.at + min(LONGEST_MINUTES, 1 << min(self.times - 1, 10)) * 60_000


@dataclass(slots=True)
class MappingRefusals:
    """The refusals of one flow, from the document that they are kept in.

    Attributes:
        flow: the flow.
        documents: where they are kept.
        clock: ms since the epoch.
    """

    flow: FlowName
    documents: StateStore
    clock: Callable[[], int]
    _known: dict[str, MappingRefusal] = field(default_factory=dict)
    _kept: dict[str, MappingRefusal] = field(default_factory=dict)

    def read(self) -> None:
        """Read what earlier rounds have kept. Raises Retriable when the store does not answer."""
        text = self.documents.read(self.flow, DOCUMENT).get(DOCUMENT)
        self._known = msgspec.json.decode(text, type=dict[str, MappingRefusal]) if text else {}
        self._kept = dict(self._known)

    def waits(self, topic: str, request: dict[str, Any]) -> bool:
        """Whether a request was refused, and its next attempt is not due."""
        known = self._known.get(topic)
        return known is not None and known.request == _digest(request) and self.clock() < known.again_at

    def add(self, topic: str, request: dict[str, Any], why: str) -> None:
        """Remember a refusal."""
        known, digest = self._known.get(topic), _digest(request)
        times = known.times if known is not None and known.request == digest else 0
        self._known[topic] = MappingRefusal(request=digest, times=times + 1, at=self.clock(), why=why[:_LONGEST_REASON])

    def keep(self, wanted: Collection[str]) -> None:
        """Keep the refusals of these topics, whose mappings are still wanted, and store what has changed."""
        self._known = {topic: each for topic, each in self._known.items() if topic in wanted}
        if self._known != self._kept:
            self.documents.write(self.flow, {DOCUMENT: msgspec.json.encode(self._known)})

    def sentences(self, topics: Collection[str]) -> Iterator[str]:
        """What an operator reads about topics that wait."""
        for topic in sorted(topics):
            known = self._known[topic]
            minutes = max(1, -(-(known.again_at - self.clock()) // 60_000))
            often = "once" if known.times == 1 else f"{known.times} times"
            yield (
                f"{self.flow} {topic}: its mapping was refused {often}, and is tried again in {minutes} min, or at "
                f"once when the flow's options change: {known.why}"
            )


def _digest(request: dict[str, Any]) -> str:
    return sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()[:16]


DONE: Final[Mapping[str, Count]] = {
    "created": "mappings-created",
    "updated": "mappings-updated",
    "deleted": "mappings-deleted",
}
"""The figure of each kind of change."""

MOVED_AT_ONCE: Final = 20
"""Mappings that are made anew at a time where the source has other addresses: their topics stand still for minutes."""

Update = tuple[str, Request]
"""The UUID of a mapping, and the fields to change."""

Change = tuple[str, str, Callable[[], MappingOutcome]]
"""The kind of a change, its topic, and the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingSync:
    """Syncs the event source mappings of one flow's topics; of the template's it takes back what no flow sets."""

    settings: FlowSettings
    mappings: Mappings
    start: GroupStart
    documents: StateStore
    refusals: MappingRefusals

    def read(self, deadline: Deadline) -> list[Request]:
        """Every mapping of the flow's function.

        Raises:
            Retriable: Lambda does not list them.
        """
        return self.mappings.list(deadline)

    def sync(
        self,
        found: Discovery,
        states: Mapping[str, TopicState],
        actual: Sequence[Request],
        *,
        returning: Collection[str] = (),
        unready: Collection[str],
        report: RoundReport,
        deadline: Deadline,
    ) -> None:
        """One round.

        Args:
            found: the topics that the flow takes.
            states: their stored states.
            actual: the mappings of the flow's function.
            returning: topics whose mappings continue where a schedule is.
            unready: topics whose mappings are not changed in this round.
            report: gets what went wrong, topic by topic.
            deadline: seconds that are left.
        """
        arns = {str(each["UUID"]): str(each.get("EventSourceMappingArn", "")) for each in actual}
        plan = plan_mappings(
            actual,
            mapping_requests(self.settings, found.mapped, actual),
            flow=self.settings.name,
            keep=found.template | frozenset(unready),
            of_template=found.template & states.keys() - frozenset(unready),
        )
        self.refusals.read()
        waiting = {topic for topic, request in plan.create.items() if self.refusals.waits(topic, request)}
        wanted = plan.create.keys()
        plan = but(plan, create={topic: each for topic, each in plan.create.items() if topic not in waiting})
        updates = {
            topic: update for topic, update in plan.update.items() if not self._is_repeated(states[topic], update)
        }
        moves = _moves(plan, states)
        changes = self._changes(
            plan, updates, moves, states, arns, of_template=found.template, returning=returning, deadline=deadline
        )
        self._watch(found, actual, plan, report, waiting=waiting)
        done, pending = self._carry_out(changes, report, deadline)
        self._forget(plan, states)
        report.counts["mappings-refused"] = report.counts.get("mappings-refused", 0) + len(waiting)
        report.troubles += self.refusals.sentences(waiting)
        self.refusals.keep(wanted)
        if plan.move:
            report.troubles.append(
                f"the source has other addresses, and mappings are made anew for them, {MOVED_AT_ONCE} at a time once "
                f"one of them polls: {some(tuple(plan.move))}"
            )
        report.troubles += [
            f"the mapping of {topic} had {', '.join(sorted(added))}, which no flow sets: it is taken back, and records "
            "that came meanwhile may be changed or missing: run "
            f"`mirrorless verify start '{self.settings.name}' {topic}`"
            for topic, (_, fields) in updates.items()
            if (added := fields.keys() & SET_BY_NO_FLOW)
        ]
        if repeated := tuple(topic for topic in plan.update if topic not in updates):
            fields = ", ".join(sorted(plan.update[repeated[0]][1]))
            report.troubles.append(
                f"mappings that do not keep what was set: {some(repeated)}: {fields}; "
                "something else changes it, or Lambda returns it in another form: set it by hand, or change the "
                "flow"
            )
        if plan.disabled:
            report.troubles.append(
                f"disabled mappings: {some(plan.disabled)}: nothing is replicated until they are enabled again"
            )
        report.counts |= done
        report.counts["mappings-pending"] = pending + len(plan.busy)

    def _watch(
        self,
        found: Discovery,
        actual: Sequence[Request],
        plan: MappingPlan,
        report: RoundReport,
        *,
        waiting: Collection[str],
    ) -> None:
        """Report the mappings that do not poll, those of the template too, as they were before this round."""
        enabled = self.settings.mapping_template.get("Enabled", True)
        wanted = found.mapped | found.template if enabled else frozenset[str]()
        idle = not_polling(actual, wanted, self.settings.name)
        report.counts["mappings-not-polling"] = len(idle)
        # On their way, or reported by another sentence.
        known = {*plan.create, *plan.disabled, *plan.busy, *waiting}
        report.troubles += [
            f"the mapping of {topic} does not poll: {idle[topic]}" for topic in idle if topic not in known
        ]

    def _changes(
        self,
        plan: MappingPlan,
        updates: Mapping[str, Update],
        moves: Mapping[str, str],
        states: Mapping[str, TopicState],
        arns: Mapping[str, str],
        *,
        of_template: Collection[str],
        returning: Collection[str],
        deadline: Deadline,
    ) -> list[Change]:
        """The calls to make; those that start replication first."""

        def create(topic: str, request: Request) -> Callable[[], MappingOutcome]:
            def act() -> MappingOutcome:
                if topic in returning or states[topic].mapping_moves:
                    self.start.commit_positions(states[topic], deadline)
                else:
                    self.start.commit_start(states[topic], deadline)
                return self._create(topic, request, deadline)

            return act

        def update(topic: str, change: Update) -> Callable[[], MappingOutcome]:
            def act() -> MappingOutcome:
                self._check_owner(arns[change[0]], deadline, deployed=topic in of_template)
                self._store(replace(states[topic], mapping_update=_mark(change)))
                return self.mappings.update(*change, deadline)

            return act

        def move(topic: str, uuid: str) -> Callable[[], MappingOutcome]:
            def act() -> MappingOutcome:
                self._check_owner(arns[uuid], deadline)
                # First: a round that ends here makes the mapping anew where its chains stand, all the same.
                self._store(replace(states[topic], mapping_moves=True))
                return self.mappings.delete(uuid, deadline)

            return act

        def delete(uuid: str) -> Callable[[], MappingOutcome]:
            def act() -> MappingOutcome:
                self._check_owner(arns[uuid], deadline)
                return self.mappings.delete(uuid, deadline)

            return act

        return [
            *(("created", topic, create(topic, request)) for topic, request in plan.create.items()),
            *(("updated", topic, update(topic, change)) for topic, change in updates.items()),
            *(("deleted", topic, delete(uuid)) for topic, uuid in plan.delete.items()),
            *(("deleted", topic, move(topic, uuid)) for topic, uuid in moves.items()),
        ]

    def _create(self, topic: str, request: Request, deadline: Deadline) -> MappingOutcome:
        try:
            return self.mappings.create(request, deadline)
        except MappingRefused as exc:
            self.refusals.add(topic, request, exc.what)
            raise

    def _carry_out(
        self, changes: list[Change], report: RoundReport, deadline: Deadline
    ) -> tuple[dict[Count, int], int]:
        """Make the changes. Returns how many of each kind were made, and how many are left."""
        done: dict[Count, int] = dict.fromkeys(DONE.values(), 0)
        report.counts["mappings-refused"] = 0
        pending = 0
        for number, (what, topic, act) in enumerate(changes):
            if deadline() < NEAR_SECONDS:
                return done, pending + len(changes) - number
            try:
                outcome = act()
            except MirrorlessError as exc:
                report.counts["mappings-refused"] += isinstance(exc, MappingRefused)
                report.troubles.append(f"{self.settings.name} {topic}: its mapping was not {what}: {exc}")
                if isinstance(exc, Retriable):
                    # What Lambda or the source did not do for this one, it will hardly do for the rest.
                    return done, pending + len(changes) - number
                continue
            done[DONE[what]] += outcome == "done"
            pending += outcome == "busy"
        return done, pending

    def _check_owner(self, arn: str, deadline: Deadline, *, deployed: bool = False) -> None:
        """Check that a mapping was made by `refresh_topics`: a deployment may have made it in the meantime.

        Args: deployed: whether it is known to be a deployment's, and may be changed.

        Raises:
            MappingRefused: it has other tags.
        """
        if not deployed and not is_ours(self.mappings.tags(arn, deadline), self.settings.name):
            raise MappingRefused(
                f"{arn} has the flow's consumer group, but not its tags",
                hint="wait until the deployment has ended; delete the mapping if it is not needed",
            )

    # An update stops a mapping's pollers for a while, so one without effect is not repeated every minute.

    @staticmethod
    def _is_repeated(state: TopicState, change: Update) -> bool:
        """Whether this update was already made, without effect so far."""
        return state.mapping_update == _mark(change)

    def _forget(self, plan: MappingPlan, states: Mapping[str, TopicState]) -> None:
        """Drop the updates that have taken effect, and the moves of mappings that poll."""
        known = [states[topic] for topic in sorted(plan.good)]
        settled = [
            replace(state, mapping_update="", mapping_moves=state.mapping_moves and state.topic not in plan.polling)
            for state in known
        ]
        self._store(*(new for old, new in zip(known, settled, strict=True) if new != old))

    def _store(self, *states: TopicState) -> None:
        if states:
            self.documents.write(
                self.settings.name, {f"topic/{state.topic}": msgspec.json.encode(state) for state in states}
            )


def _moves(plan: MappingPlan, states: Mapping[str, TopicState]) -> dict[str, str]:
    """The mappings to delete in this round because the source has other addresses, by topic.

    One first: where the new addresses do not answer, one topic stands still and no other.
    """
    most = MOVED_AT_ONCE if plan.polling else 1
    settled = plan.polling | plan.move.keys()
    under_way = sum(state.mapping_moves for topic, state in states.items() if topic not in settled)
    return dict(list(plan.move.items())[: max(0, most - under_way)])


def _mark(change: Update) -> str:
    uuid, fields = change
    return f"{uuid} {json.dumps(fields, sort_keys=True)}"
