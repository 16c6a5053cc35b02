"""Help pages of every command, taken from the parsers that the commands themselves build."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

import infra.guard.diff_guard
import infra.synth
import lab.__main__
import lab.functions.bundles
import tests.benchmarks.beside_mm2.__main__
from cli.main import main as mirrorless

DOORS: dict[str, Callable[[], object]] = {
    "mirrorless": lambda: mirrorless([]),
    "lab": lambda: lab.__main__.main([]),
    "infra.synth": infra.synth.main,
    "infra.bundle": lab.functions.bundles.main,
    "infra.diff_guard": lambda: infra.guard.diff_guard.main([]),
    "beside_mm2": lambda: tests.benchmarks.beside_mm2.__main__.main([]),
}
"""What begins each command, by the name of its golden file."""

WIDTH = "2000"
"""Nothing is wrapped: where argparse wraps usage lines differs between versions of Python."""


def texts() -> dict[str, str]:
    """The help of each command and its subcommands, by the golden file's name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", WIDTH)
        patch.setenv("PYTHON_COLORS", "0")  # from Python 3.14 on, help on a terminal is coloured
        return {f"help/{name}.txt": "\n".join(_pages(_parser(door))) for name, door in DOORS.items()}


class _Parsed(Exception):
    """The parser that a command was about to use."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def _parser(door: Callable[[], object]) -> argparse.ArgumentParser:
    """What a command would parse its arguments with: the command ends there."""

    def end(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise _Parsed(parser)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", end)
        try:
            door()
        except _Parsed as parsed:
            return parsed.parser
    raise AssertionError("the command parses no arguments")


def _pages(parser: argparse.ArgumentParser) -> Iterator[str]:
    # Spaces at the end of a line mean nothing.
    text = re.sub(r"[ \t]+$", "", parser.format_help(), flags=re.MULTILINE)
    yield f"$ {parser.prog} --help\n{text}"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _pages(child)
