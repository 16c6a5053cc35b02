"""The reference of all commands, docs/reference/commands.md, from the parser: `python -m cli.reference [FILE]`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from textwrap import indent

from cli.main import build_parser

PAGE = Path("docs") / "reference" / "commands.md"

WIDTH = 100
"""Columns of a usage; the terminal's own would make the page depend on where it is written."""

_CODE = " " * 4

_EVERYWHERE = ("lab", "config", "json")
"""Options that every synopsis leaves out."""

_SHARED = 2
"""As many commands that mean the same by an argument have it once on the page."""

_INTRODUCTION = """\
# Commands

*Written from the command line's parser by `python -m cli.reference`: change the parser, not this page.*

A synopsis leaves out `--help`, `--json`, `--lab` and `--config`.
"""


def reference_page() -> str:
    """Return docs/reference/commands.md."""
    parser = build_parser()
    found = list(commands(parser))
    uses = Counter((_name(action), _line(action)) for each, _ in found for action in _arguments(each))
    usual = {name: line for (name, line), count in reversed(uses.most_common()) if count >= _SHARED}
    lines = [_INTRODUCTION, f"{parser.description}\n", f"{parser.epilog}\n"]
    lines += ["## Arguments of several commands", "", "A command that means another thing by one says so.", ""]
    lines += [*reversed(usual.values()), ""]
    shared = frozenset(usual.values())
    return "\n".join([*lines, *(_section(each, summary, shared) for each, summary in found)])


def commands(parser: argparse.ArgumentParser, summary: str = "") -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Every command that can be run, with its line in the help of its parent, in order of the help."""
    parents = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001 -- argparse has no public way to list a parser's commands
    if not parents:
        yield parser, summary
    for parent in parents:
        summaries = {choice.dest: choice.help or "" for choice in parent._choices_actions}  # noqa: SLF001 -- same
        for name, child in parent.choices.items():
            yield from commands(child, summaries[name])


def _section(parser: argparse.ArgumentParser, summary: str, shared: Collection[str]) -> str:
    """One command: usage, description, the arguments that are its own, and the example."""
    described = parser.description or f"{summary[:1].upper()}{summary[1:]}."
    own = [line for line in map(_line, _arguments(parser)) if line not in shared]
    _, _, example = (parser.epilog or "").partition(": ")
    code = indent(f"{_usage(parser, shared)}\n\n{example}".rstrip(), _CODE)
    return "\n\n".join(filter(None, (f"## {parser.prog}", described, code, "\n".join(own)))) + "\n"


def _arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]  # noqa: SLF001 -- same


def _line(action: argparse.Action) -> str:
    return f"- {_name(action)}: {_help(action)}"


def _usage(parser: argparse.ArgumentParser, shared: Collection[str]) -> str:
    """The synopsis, without what every command takes."""
    formatter = argparse.HelpFormatter(parser.prog, width=WIDTH)
    actions = [each for each in _arguments(parser) if each.dest not in _EVERYWHERE or _line(each) not in shared]
    formatter.add_usage(parser.usage, actions, parser._mutually_exclusive_groups, prefix="")  # noqa: SLF001 -- as `format_usage` does, which takes the terminal's width
    return formatter.format_help().strip()


def _name(action: argparse.Action) -> str:
    """An argument as it is written: `FLOW`, or `--group GROUP`."""
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not action.option_strings:
        return f"`{metavar}`"
    names = ", ".join(action.option_strings)
    return f"`{names}`" if action.nargs == 0 else f"`{names} {metavar}`"


def _help(action: argparse.Action) -> str:
    """An argument's help, with its default filled in."""
    text = ((action.help or "") % vars(action)).replace("<", "&lt;")
    return f"{text} (required)" if action.required and action.option_strings else text


def main(page: Path) -> None:
    """Write the page."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(reference_page(), encoding="utf-8")
    print(f"wrote {page}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)
