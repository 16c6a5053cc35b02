"""Output of all commands: JSON for programs, and tables, moments, numbers and sizes for people.

Nothing else of `cli` prints. What a terminal would obey of a name or an error from elsewhere is shown. Commands in
messages are completed by the deployment that was named, so that they run as they are printed: none of the core, the
tables that a function wrote, and the pages has the command line. rich is imported when a table is made, so that JSON
comes sooner.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from html import escape
from traceback import format_exception
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mirrorless.chain.lane import Lane
from mirrorless.reports.format import visible, visible_lines

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console
    from rich.table import Table

    from mirrorless.chain.lane_state import Stop
    from mirrorless.errors import MirrorlessError


T = TypeVar("T")

TableColumns = Sequence[tuple[str, Callable[[T], object]]]
"""Of a table: the heading, and what a row has there. A heading behind `>` is to the right, as numbers are; one behind
`=` is that of names, which stay in one line."""

UNKNOWN = "?"
"""What a table has for a value that is not known."""

PIPE_WIDTH = 120
"""Columns of a table in a pipe or a log, which have no width of their own."""

WIDE_PIPE_WIDTH = 160
"""The same, for a table with long names."""

NAME_WIDTH = 50
"""Columns of a name in a table, at most. Kafka's topics have up to 249 characters, and its groups many more."""


def say(*lines: object, err: bool = False) -> None:
    """Print lines for people, each as one line whatever is in it. Args: err: on the standard error."""
    for line in lines:
        print(visible(completed(str(line))), file=sys.stderr if err else sys.stdout, flush=True)


def say_error(error: MirrorlessError, begin: str = "") -> None:
    """Print an error, and each problem of a configuration on a line of its own. Args: begin: in front of it."""
    lines = str(error).split("\n") if getattr(error, "problems", ()) else [str(error)]
    say(f"{begin}{lines[0]}", *lines[1:], err=True)


def say_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what nobody has foreseen, in place of Python's own `sys.excepthook`."""
    say(*(line for part in format_exception(kind, error, trace) for line in part.splitlines()), err=True)


def progress_line(text: str, *, over: bool = False) -> None:
    """Say how far something is, on the standard error: on a terminal each line takes the place of the one before.

    Args:
        text: an empty one removes the line.
        over: whether it stays.
    """
    if sys.stderr.isatty():
        print(f"\r\x1b[K{visible(text)}", end="\n" if over else "", file=sys.stderr, flush=True)
    elif text:
        say(text, err=True)


