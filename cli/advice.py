"""Commands that a message prints, completed by the deployment that was named: they run as they are printed.

Messages come from the core, from tables that a function wrote, and from pages, none of which has the command line. So
what is printed is completed where it leaves the process.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, TextIO, cast

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


class _Completed:
    """A stream that completes what passes through it."""

    def __init__(self, stream: TextIO, quote: Callable[[str], str]) -> None:
        self._stream = stream
        self._quote = quote

    def write(self, text: str) -> int:
        """Write a text: messages come whole."""
        self._stream.write(completed(text, self._quote))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def completing(named: str, *, as_json: bool) -> Iterator[None]:
    """Complete the commands of all that is printed meanwhile. Args: named: by `options`."""
    global _named
    if not named:
        yield
        return

    def quote(words: str) -> str:
        return words.replace("\\", "\\\\").replace('"', '\\"') if as_json else words

    before, _named = (_named, sys.stdout, sys.stderr), named
    sys.stdout, sys.stderr = (cast("TextIO", _Completed(each, quote)) for each in (sys.stdout, sys.stderr))
    try:
        yield
    finally:
        _named, sys.stdout, sys.stderr = before
