"""Which lanes does one partition have while it is reconciled? The flow's own, and three beside it.

    forward   us-east->eu-west orders-3             the flow's: its chain says what both sides have
    back      eu-west->us-east us-east.orders-3     what the target had alone, on its way to the source
    orphans   us-east->eu-west orders#orphans-3     what the source had alone, on its way into a topic of its own
    replay    us-east->eu-west orders#replay-3      the same, written again behind what came back

All of them stand in the forward flow's own tables. A `#` is in no topic's name. After a reset the source's offsets may
mean other records, so each generation of the forward lane has lanes of its own beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirrorless.lane import FlowName, Lane

ORPHANS_SUFFIX = ".orphans"
"""Of the topic, on the target, that quarantined orphans are copied to: `us-east.orders.orphans`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciledLane:
    """One partition of one flow, and the lanes by which a reconcile moves its records."""

    forward: Lane
    remote_topic: str
    generation: int
    """Of the forward lane."""

    @property
    def back(self) -> Lane:
        """From the remote topic to the source topic."""
        turned = FlowName(self.forward.flow.target, self.forward.flow.source)
        return Lane(turned, self._beside(self.remote_topic, ""), self.forward.partition)

    @property
    def orphans(self) -> Lane:
        """From the source topic to the topic of orphans on the target."""
        return Lane(self.forward.flow, self._beside(self.forward.topic, "orphans"), self.forward.partition)

    @property
    def replay(self) -> Lane:
        """From the source topic to its own end."""
        return Lane(self.forward.flow, self._beside(self.forward.topic, "replay"), self.forward.partition)

    @property
    def orphans_topic(self) -> str:
        """Where quarantined orphans are, on the target."""
        return self.remote_topic + ORPHANS_SUFFIX

    def _beside(self, topic: str, what: str) -> str:
        number = str(self.generation) if self.generation else ""
        suffix = ".".join(part for part in (what, number) if part)
        return f"{topic}#{suffix}" if suffix else topic