def write(content: bytes) -> None:
    """Write bytes to the standard output, as they are; to a terminal as text, which obeys nothing of it."""
    if sys.stdout.isatty():
        say(*content.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n"))
    else:
        sys.stdout.buffer.write(content)


def print_json(answer: object, *, indent: int | None = 2) -> None:
    """Print an answer for programs: what JSON has, or structs. Args: indent: None for a single line."""
    print(completed(json.dumps(msgspec.to_builtins(answer), indent=indent), _as_in_json), flush=True)


def _as_in_json(words: str) -> str:
    return json.dumps(words)[1:-1]


def picked(value: object, names: str) -> dict[str, Any]:
    """Some of a value's attributes, for programs. Args: names: with spaces between."""
    return {name: getattr(value, name) for name in names.split()}


def lane_as_json(lane: Lane) -> dict[str, Any]:
    """A lane for programs."""
    return {"flow": str(lane.flow), "topic": lane.topic, "partition": lane.partition}


def stop_as_json(lane: Lane, stop: Stop) -> dict[str, Any]:
    """A stop for programs; `at` in ms since the epoch."""
    from mirrorless.lanes.operator_actions import advice  # noqa: PLC0415 -- commands without it start sooner

    return lane_as_json(lane) | picked(stop, "reason upstream_offset detail at") | {"what_to_do": advice(lane, stop)}


def console(width: int = PIPE_WIDTH, *, soft_wrap: bool = True) -> Console:
    """The standard output for tables.

    Args:
        width: columns in a pipe. A narrower terminal wraps the rows: cut cells would be lost.
        soft_wrap: whether long lines are left to the terminal.
    """
    from rich.console import Console, ConsoleOptions, RenderableType  # noqa: PLC0415 -- programs need no tables
    from rich.segment import Segment  # noqa: PLC0415 -- same

    class Plain(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else visible_lines(completed(text)), style, control)

    columns = width_of_terminal(width)
    wide = max(width, columns) if soft_wrap else columns
    return Plain(highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap, width=wide)


def width_of_terminal(otherwise: int = PIPE_WIDTH) -> int:
    """Columns of the terminal. Args: otherwise: in a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else otherwise


def table(
    title: str | None = None, columns: TableColumns[T] = (), rows: Iterable[T] = (), *, spaced: bool = False
) -> Table:
    """A table by its columns.

    Of a cell, None is a dash, a whole number has commas, and a text is no markup. A name that is longer than
    `NAME_WIDTH` is folded: whole, it would leave the other columns no room.

    Args:
        title: above it.
        columns: see `TableColumns`.
        rows: what the columns are read from.
        spaced: whether empty lines set it apart, where an answer has several tables.
    """
    from rich import box  # noqa: PLC0415 -- programs need no tables
    from rich.table import Table  # noqa: PLC0415 -- same
    from rich.text import Text  # noqa: PLC0415 -- same

    def text(cell: object) -> Text:
        if isinstance(cell, Text):
            return cell
        return Text("-" if cell is None else f"{cell:,}" if isinstance(cell, int) else visible(str(cell)))

    class Folding(Table):
        def add_row(self, *cells: Any, **how: Any) -> None:
            texts = list(map(text, cells))
            for column, each in zip(self.columns, texts, strict=False):
                if column.no_wrap and len(each) > NAME_WIDTH:
                    column.no_wrap, column.max_width, column.overflow = False, NAME_WIDTH, "fold"
            super().add_row(*texts, **how)

    around: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False}
    made = Folding(
        title=None if title is None else Text(visible(title), "bold"),
        title_justify="left",
        **{"box": box.SIMPLE} if spaced else around,
    )
    for heading, _ in columns:
        made.add_column(
            heading.lstrip(">="),
            justify="right" if heading.startswith(">") else "left",
            no_wrap=heading.startswith("="),
            overflow="ellipsis" if heading else "fold",
        )
    for row in rows:
        made.add_row(*(value(row) for _, value in columns))
    return made


def moment(ms: int) -> str:
    """A moment in UTC, to the second. `ms` since the epoch."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago(ms: int, *, now: int) -> str:
    """The time since a moment, roughly. Both in ms since the epoch; a moment in the future counts as now."""
    seconds = max(0, now - ms) // 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def duration(ms: int) -> str:
    """A length of time in at most six characters: `0 s`, `0.3 s`, `42 s`, `3 min`, `5 h`, `2 d`."""
    seconds = ms / 1000
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004 -- below it, tenths matter


def sentence(text: str) -> str:
    """A text with a full stop, where another sentence follows it."""
    return text if text.endswith((".", "!", "?", "`")) else f"{text}."


def size(count: float) -> str:
    """A number of bytes: `512 B`, `1.2 GB`."""
    for each, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= each:
            return f"{count / each:.1f} {unit}"
    return f"{count:.0f} B"


COMMAND = re.compile(r"`(mirrorless (?!(?:config|keys|migrate config)\b)[^`\n]+)`")
"""A command in a message. `config` takes the file that it is about as it is named; `keys` is about none."""

_named = ""


def options(lab: str | None, config: str | None) -> str:
    """What a command needs beside its own words, where `--lab` or `--config` was given."""
    given = (("--lab", lab), ("--config", config))
    return "".join(f" {option} {shlex.quote(value)}" for option, value in given if value)


def completed(text: str, quote: Callable[[str], str] = str) -> str:
    """A text whose commands have the options that were given. Args: quote: how the text quotes its words."""
    if not _named:
        return text
    return COMMAND.sub(lambda found: f"`{found[1]}{_options_of(found[1], quote)}`", text)


def completed_page(html: str) -> str:
    """The same of a page."""
    return completed(html, escape)


def _options_of(command: str, quote: Callable[[str], str]) -> str:
    return "" if " --lab " in f"{command} " or " --config " in f"{command} " else quote(_named)


@contextmanager
def completing(named: str) -> Iterator[None]:
    """Complete the commands of all that is printed meanwhile. Args: named: by `options`."""
    global _named  # noqa: PLW0603 -- one command runs in a process
    before, _named = _named, named
    try:
        yield
    finally:
        _named = before
