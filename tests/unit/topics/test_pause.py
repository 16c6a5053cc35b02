"""The pause of a flow: what is disabled by it, what is enabled after it, and when nothing is under way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from mirrorless.chain.lane import FlowName
from mirrorless.scheduled.runner import RoundReport
from mirrorless.topics.pause import MappingPause, order_pause, order_resume, read_pause
from tests.support.chains import FLOW
from tests.support.documents import MemoryDocuments
from tests.support.mappings import MemoryMappings


@dataclass
class Account:
    """Mappings that take a round to be enabled or disabled."""

    mappings: MemoryMappings = field(default_factory=MemoryMappings)
    documents: MemoryDocuments = field(default_factory=MemoryDocuments)
    now: int = 1_000_000

    def round(self) -> bool:
        """One round of `refresh_topics`, a minute later; what was under way has settled."""
        self.now += 60_000
        pause = MappingPause(flow=FLOW, mappings=self.mappings, documents=self.documents, clock=lambda: self.now)
        return pause.act(self.mappings.list(seconds), RoundReport(), seconds)

    def rounds(self, count: int) -> None:
        """Some of them."""
        for _ in range(count):
            self.round()


OFF = {"Enabled": False}


def seconds() -> float:
    return 60.0


def account(enabled: Iterable[str] = ("found", "literal"), disabled: Iterable[str] = ("by-hand",)) -> Account:
    """With one of another flow."""
    made = Account()
    for topic in (*enabled, *disabled):
        made.mappings.add(topic, state="Enabled" if topic in enabled else "Disabled")
    made.mappings.add("other", flow=FlowName("us-east", "eu-north"))
    return made


def test_a_pause_stops_every_mapping_of_the_flow_and_its_end_starts_those_and_no_others() -> None:
    flow = account()
    assert not flow.round(), "nothing was ordered"
    assert order_pause(flow.documents, FLOW, reason="ticket", now=flow.now)

    assert flow.round()
    assert read_pause(flow.documents, FLOW).quiet_at is None, "pollers are still ending"
    assert flow.round()
    quiet = read_pause(flow.documents, FLOW).quiet_at
    assert (quiet, flow.mappings.polling()) == (flow.now, {"other"})
    flow.rounds(3)
    assert read_pause(flow.documents, FLOW).quiet_at == quiet, "since then"
    assert flow.mappings.updates == [("found", OFF), ("literal", OFF)], "each once"

    assert order_resume(flow.documents, FLOW, now=flow.now)
    assert flow.round(), "mappings are not changed otherwise"
    flow.rounds(2)
    assert flow.mappings.polling() == {"found", "literal", "other"}, "and not what an operator had disabled"
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
    flow.mappings.add("literal")
    flow.mappings.add("new")

    flow.round()

    assert read_pause(flow.documents, FLOW).quiet_at is None
    flow.round()
    assert flow.mappings.polling() == {"other"}
    order_resume(flow.documents, FLOW, now=flow.now)
    flow.rounds(3)
    assert flow.mappings.polling() == {"found", "literal", "new", "other"}


def test_a_second_pause_is_not_quiet_by_the_first() -> None:
    flow = account(enabled=(), disabled=("by-hand",))
    order_pause(flow.documents, FLOW, reason="", now=flow.now)
    flow.round()
    order_resume(flow.documents, FLOW, now=flow.now)
    flow.round()
    flow.mappings.add("by-hand")

    order_pause(flow.documents, FLOW, reason="", now=flow.now + 1)

    assert read_pause(flow.documents, FLOW).quiet_at is None


@pytest.mark.parametrize("answers", range(5))
def test_rounds_that_die_anywhere_are_made_up_for(answers: int) -> None:
    """A paused flow is resumed after any number of answered calls, and ends as it began."""
    flow = account(enabled=("a", "b", "c", "d"))
    began = flow.mappings.polling()
    order_pause(flow.documents, FLOW, reason="", now=flow.now)
    flow.mappings.answers = answers
    flow.round()
    flow.mappings.answers = 1_000
    order_resume(flow.documents, FLOW, now=flow.now)
    flow.rounds(4)

    assert flow.mappings.polling() == began
    assert len(flow.mappings.updates) >= answers
