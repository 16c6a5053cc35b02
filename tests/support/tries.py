"""The number of random tries of a property: few in `make test`, many with `MANY=1` (`make unit MANY=1`)."""

from __future__ import annotations

import os
from typing import Final

MANY: Final = "MIRRORLESS_MANY_TRIES"
"""The variable that asks for many, whatever its value."""


def tries(few: int, *, many: int) -> int:
    """The number of this run."""
    return many if os.environ.get(MANY) else few
