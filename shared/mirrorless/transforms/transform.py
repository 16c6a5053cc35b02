"""The effect of a rule on a record: a new record, or none. Pure, and the same for the same record at the same place.

keep -> fields or value -> headers -> key -> one's own function
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirrorless.records.record import Record
from mirrorless.transforms.rules import KeyRing, RuleInForce


class TransformFailed(Exception):
    """A rule cannot be applied to a record. The words have a path and what stands there by kind, never a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTransform:
    """A rule, made ready for one source topic."""

    in_force: RuleInForce
    id: bytes
    """See `RuleInForce.id`."""
    _steps: tuple[Callable[[Record, int], Record | None], ...]

    def apply(self, record: Record, partition: int) -> Record | None:
        """The record as it is copied; None: it is left out. The record itself is not changed.

        Raises:
            TransformFailed: the rule cannot be applied to it.
        """
        raise NotImplementedError


def make_ready(in_force: RuleInForce, keys: Mapping[str, KeyRing], topic: str) -> TopicTransform:
    """Compile a rule for a source topic, whose name is part of the nonces.

    Args:
        in_force: the rule, with the versions of the keys.
        keys: by name, with those versions' material.
        topic: of the source.

    Raises:
        ConfigurationError: a key lacks a version; an expression, a path or a function is wrong.
    """
    raise NotImplementedError
