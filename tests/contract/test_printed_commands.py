"""The operator's commands that messages, plans and pages print are complete: the parser takes each as it is printed."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cli.main import COMMANDS, build_parser
from cli.output import COMMAND, completed_page, completing, options, print_json, say

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("cli", "shared", "functions", "spark", "infra", "lab")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
UNQUOTED = re.compile(r"Example: (mirrorless .*)|(mirrorless \w+ '[^']+')")
"""An example of the help, or the first step of an alarm: neither has backticks."""

SYNOPSIS = re.compile(r"[\[|…<]|\b[A-Z]{3,}\b|\bN\b")
"""What no command has, but for the placeholders of a page: options in brackets, alternatives, names of arguments."""

HINT = re.compile(rf"mirrorless |`{{|`(?:{'|'.join(COMMANDS)}) ")
"""What every module with a command in a message has in its text."""

MESSAGES = 60
"""Fewer, and the search would be broken."""

SAMPLES = (
    ("lane.arguments", "'us-east->eu-west' orders 3"),
    ("' '.join(words)", "status"),
    ("words", "--planned"),
    ("reverse", " --reverse"),
    ("example", "'us-east->eu-west' orders"),
    ("_EXAMPLES", "run-7"),
    ("kind", "backfill"),
)
FLOW, OTHER = "us-east->eu-west", "7"


BUILT_APART = {"shared/mirrorless/flow/naming.py", "shared/mirrorless/flow/counts.py"}
"""Modules that build a command, and mark it where it is used; and the first steps of alarms, which have no marks."""


def sample(expression: str) -> str:
    """A value for an expression in a message."""
    for name, value in SAMPLES:
        if name in expression:
            return value
    return FLOW if re.search(r"\b(flow|turned)\b", expression) else OTHER


@cache
def messages(path: Path) -> list[tuple[int, str]]:
    """Every string of a module with its line, without docstrings; expressions in it have sample values."""
    return list(_messages(path))


def _messages(path: Path) -> Iterator[tuple[int, str]]:
    if not HINT.search(text := path.read_text()):
        return  # parsing the others takes seconds
    tree = ast.parse(text)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        for inner in (
            node.values if isinstance(node, ast.JoinedStr) else [node.value] if isinstance(node, ast.Expr) else ()
        )
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (
                str(part.value) if isinstance(part, ast.Constant) else sample(ast.unparse(part)) for part in node.values
            )
            yield node.lineno, "".join(parts)


def in_messages() -> Iterator[tuple[str, str]]:
    """Where each command of a message stands, and the command."""
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        if "node_modules" in path.parts:
            continue
        for line, text in messages(path):
            where = f"{path.relative_to(ROOT)}:{line}"
            for code in re.findall(r"`([^`]+)`", text):
                if (code.startswith("mirrorless ") and code not in MENTIONS) or is_short_for_one(code):
                    yield where, code
            if "`" not in text and (found := UNQUOTED.match(text)):
                yield where, found[1] or found[2]


MENTIONS = {"mirrorless plan"}
"""Names of commands, not for typing."""


def is_short_for_one(code: str) -> bool:
    """Whether a message leaves out the program's name."""
    words = code.split()
    return words[0] in COMMANDS and len(words) > 1


def on_pages() -> Iterator[tuple[str, str]]:
    """The same of pages: each command on a line of its own; and in a sentence, unless it is a mention."""
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        text = page.read_text()
        for code in re.findall(r"^ {4,}(?:\.venv/bin/)?(mirrorless .*)$", text, re.MULTILINE):
            if not SYNOPSIS.search(code):
                yield name, code.partition("  #")[0]
        for code in re.findall(r"`(?:\.venv/bin/)?(mirrorless [^`]+)`", text):
            if "'" in code and not SYNOPSIS.search(code):
                yield name, code


def test_the_commands_of_messages_are_found() -> None:
    found = list(in_messages())

    assert len(found) > MESSAGES
    assert [each for each in found if "lanes resume" in each[1]]


@pytest.mark.parametrize(
    "place", [each for each in in_messages() if COMMAND.fullmatch(f"`{each[1]}`")], ids=lambda place: place[0]
)
@pytest.mark.parametrize(("lab", "config"), [("a lab/state.json", None), (None, "other.yaml")])
def test_a_command_of_a_message_names_the_deployment_that_was_named(
    place: tuple[str, str], lab: str | None, config: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever the message comes from: what is printed is completed where it leaves the process."""
    with completing(options(lab, config)):
        say(f"Do this: `{place[1]}`, then look.")

    printed = COMMAND.findall(capsys.readouterr().out)
    assert len(printed) == 1
    _, *words = shlex.split(printed[0])
    found = build_parser(words[:1]).parse_args(words)
    assert (found.lab, found.config) == (lab, config)


def test_every_command_of_a_message_is_marked_as_one() -> None:
    """What is not in backticks is not completed: only examples of the help and steps of an alarm are so."""
    unmarked = {
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "cli").rglob("*.py")) + sorted((ROOT / "shared").rglob("*.py"))
        for _, text in messages(path)
        for code in re.findall(r"(?<![`\w/])mirrorless (?:[\w-]+ )+'[^`]*", text)
        if not text.startswith("Example: ") and shlex.split(code.replace("…", ""))[1] in COMMANDS
    }

    assert unmarked == BUILT_APART


def test_nothing_is_added_where_the_lab_was_found_or_the_command_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    with completing(""):
        say("`mirrorless status`")
    with completing(" --lab s.json"):
        say("`mirrorless status --lab other.json`, `mirrorless config check x.yaml`")

    assert capsys.readouterr().out.splitlines() == [
        "`mirrorless status`",
        "`mirrorless status --lab other.json`, `mirrorless config check x.yaml`",
    ]


def test_commands_of_json_and_of_a_page_are_completed_as_these_quote(capsys: pytest.CaptureFixture[str]) -> None:
    with completing(options('a "b".json', None)):
        print_json({"hint": "run `mirrorless status`"})
        page = completed_page("<p>`mirrorless groups &#39;a-&gt;b&#39;`</p>")

    assert json.loads(capsys.readouterr().out) == {"hint": "run `mirrorless status --lab 'a \"b\".json'`"}
    assert page == "<p>`mirrorless groups &#39;a-&gt;b&#39; --lab &#x27;a &quot;b&quot;.json&#x27;`</p>"


@pytest.mark.parametrize("place", [*in_messages(), *on_pages()], ids=lambda place: f"{place[0]} {place[1][:60]}")
def test_a_command_runs_as_it_is_printed(place: tuple[str, str]) -> None:
    program, *words = shlex.split(place[1])

    assert program == "mirrorless"
    build_parser(words[:1]).parse_args(words)  # ends the test with the parser's own words if it does not
