"""The work under way: the document under its lease, waits that keep the lease, and the flow's lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.clock import Deadline
from mirrorless.errors import LeaseLost, Retriable
from mirrorless.failover.effects import FailoverEffects
from mirrorless.failover.state import DOCUMENT, DRILL, FailoverDocument
from mirrorless.ports.kafka import TopicPartition
from mirrorless.scheduled.runner import HeldLease, LeasedDocuments
from mirrorless.topics.acls import Acl

LEASE: Final = "lease/failover"
LEASE_MS: Final = 30_000
"""Another command waits for so long after one that was killed."""

RENEW_AFTER_MS: Final = 5_000

POLL_SECONDS: Final = 1.0
"""Between two looks at what a step waits for."""

CALL_SECONDS: Final = 20.0
"""For one request to a cluster."""

SAID_EVERY_MS: Final = 5_000
"""Between two lines about the same wait."""


class Unfinished(Retriable):
    """A step waits for something that has not come. Everything before it is done, and is kept."""


class Interrupted(Retriable):
    """The operator has ended the command, between two steps or in a pause. Every result before is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a step returns."""

    said: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    commands: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class FailoverWork:
    """One command's work on one flow."""

    effects: FailoverEffects
    document: FailoverDocument
    say: Callable[[str], None] = lambda _: None
    """Shows progress."""
    still_seconds: float | None = None
    """For how long ends must stand still, where it is not as usual."""
    cancelled: Callable[[], bool] = lambda: False
    """Whether the operator has ended the command."""
    _lease: HeldLease = field(default_factory=HeldLease)
    _holder: str = ""
    _said: tuple[str, int] = ("", 0)

    @property
    def flow(self) -> FlowName:
        """The flow's name."""
        return self.effects.flow

    @contextmanager
    def leased(self) -> Iterator[None]:
        """Hold the lease inside the block: one command at a time writes the document.

        Raises:
            LeaseLost: another command has it, and renews it.
            Interrupted: see there.
        """
        self._holder = f"failover/{self.effects.new_id()}"
        until = self.effects.clock() + 2 * LEASE_MS
        while not self._claim():
            if self.effects.clock() > until:
                raise LeaseLost("another command is at work on this flow", where=str(self.flow), hint="let it end")
            self.wait_for("another command to end, or its lease")
            self._sleep(POLL_SECONDS)
        try:
            yield
        finally:
            self.effects.documents.release(self.flow, LEASE, holder=self._holder)

    def save(self, document: FailoverDocument) -> None:
        """Store the document.

        Raises:
            LeaseLost: another command has taken over.
            Retriable: the store does not answer.
        """
        self.keep()
        key = DRILL if document.order.mode == "drill" else DOCUMENT
        under = LeasedDocuments(self.effects.documents, self._lease, self.effects.clock)
        under.write(self.flow, {key: msgspec.json.encode(document)})
        self.document = document

    def keep(self) -> None:
        """Renew the lease.

        Raises:
            LeaseLost: another command has it.
        """
        if self.effects.clock() >= self._lease.until - LEASE_MS + RENEW_AFTER_MS and not self._claim():
            raise LeaseLost("another command has taken over", where=str(self.flow), hint="let it end")

    def pause(self, seconds: float = POLL_SECONDS) -> None:
        """Wait between two looks."""
        self.keep()
        self._sleep(seconds)

    def _sleep(self, seconds: float) -> None:
        self.effects.sleep(seconds)
        self.end_if_cancelled()

    def end_if_cancelled(self) -> None:
        """Go on only if the operator has not ended the command.

        Raises:
            Interrupted: he has.
        """
        if self.cancelled():
            raise Interrupted("cancelled", where=str(self.flow), hint="run the same command again: it goes on")

    def wait_for(self, what: str) -> None:
        """Show what is waited for, once every few seconds."""
        now = self.effects.clock()
        text, at = self._said
        if (what != text and now >= at) or now >= at + SAID_EVERY_MS:
            self.say(f"waiting for {what}")
            self._said = (what, now)

    def check_acls(self, alias: str, failed: Mapping[Acl, str]) -> None:
        """Go on only if a cluster refused no change of its ACLs.

        Raises:
            Unfinished: it did.
        """
        if failed:
            acl, why = min(failed.items())
            role = "source" if alias == self.flow.source else "target"
            raise Unfinished(
                f"{alias} refused {len(failed)} changes of ACLs, the first: {acl}: {why}",
                where=str(self.flow),
                hint=f"the operator needs ALTER on the {role} cluster; then run the same command again",
            )

    def within(self, seconds: float = CALL_SECONDS) -> Deadline:
        """A deadline from now on."""
        return self.effects.within(seconds)

    def _claim(self) -> bool:
        now = self.effects.clock()
        epoch = self.effects.documents.claim(self.flow, LEASE, holder=self._holder, now=now, until=now + LEASE_MS)
        if epoch is None:
            return False
        self._lease.epoch, self._lease.until = epoch, now + LEASE_MS
        return True

    # What the flow has, as the first step found it

    @property
    def topics(self) -> dict[str, int]:
        """The source topics, with their partitions."""
        return dict(self.document.facts("check").get("topics", {}))

    def lanes(self, *, but_stopped: bool = False) -> dict[Lane, TopicPartition]:
        """The lanes, each with its partition on the source. Args: but_stopped: without those that were stopped."""
        stopped = set(self.document.facts("check").get("stopped", ())) if but_stopped else set()
        return {
            lane: (topic, partition)
            for topic, count in self.topics.items()
            for partition in range(count)
            if str(lane := Lane(self.flow, topic, partition)) not in stopped
        }
