"""The reference of all commands, docs/reference/commands.md, from the parser: `python -m cli.reference [FILE]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

from cli.main import build_parser

PAGE = Path("docs") / "reference" / "commands.md"

WIDTH = 100
"""Columns of a usage; the terminal's own would make the page depend on where it is written."""

_CODE = " " * 4

_INTRODUCTION = """\
# Commands

*Written from the command line's parser by `python -m cli.reference`: change the parser, not this page.*
"""


def reference_page() -> str:
    """Return docs/reference/commands.md."""
    parser = build_parser()
    found = list(commands(parser))
    lines = [_INTRODUCTION, f"{parser.description}\n", f"{parser.epilog}\n", "| command | purpose |", "| --- | --- |"]
    lines += [f"| [`{each.prog}`](#{_anchor(each.prog)}) | {_cell(summary)} |" for each, summary in found]
    return "\n".join([*lines, "", *(_section(each, summary) for each, summary in found)])


def commands(parser: argparse.ArgumentParser, summary: str = "") -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Every command that can be run, with its line in the help of its parent, in order of the help."""
    parents = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001 -- argparse has no public way to list a parser's commands
    if not parents:
        yield parser, summary
    for parent in parents:
        summaries = {choice.dest: choice.help or "" for choice in parent._choices_actions}  # noqa: SLF001 -- same
        for name, child in parent.choices.items():
            yield from commands(child, summaries[name])


def _section(parser: argparse.ArgumentParser, summary: str) -> str:
    """One command: usage, description, arguments and options, and the example."""
    described = parser.description or f"{summary[:1].upper()}{summary[1:]}."
    lines = [f"## {parser.prog}", "", described, "", indent(_usage(parser), _CODE), ""]
    arguments = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]  # noqa: SLF001 -- same
    lines += ["| argument | meaning |", "| --- | --- |"]
    lines += [f"| {_cell(_name(action))} | {_cell(_help(action))} |" for action in arguments]
    if parser.epilog:
        label, _, example = parser.epilog.partition(": ")
        lines += ["", f"{label}:", "", indent(example, _CODE)]
    return "\n".join([*lines, ""])


def _usage(parser: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(parser.prog, width=WIDTH)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")  # noqa: SLF001 -- as `format_usage` does, which takes the terminal's width
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
    text = (action.help or "") % vars(action)
    return f"{text} (required)" if action.required and action.option_strings else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _anchor(heading: str) -> str:
    """A heading's anchor, as GitHub has it."""
    return heading.lower().replace(" ", "-")


def main(page: Path) -> None:
    """Write the page."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(reference_page(), encoding="utf-8")
    print(f"wrote {page}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)
