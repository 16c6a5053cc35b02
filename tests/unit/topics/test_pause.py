"""The pause of a flow: what is disabled by it, what is enabled after it, and when nothing is under way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.mapping_plan import MappingOutcome, Request
from mirrorless.topics.pause import MappingPause, order_pause, order_resume, read_pause
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments


@dataclass
class Account:
    """Mappings that take a round to be enabled or disabled."""

    states: dict[str, str]
    answers: int = 1_000
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    now: int = 1_000_000
    updates: list[tuple[str, bool]] = field(default_factory=list)

    def update(self, uuid: str, fields: Request, deadline: Deadline) -> MappingOutcome:
        """See `Mappings.update`."""
        if len(self.updates) >= self.answers:
            raise Retriable("throttled")
        self.updates.append((uuid, fields["Enabled"]))
        self.states[uuid] = "Enabling" if fields["Enabled"] else "Disabling"
        return "done"

    def round(self) -> bool:
        """One round of `refresh_topics`, a minute later; what was under way has settled."""
        self.now += 60_000
        settled = {"Enabling": "Enabled", "Disabling": "Disabled"}
        self.states = {uuid: settled.get(state, state) for uuid, state in self.states.items()}
        actual = [
            {"UUID": uuid, "State": state, "SelfManagedKafkaEventSourceConfig": {"ConsumerGroupId": group(uuid)}}
            for uuid, state in self.states.items()
        ]
        pause = MappingPause(flow=FLOW, mappings=self, documents=self.documents, clock=lambda: self.now)  # type: ignore[arg-type]
        return pause.act(actual, RoundReport(), lambda: 60.0)

    def rounds(self, count: int) -> None:
        """Some of them."""
        for _ in range(count):
            self.round()

    def polling(self) -> set[str]:
        """The mappings that poll."""
        return {uuid for uuid, state in self.states.items() if state == "Enabled"}


def group(uuid: str) -> str:
    return "another" if uuid.startswith("other") else f"mirrorless.{FLOW.slug}.{uuid}"


def account(enabled: Iterable[str] = ("found", "literal"), disabled: Iterable[str] = ("by-hand",)) -> Account:
    return Account(dict.fromkeys(enabled, "Enabled") | dict.fromkeys(disabled, "Disabled") | {"other": "Enabled"})


def test_a_pause_stops_every_mapping_of_the_flow_and_its_end_starts_those_and_no_others() -> None:
    flow = account()
    assert not flow.round(), "nothing was ordered"
    assert order_pause(flow.documents, FLOW, reason="ticket", now=flow.now)

    assert flow.round()
    assert read_pause(flow.documents, FLOW).quiet_at is None, "pollers are still ending"
    assert flow.round()
    quiet = read_pause(flow.documents, FLOW).quiet_at
    assert (quiet, flow.polling()) == (flow.now, {"other"})
    flow.rounds(3)
    assert read_pause(flow.documents, FLOW).quiet_at == quiet, "since then"
    assert flow.updates == [("found", False), ("literal", False)], "each once"

    assert order_resume(flow.documents, FLOW, now=flow.now)
    assert flow.round(), "mappings are not changed otherwise"
    flow.rounds(2)
    assert flow.polling() == {"found", "literal", "other"}, "and not what an operator had disabled"
    assert read_pause(flow.documents, FLOW).mappings.disabled == ()
    assert not flow.round()


def test_orders_may_be_given_again() -> None:
    flow = account()
    assert not order_resume(flow.documents, FLOW, now=flow.now)
    assert order_pause(flow.documents, FLOW, reason="one", now=flow.now)
    assert not order_pause(flow.documents, FLOW, reason="two", now=flow.now + 5)
    order = read_pause(flow.documents, FLOW).order
    assert order is not None
    assert (order.reason, order.at) == ("one", flow.now)
    assert order_resume(flow.documents, FLOW, now=flow.now)
    assert not order_resume(flow.documents, FLOW, now=flow.now)


def test_a_mapping_that_a_deployment_enables_or_makes_meanwhile_is_disabled_again() -> None:
    flow = account()
    order_pause(flow.documents, FLOW, reason="", now=flow.now)
    flow.rounds(2)
    flow.states |= {"literal": "Enabled", "new": "Enabled"}

    flow.round()

    assert read_pause(flow.documents, FLOW).quiet_at is None
    flow.round()
    assert flow.polling() == {"other"}
    order_resume(flow.documents, FLOW, now=flow.now)
    flow.rounds(3)
    assert flow.polling() == {"found", "literal", "new", "other"}


def test_a_second_pause_is_not_quiet_by_the_first() -> None:
    flow = account(enabled=(), disabled=("by-hand",))
    order_pause(flow.documents, FLOW, reason="", now=flow.now)
    flow.round()
    order_resume(flow.documents, FLOW, now=flow.now)
    flow.round()
    flow.states["by-hand"] = "Enabled"

    order_pause(flow.documents, FLOW, reason="", now=flow.now + 1)

    assert read_pause(flow.documents, FLOW).quiet_at is None


@pytest.mark.parametrize("answers", range(5))
def test_rounds_that_die_anywhere_are_made_up_for(answers: int) -> None:
    """A paused flow is resumed after any number of answered calls, and ends as it began."""
    flow = account(enabled=("a", "b", "c", "d"))
    began = flow.polling()
    order_pause(flow.documents, FLOW, reason="", now=flow.now)
    flow.answers = answers
    flow.round()
    flow.answers = 1_000
    order_resume(flow.documents, FLOW, now=flow.now)
    flow.rounds(4)

    assert flow.polling() == began
    assert len(flow.updates) >= answers
