"""How does the operator watch a run? A table that renews itself, a line now and then, or a line of JSON each time."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator

from cli.jobs.runs import CLEAN, RunView, as_json

LINES_SECONDS = 5.0
"""Between two lines, where nobody watches a terminal."""


def views(look: Callable[[], RunView], *, every_seconds: float, sleep: Callable[[float], None]) -> Iterator[RunView]:
    """Look again and again, until the run is over."""
    while True:
        view = look()
        yield view
        if view.over:
            return
        sleep(every_seconds)


def follow(look: Callable[[], RunView], *, as_lines: bool, every_seconds: float) -> int:
    """Show a run until it is over, and return the command's exit code.

    Ctrl-C ends the watching only: the run goes on, and that is said.

    Args:
        look: how it is now.
        as_lines: JSON lines, for programs.
        every_seconds: between two looks.
    """
    found = views(look, every_seconds=every_seconds, sleep=time.sleep)
    if as_lines:
        return _json_lines(found)
    if sys.stdout.isatty():
        from cli.jobs.table import live  # noqa: PLC0415 -- programs and pipes need no tables

        last = live(found)
    else:
        last = _lines(found)
    from cli.jobs.table import ending  # noqa: PLC0415 -- same

    print("\n".join(ending(last)))
    return last.exit_code


def _json_lines(found: Iterator[RunView]) -> int:
    """A line whenever something is new; the last one has `over` and `exit_code`."""
    told, code = None, CLEAN
    for view in found:
        line = json.dumps(as_json(view) | {"over": view.over} | ({"exit_code": view.exit_code} if view.over else {}))
        if line != told:
            print(line, flush=True)
        told, code = line, view.exit_code
    return code


def _lines(found: Iterator[RunView]) -> RunView:
    from cli.jobs.table import sentence  # noqa: PLC0415 -- same

    said_at, said_state, last = 0.0, "", None
    for view in found:
        if view.state != said_state or time.monotonic() - said_at >= LINES_SECONDS:
            print(sentence(view), flush=True)
            said_at, said_state = time.monotonic(), view.state
        last = view
    assert last is not None  # noqa: S101 -- there is always a first look
    return last
