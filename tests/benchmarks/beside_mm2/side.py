"""A side of the comparison, Mirrorless or MM2, as every measurement uses it."""

from __future__ import annotations

from typing import Protocol

from tests.benchmarks.beside_mm2.cpu import Cpu

OURS = "Mirrorless"


class Side(Protocol):
    """One replicator with its settings."""

    @property
    def name(self) -> str:
        """As the report calls it; unique among sides."""
        ...

    def start(self) -> None:
        """Start, and return when it replicates."""
        ...

    def remote_topic(self, topic: str) -> str:
        """The name of a source topic on the target."""
        ...

    def cpu(self) -> Cpu:
        """CPU so far."""
        ...

    def resident_mb(self) -> float:
        """Memory now."""
        ...

    def freeze(self) -> None:
        """Stop it where it is."""
        ...

    def thaw(self) -> None:
        """Let it go on."""
        ...

    def obstacle(self) -> str:
        """Why it does not replicate any more; empty while it may."""
        ...

    def discard(self) -> None:
        """Stop it for good."""
        ...
