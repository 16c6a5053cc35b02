"""The view of a run until it is over: a live table, a line every few seconds, or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator

from cli.jobs.runs import CLEAN, RunView, as_json

LINES_SECONDS = 2.0
"""Between two lines, where the output is no terminal."""


def views(look: Callable[[], RunView], *, every_seconds: float, sleep: Callable[[float], None]) -> Iterator[RunView]:
    """Read the run again and again, until it is over."""
    while True:
        view = look()
        yield view
        if view.over:
            return
        sleep(every_seconds)


def follow(look: Callable[[], RunView], *, as_lines: bool, every_seconds: float) -> int:
    """Show a run until it is over, and return the command's exit code.

    Ctrl-C ends the view only: the run continues, and a line states that.

    Args:
        look: reads the run.
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
    """Print a line after each change; the last one has `over` and `exit_code`."""
    last_line, code = None, CLEAN
    for view in found:
        line = json.dumps(as_json(view) | {"over": view.over} | ({"exit_code": view.exit_code} if view.over else {}))
        if line != last_line:
            print(line, flush=True)
        last_line, code = line, view.exit_code
    return code


def _lines(found: Iterator[RunView]) -> RunView:
    from cli.jobs.table import sentence  # noqa: PLC0415 -- same

    shown_at, shown_state, last = 0.0, "", None
    for view in found:
        if view.state != shown_state or time.monotonic() - shown_at >= LINES_SECONDS:
            print(sentence(view), flush=True)
            shown_at, shown_state = time.monotonic(), view.state
        last = view
    assert last is not None  # noqa: S101 -- there is always a first look
    return last
