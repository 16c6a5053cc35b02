"""A flow's pause: an order of the operator, and what `refresh_topics` does by it to event source mappings.

    pause            the order; only commands write it. While it stands, `refresh_topics` disables every mapping of the
                     flow, those of the template too, and creates, changes and enables none; `pull` reads no topic.
    pause/mappings   the mappings that were disabled by it, written before they are: these are enabled again, and no
                     others, so that one which an operator had disabled before stays so.

Groups, heartbeats, remote topics, configs and ACLs go on: they move no record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.mapping_plan import NEAR_SECONDS, Mappings, Request, topic_of

ORDER: Final = "pause"
MAPPINGS: Final = "pause/mappings"
"""Keys of the documents."""


class PauseOrder(msgspec.Struct, frozen=True):
    """The document `pause`."""

    at: int
    """When it was given, ms since the epoch."""
    reason: str = ""
    resumed_at: int | None = None
    """When it was taken back."""


class PausedMappings(msgspec.Struct, frozen=True):
    """The document `pause/mappings`."""

    disabled: tuple[str, ...] = ()
    """UUIDs of the mappings that the pause has disabled."""
    quiet_at: int | None = None
    """Since when no mapping of the flow polls, ms since the epoch; None while one may."""
    order_at: int = 0
    """Of the order that this is about."""


class FlowPause(msgspec.Struct, frozen=True):
    """Both documents."""

    order: PauseOrder | None = None
    mappings: PausedMappings = PausedMappings()

    @property
    def paused(self) -> bool:
        """Whether the order stands."""
        return self.order is not None and self.order.resumed_at is None

    @property
    def quiet_at(self) -> int | None:
        """Since when no mapping polls, by this order; None while one may."""
        by_this = self.order is not None and self.order.at == self.mappings.order_at
        return self.mappings.quiet_at if self.paused and by_this else None


def read_pause(documents: StateStore, flow: FlowName) -> FlowPause:
    """The pause of a flow.

    Raises:
        Retriable: the store does not answer.
    """
    stored = documents.read(flow, ORDER)
    order, mappings = stored.get(ORDER), stored.get(MAPPINGS)
    return FlowPause(
        order=None if order is None else msgspec.json.decode(order, type=PauseOrder),
        mappings=PausedMappings() if mappings is None else msgspec.json.decode(mappings, type=PausedMappings),
    )


def order_pause(documents: StateStore, flow: FlowName, *, reason: str, now: int) -> bool:
    """Give the order; False where it stands already.

    Raises:
        Retriable: the store does not answer.
    """
    if read_pause(documents, flow).paused:
        return False
    documents.write(flow, {ORDER: msgspec.json.encode(PauseOrder(at=now, reason=reason))})
    return True


def order_resume(documents: StateStore, flow: FlowName, *, now: int) -> bool:
    """Take the order back; False where none stands.

    Raises:
        Retriable: the store does not answer.
    """
    pause = read_pause(documents, flow)
    if pause.order is None or not pause.paused:
        return False
    documents.write(flow, {ORDER: msgspec.json.encode(replace(pause.order, resumed_at=now))})
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingPause:
    """The order's effect on the mappings of one flow. Each round does what is left of it."""

    flow: FlowName
    mappings: Mappings
    documents: StateStore
    clock: Callable[[], int]
    """ms since the epoch."""

    def act(self, actual: Sequence[Request], report: RoundReport, deadline: Deadline) -> bool:
        """One round.

        Args:
            actual: the mappings of the flow's function, as the API describes them.
            report: gets what went wrong.
            deadline: seconds that are left.

        Returns:
            whether the mappings are to be left alone otherwise.

        Raises:
            Retriable: the store does not answer.
        """
        pause = read_pause(self.documents, self.flow)
        ours = {str(each["UUID"]): each for each in actual if topic_of(each, self.flow) is not None}
        if pause.order is not None and pause.paused:
            self._pause(pause.order, pause, ours, report, deadline)
            return True
        if pause.mappings.disabled:
            self._resume(pause.mappings, ours, report, deadline)
            return True
        return False

    def _pause(
        self, order: PauseOrder, pause: FlowPause, ours: dict[str, Request], report: RoundReport, deadline: Deadline
    ) -> None:
        polling = [uuid for uuid, each in ours.items() if each.get("State") not in {"Disabled", "Disabling"}]
        quiet = all(each.get("State") == "Disabled" for each in ours.values())
        done = PausedMappings(
            disabled=tuple(sorted({*pause.mappings.disabled, *polling} & ours.keys())),
            quiet_at=(pause.quiet_at or self.clock()) if quiet else None,
            order_at=order.at,
        )
        self._write(pause.mappings, done)
        self._switch(polling, on=False, report=report, deadline=deadline)

    def _resume(
        self, before: PausedMappings, ours: dict[str, Request], report: RoundReport, deadline: Deadline
    ) -> None:
        left = [uuid for uuid in before.disabled if uuid in ours and ours[uuid].get("State") != "Enabled"]
        self._write(before, PausedMappings(disabled=tuple(left)))
        disabled = [uuid for uuid in left if ours[uuid].get("State") == "Disabled"]
        self._switch(disabled, on=True, report=report, deadline=deadline)

    def _switch(self, uuids: Iterable[str], *, on: bool, report: RoundReport, deadline: Deadline) -> None:
        """Enable or disable mappings, as far as the time allows."""
        report.counts["mappings-updated"] = 0
        for uuid in uuids:
            if deadline() < NEAR_SECONDS:
                return
            try:
                done = self.mappings.update(uuid, {"Enabled": on}, deadline)
            except MirrorlessError as exc:
                report.troubles.append(f"{self.flow}: mapping {uuid} was not {'en' if on else 'dis'}abled: {exc}")
                if isinstance(exc, Retriable):
                    return
            else:
                report.counts["mappings-updated"] += done == "done"

    def _write(self, before: PausedMappings, now: PausedMappings) -> None:
        if now != before:
            self.documents.write(self.flow, {MAPPINGS: msgspec.json.encode(now)})
