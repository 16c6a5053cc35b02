"""How do the real event source mappings get to where they should be? Step by step, as far as a round's time allows.

Every step stands for itself, so a round may end anywhere and the next one goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.ports.groups import Groups, OffsetAndMetadata
from mirrorless.ports.kafka import Deadline
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.runner import RoundReport
from mirrorless.scheduled.settings import ControlSettings
from mirrorless.topics.discovery import Discovery, some
from mirrorless.topics.mapping_plan import (
    MappingOutcome,
    MappingPlan,
    MappingRefused,
    Mappings,
    Request,
    is_ours,
    mapping_request,
    plan_mappings,
)
from mirrorless.topics.topic_state import TopicState

NEAR_SECONDS: Final = 5.0
"""What is kept of the deadline: no further change is begun."""

Update = tuple[str, Request]
"""The UUID of a mapping, and the fields to change."""

Change = tuple[str, str, Callable[[], MappingOutcome]]
"""What is done, to which topic's mapping, and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingSync:
    """The event source mappings of one flow's topics, but for those that it names literally."""

    settings: ControlSettings
    mappings: Mappings
    source_groups: Groups
    documents: StateStore

    def sync(
        self,
        found: Discovery,
        seen: Mapping[str, TopicState],
        *,
        unready: Collection[str],
        report: RoundReport,
        deadline: Deadline,
    ) -> None:
        """One round.

        Args:
            found: the topics that the flow takes.
            seen: what is known of them.
            unready: topics whose mappings are not touched in this round.
            report: told what went wrong, topic by topic.
            deadline: seconds that are left.

        Raises:
            Retriable: Lambda does not list the mappings.
        """
        actual = self.mappings.list(deadline)
        arns = {str(each["UUID"]): str(each.get("EventSourceMappingArn", "")) for each in actual}
        plan = plan_mappings(
            actual,
            {topic: mapping_request(self.settings, topic) for topic in sorted(found.mapped)},
            flow=self.settings.name,
            keep=found.literals | frozenset(unready),
        )
        updates = {topic: update for topic, update in plan.update.items() if not self._is_vain(seen[topic], update)}
        done, pending = self._carry_out(self._changes(plan, updates, seen, arns, deadline), report, deadline)
        self._forget_updates([seen[topic] for topic in sorted(plan.good)])
        if vain := tuple(topic for topic in plan.update if topic not in updates):
            report.troubles.append(
                f"mappings that do not keep what was set: {some(vain)}: {', '.join(sorted(plan.update[vain[0]][1]))}; "
                "somebody else changes it, or Lambda shows it in another form: set it by hand, or change the flow"
            )
        if plan.disabled:
            report.troubles.append(
                f"disabled mappings: {some(plan.disabled)}: nothing is replicated until somebody enables them again"
            )
        report.figures |= {f"mappings-{what}": count for what, count in done.items()}
        report.figures["mappings-pending"] = pending + len(plan.busy)

    def _changes(
        self,
        plan: MappingPlan,
        updates: Mapping[str, Update],
        seen: Mapping[str, TopicState],
        arns: Mapping[str, str],
        deadline: Deadline,
    ) -> list[Change]:
        """What is to be done, what brings records first."""

        def create(topic: str, request: Request) -> Callable[[], MappingOutcome]:
            def act() -> MappingOutcome:
                self._begin(seen[topic], deadline)
                return self.mappings.create(request, deadline)

            return act

        def update(topic: str, change: Update) -> Callable[[], MappingOutcome]:
            def act() -> MappingOutcome:
                self._check_owner(arns[change[0]], deadline)
                self._remember(replace(seen[topic], mapping_update=_mark(change)))
                return self.mappings.update(*change, deadline)

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
        ]

    def _carry_out(self, changes: list[Change], report: RoundReport, deadline: Deadline) -> tuple[dict[str, int], int]:
        """Do it; how many changes of each kind were made, and how many are left."""
        done = dict.fromkeys(("created", "updated", "deleted"), 0)
        pending = 0
        for number, (what, topic, act) in enumerate(changes):
            if deadline() < NEAR_SECONDS:
                return done, pending + len(changes) - number
            try:
                outcome = act()
            except MirrorlessError as exc:
                report.troubles.append(f"{self.settings.name} {topic}: its mapping was not {what}: {exc}")
                if isinstance(exc, Retriable):
                    # What Lambda or the source did not do for this one, it will hardly do for the rest.
                    return done, pending + len(changes) - number
                continue
            done[what] += outcome == "done"
            pending += outcome == "busy"
        return done, pending

    def _check_owner(self, arn: str, deadline: Deadline) -> None:
        """Let nobody else's mapping be touched: a deployment may have made it before we are told that it would.

        Raises:
            MappingRefused: it is not tagged as ours.
        """
        if not is_ours(self.mappings.tags(arn, deadline), self.settings.name):
            raise MappingRefused(
                f"{arn} has the flow's consumer group, and the tags of somebody else",
                hint="wait until the deployment is through; delete it if nobody needs it",
            )

    def _begin(self, seen: TopicState, deadline: Deadline) -> None:
        """Let a mapping's group begin where the flow does. What the group has committed itself stays.

        A round that dies after the commit finds it in the next one.
        """
        if not seen.start or seen.start_committed:
            return
        group = self.settings.consumer_group(seen.topic)
        committed = self.source_groups.committed([group], deadline)
        if group not in committed:
            raise MirrorlessError(
                f"the source does not tell what group {group} has committed",
                where=f"{self.settings.name} {seen.topic}",
                hint="grant the function access to the consumer groups mirrorless.* of the source",
            )
        missing = {
            (seen.topic, partition): OffsetAndMetadata(offset)
            for partition, offset in enumerate(seen.start)
            if (seen.topic, partition) not in committed[group]
        }
        if missing:
            self.source_groups.commit(group, missing, deadline)
        self._remember(replace(seen, start_committed=True))

    # An update stops a mapping's pollers for a while, so one that does not take is not repeated every minute.

    @staticmethod
    def _is_vain(seen: TopicState, change: Update) -> bool:
        """Whether this very update was made already, and the mapping was never seen as it should be."""
        return seen.mapping_update == _mark(change)

    def _forget_updates(self, good: Iterable[TopicState]) -> None:
        """Updates of mappings that are as they should be have taken effect."""
        self._remember(*(replace(seen, mapping_update="") for seen in good if seen.mapping_update))

    def _remember(self, *news: TopicState) -> None:
        if news:
            self.documents.write(
                self.settings.name, {f"topic/{seen.topic}": msgspec.json.encode(seen) for seen in news}
            )


def _mark(change: Update) -> str:
    uuid, fields = change
    return f"{uuid} {json.dumps(fields, sort_keys=True)}"
