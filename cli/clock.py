"""The clock of the commands: the present moment, and deadlines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirrorless.ports.kafka import Deadline


def deadline(seconds: float) -> Deadline:
    """A function that returns the seconds that are left, from now on."""
    end = time.monotonic() + seconds
    return lambda: end - time.monotonic()
