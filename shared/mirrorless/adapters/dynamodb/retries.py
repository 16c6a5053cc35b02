"""Tries of what DynamoDB leaves undone inside a successful answer: single statements, unprocessed keys and items.

boto3 repeats a call that failed as a whole. A call of which parts were throttled is a success to it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Final

from mirrorless.clock import Deadline

PATIENCE_SECONDS: Final = 30.0
"""Of tries without a deadline, or with a later one."""

MARGIN_SECONDS: Final = 0.5
"""Kept of every deadline, to raise an error before Lambda kills the process."""

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


def tries(deadline: Deadline | None, *, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Yield before each try: at once, then after pauses that grow, with full jitter, while there is time.

    Args:
        deadline: seconds left.
        seconds: after which no further try begins, whatever the deadline is.
    """
    end, pause = time.monotonic() + seconds, _FIRST_PAUSE
    yield
    while True:
        left = end - time.monotonic()
        if deadline is not None:
            left = min(left, deadline() - MARGIN_SECONDS)
        if left <= 0:
            return
        time.sleep(min(left, random.uniform(0, pause)))  # only time gives a table capacity # noqa: S311 -- jitter
        pause = min(2 * pause, _LONGEST_PAUSE)
        yield
