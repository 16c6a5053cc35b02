# ruff: noqa: INP001 - a layer's root, not a package
"""A Lambda layer that obeys fault orders at each step of the protocol.

Put this folder behind the bundle on the path and name `mirrorless_faults.handler` as the function's handler: it is that
of $MIRRORLESS_FUNCTION, `forward` or `pull`, watched. An order is a file in $MIRRORLESS_FAULTS named `<action>.<step>`
or `<action>.<step>.<n>`; the environment that can rename it into `claimed/` obeys it, once. They are written by
`lab.functions.fault_orders`.

The clocks that an order sets are those of Python in this process. Timeouts of the Kafka client and of locks stay real.

With $MIRRORLESS_MINUTE, a minute of `pull` lasts so many seconds: its lease, its pauses, what it remembers for a while.
A schedule of faults could not wait for the lease of each run that it kills. The proportions stay as they are. But the
topics are read every TOPICS seconds, and a transaction takes RECORDS at most: many in which a fault can happen.
"""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOUR_NS = 3_600_000_000_000
FROZEN_NS = 5 * HOUR_NS

_ahead_ns = {"wall": 0, "monotonic": 0}
"""How far each clock is ahead of the machine's."""
_wall_ns, _monotonic_ns = time.time_ns, time.monotonic_ns


def wall_ns() -> int:
    """`time.time_ns`, as set by orders."""
    return _wall_ns() + _ahead_ns["wall"]


def monotonic_ns() -> int:
    """`time.monotonic_ns`, as set by orders."""
    return _monotonic_ns() + _ahead_ns["monotonic"]


# Before the function is imported: some of its defaults are these functions themselves.
time.time_ns, time.time = wall_ns, lambda: wall_ns() / 1e9
time.monotonic_ns, time.monotonic = monotonic_ns, lambda: monotonic_ns() / 1e9

from mirrorless.protocol import hooks  # noqa: E402 -- see above

ORDERS = Path(os.environ["MIRRORLESS_FAULTS"])

MINUTE = 60.0
TOPICS = 2.0
RECORDS = 500
TIMES: Mapping[str, tuple[str, ...]] = {
    "mirrorless.copy.shards": ("TERM_MS", "LEAST_MS", "RENEW_BELOW_MS", "HAND_OVER_MS"),
    "mirrorless.copy.readings": ("ASIDE_SECONDS",),
    "mirrorless.copy.pull": (
        "LEAST_MS",
        "COMMIT_SECONDS",
        "REPLICATE_SECONDS",
        "ENDS_SECONDS",
        "POSITIONS_SECONDS",
        "IDLE_SECONDS",
    ),
}
"""What lasts a minute or parts of it in `pull`, by module."""


def quicken(minute: float) -> None:
    """Let a minute of `pull` last so many seconds."""
    for name, times in TIMES.items():
        module = importlib.import_module(name)
        for each in times:
            lasts = getattr(module, each)
            setattr(module, each, type(lasts)(lasts * minute / MINUTE))
    lanes, gathering = (importlib.import_module(f"mirrorless.copy.{name}") for name in ("pull", "gathering"))
    lanes.TOPICS_SECONDS, gathering.BATCH_RECORDS = TOPICS, RECORDS  # type: ignore[attr-defined]  # modules'


function: Any = importlib.import_module(os.environ.get("MIRRORLESS_FUNCTION", "forward"))
if minute := os.environ.get("MIRRORLESS_MINUTE"):
    quicken(float(minute))


def handler(event: Any, context: Any) -> Any:
    """The function's own. Lambda gives a deadline by the environment's clock, the lab by the machine's."""
    context._epoch_deadline_time_in_ms += _ahead_ns["wall"] // 1_000_000  # noqa: SLF001 -- the runtime client's own
    return function.handler(event, context)


def obey(step: hooks.Step) -> None:
    """Look for an order for this step and carry it out.

    Raises:
        RuntimeError: the order was to raise.
    """
    # Listed anew each time, some microseconds: a remembered modification time has the kernel's 4 ms grain, and an order
    # that is written right after a look would be overlooked.
    for order in ORDERS.iterdir():
        action, _, rest = order.name.partition(".")
        if rest.partition(".")[0] == step and _claim(order.name):
            _carry_out(action, step)


def _claim(name: str) -> bool:
    try:
        (ORDERS / name).rename(ORDERS / "claimed" / name)
    except FileNotFoundError:
        return False  # another environment was faster
    return True


def _carry_out(action: str, step: hooks.Step) -> None:
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            _stop()
        case "freeze":
            _stop()
            _ahead_ns["wall"] += FROZEN_NS
            _ahead_ns["monotonic"] += FROZEN_NS
        case "forward":
            _ahead_ns["wall"] += HOUR_NS
        case "back":
            _ahead_ns["wall"] -= HOUR_NS
        case "raise":
            raise RuntimeError(f"raised by order at step {step}")
        case _:
            raise RuntimeError(f"{action!r} at step {step} is no order: kill, stop, raise, freeze, forward or back")


def _stop() -> None:
    # The lab resumes by this pid; a stopped process cannot write it.
    (ORDERS / "stopped" / str(os.getpid())).touch()
    os.kill(os.getpid(), signal.SIGSTOP)


hooks.observers.append(obey)
