"""How do the real event source mappings get to where they should be? Step by step, as far as a round's time allows.

Every step stands for itself, so a round may end anywhere and the next one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless.control_settings import ControlSettings
from mirrorless.discovery import Discovery, some
from mirrorless.documents import Documents
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.groups import Committed, Groups
from mirrorless.mappings import MappingPlan, Mappings, Outcome, Request, mapping_request, plan_mappings
from mirrorless.rounds import Report
from mirrorless.target import Deadline
from mirrorless.topic_watch import SeenTopic

NEAR_SECONDS: Final = 5.0
"""What is kept of the deadline: no further change is begun."""

Change = tuple[str, str, Callable[[], Outcome]]
"""What is done, to which topic's mapping, and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingSync:
    """The event source mappings of one flow's topics, but for those that it names literally."""

    settings: ControlSettings
    mappings: Mappings
    source_groups: Groups
    documents: Documents

    def sync(
        self,
        found: Discovery,
        seen: Mapping[str, SeenTopic],
        *,
        unready: Collection[str],
        report: Report,
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
        plan = plan_mappings(
            self.mappings.list(deadline),
            {topic: mapping_request(self.settings, topic) for topic in sorted(found.mapped)},
            flow=self.settings.name,
            keep=found.literals | frozenset(unready),
        )
        done, pending = self._carry_out(self._changes(plan, seen, deadline), report, deadline)
        if plan.disabled:
            report.troubles.append(
                f"disabled mappings: {some(plan.disabled)}: nothing is replicated until somebody enables them again"
            )
        report.figures |= {f"mappings-{what}": count for what, count in done.items()}
        report.figures["mappings-pending"] = pending + len(plan.busy)

    def _changes(self, plan: MappingPlan, seen: Mapping[str, SeenTopic], deadline: Deadline) -> list[Change]:
        """What is to be done, what brings records first."""

        def create(topic: str, request: Request) -> Callable[[], Outcome]:
            def act() -> Outcome:
                self._begin(seen[topic], deadline)
                return self.mappings.create(request, deadline)

            return act

        def update(uuid: str, fields: Request) -> Callable[[], Outcome]:
            return lambda: self.mappings.update(uuid, fields, deadline)

        def delete(uuid: str) -> Callable[[], Outcome]:
            return lambda: self.mappings.delete(uuid, deadline)

        return [
            *(("created", topic, create(topic, request)) for topic, request in plan.create.items()),
            *(("updated", topic, update(uuid, fields)) for topic, (uuid, fields) in plan.update.items()),
            *(("deleted", topic, delete(uuid)) for topic, uuid in plan.delete.items()),
        ]

    def _carry_out(self, changes: list[Change], report: Report, deadline: Deadline) -> tuple[dict[str, int], int]:
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

    def _begin(self, seen: SeenTopic, deadline: Deadline) -> None:
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
            (seen.topic, partition): Committed(offset)
            for partition, offset in enumerate(seen.start)
            if (seen.topic, partition) not in committed[group]
        }
        if missing:
            self.source_groups.commit(group, missing, deadline)
        known = msgspec.json.encode(replace(seen, start_committed=True))
        self.documents.write(self.settings.name, {f"topic/{seen.topic}": known})
