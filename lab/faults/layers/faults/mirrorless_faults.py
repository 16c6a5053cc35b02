# ruff: noqa: INP001 - a layer's root, not a package
"""A Lambda layer that obeys fault orders at each step of the protocol.

Put this folder behind the bundle on the path and name `mirrorless_faults.handler` as the function's handler: it is the
forwarder's own, watched. An order is a file in $MIRRORLESS_FAULTS named `<action>.<step>` or `<action>.<step>.<n>`; the
environment that can rename it into `claimed/` obeys it, once. `lab.faults.orders` writes them.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from forward import handler

from mirrorless.protocol import hooks

__all__ = ["handler"]

ORDERS = Path(os.environ["MIRRORLESS_FAULTS"])


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
            # The lab resumes by this pid; a stopped process cannot write it.
            (ORDERS / "stopped" / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raise":
            raise RuntimeError(f"raised by order at step {step}")
        case _:
            raise RuntimeError(f"{action!r} at step {step} is no order: kill, stop or raise")


hooks.observers.append(obey)
