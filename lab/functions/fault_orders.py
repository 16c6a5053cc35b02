"""Orders to kill, stop or fail a function at one step of the protocol: files in a folder, obeyed by a layer.

faults = Faults(folder)
function = LambdaFunction(handler=FAULTY_HANDLER, layers=[LAYER], variables={**variables, **faults.variables}, …)
order = faults.order("kill", "prepared")        # the next environment that reaches the step dies there
faults.await_claimed(order, seconds=10)
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lab.waiting import wait_for
from mirrorless.flow.naming import FORWARD

if TYPE_CHECKING:
    from mirrorless.protocol.hooks import Step

FaultAction = Literal["kill", "stop", "raise", "freeze", "forward", "back"]
"""
kill     SIGKILL oneself
stop     SIGSTOP oneself, until `FaultOrders.resume_stopped`
raise    RuntimeError
freeze   as `stop`; all of Python's clocks have passed five hours then
forward  set the wall clock an hour ahead
back     an hour back
"""

LAYER = Path(__file__).parent / "layers" / "faults"
FAULTY_HANDLER = "mirrorless_faults.handler"

_POLL_SECONDS = 0.01


class FaultOrders:
    """The orders for the environments of one or more functions, kept in one folder, which is created.

    Attributes:
        variables: the environment variables that the layer needs.
    """

    def __init__(self, folder: Path, *, function: str = FORWARD, minute_seconds: float | None = None) -> None:
        """Say for which function.

        Args:
            folder: of the orders.
            function: its file in `functions/`, without `.py`.
            minute_seconds: how long a minute of `pull` lasts, where it is not one.
        """
        for place in (folder, folder / "claimed", folder / "stopped"):
            place.mkdir(parents=True, exist_ok=True)
        self.variables = {"MIRRORLESS_FAULTS": str(folder.absolute()), "MIRRORLESS_FUNCTION": function}
        if minute_seconds is not None:
            self.variables["MIRRORLESS_MINUTE"] = str(minute_seconds)
        self._folder = folder
        self._numbers = itertools.count(len(list((folder / "claimed").iterdir())) + len(self.pending()))

    def order(self, action: FaultAction, step: Step) -> str:
        """Have the next environment that reaches `step` do `action`, once; return the order's name."""
        name = f"{action}.{step}.{next(self._numbers)}"
        (self._folder / name).touch(exist_ok=False)
        return name

    def withdraw(self, name: str) -> bool:
        """Take an order back; False when it was carried out already."""
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            return False
        return True

    def pending(self) -> list[str]:
        """The orders that have not been carried out yet."""
        return sorted(path.name for path in self._folder.iterdir() if path.is_file())

    def await_claimed(self, name: str, *, seconds: float, over: threading.Event | None = None) -> bool:
        """Wait until an order is carried out; False where all is over before.

        Raises:
            TimeoutError: no environment reached that step in time.
        """
        claimed = self._folder / "claimed" / name
        if not wait_for(lambda: not claimed.exists(), seconds=seconds, every=_POLL_SECONDS, over=over):
            return True
        if over is not None and over.is_set():
            return False
        raise TimeoutError(f"no environment carried out {name} within {seconds:g} s")

    def stopped(self) -> list[int]:
        """The pids of the environments that stopped themselves and wait to be resumed."""
        return sorted(int(path.name) for path in (self._folder / "stopped").iterdir())

    def resume_stopped(self, pid: int) -> bool:
        """Resume a stopped environment; False when it was killed meanwhile.

        Raises:
            FileNotFoundError: that process did not stop by our order, or was resumed already.
        """
        (self._folder / "stopped" / str(pid)).unlink()
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return False
        return True
