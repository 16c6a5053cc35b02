"""Pages name commands, options, files and sections that exist."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from cli.main import build_parser
from docs import write_commands_page, write_cost_page
from infra import cdk
from tests.support.tutorial import PAGE, steps

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "docs" / "how-to" / "deploy.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def anchors(page: Path) -> set[str]:
    """The sections of a page, as GitHub names them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-") for head in plain}


def test_the_page_of_the_design_lists_the_packages_that_there_are_with_their_lines() -> None:
    lines: Counter[str] = Counter()
    tops = ("lab", "cli", "infra", "spark", "functions", "shared")
    for path in (path for top in tops for path in (ROOT / top).rglob("*.py")):
        top, *below = path.relative_to(ROOT).parts
        if "node_modules" not in below and below[1:] != ["__init__.py"]:
            lines[f"{top}/" if top != "shared" else below[1].removesuffix(".py")] += len(path.read_text().splitlines())
    text = (ROOT / "docs" / "explanation" / "design.md").read_text()
    rows = [row.split(" | ") for row in text[text.index("| Layer |") :].partition("\n\n")[0].splitlines()[2:]]
    said = {tuple(re.findall(r"`([\w/]+)`", row[1])): int(row[3].replace(",", "")) for row in rows}

    assert sorted(name for names in said for name in names) == sorted(lines)
    counted = {names: sum(lines[name] for name in names) for names in said}
    assert {names: counted[names] for names in said if abs(said[names] / counted[names] - 1) > 0.1} == {}, "by 10 %"


def test_one_page_says_how_long_the_tests_take() -> None:
    said = re.compile(r"[^.]*\bmake (?:test|check|integration)\b[^.]*\bmin(?:utes?)?\b")
    places = [
        page.name
        for page in (*PAGES, ROOT / "Makefile")
        for paragraph in re.split(r"\n\n|\n(?=[-*|]|    make|[a-z-]+:)", page.read_text())
        if said.search(re.sub(r"^([a-z-]+):.*##", r"`make \1`", paragraph).replace("\n", " "))
    ]

    assert places == ["README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_target_module_file_and_test_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    targets = set(re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.MULTILINE))
    modules = set(re.findall(r"python -m ((?:infra|lab|tests|mirrorless)[\w.]*)", text))
    files = {*re.findall(r"`([\w-]+/[\w/-]+\.py)`", text), *re.findall(r"`(tests/[\w/]+/)`", text)}
    homes = (ROOT, ROOT / "shared" / "mirrorless", ROOT / "tests")

    assert sorted(targets - TARGETS) == []
    assert [name for name in modules if find_spec(name) is None] == []
    assert [name for name in sorted(files) if not any((home / name).exists() for home in homes)] == []
    assert sorted({*re.findall(r"`(test_\w+)`", text)} - written()) == []
    assert re.findall(r"^.*\S.*\| \| ?---.*$", text, re.MULTILINE) == [], "every row of a table is a line"


@cache
def written() -> frozenset[str]:
    """The names of all tests."""
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return frozenset(name for text in texts for name in re.findall(r"^ *def (test_\w+)\(", text, re.MULTILINE))


def test_each_command_of_the_tutorial_is_taken_and_shows_what_it_has_to() -> None:
    found = list(steps(PAGE.read_text()))
    ours = [shlex.split(each.command)[1:] for each in found if each.command.startswith(".venv/bin/mirrorless ")]

    assert len(ours) > 20
    for words in ours:
        build_parser(words[:1]).parse_args(words[: words.index("|")] if "|" in words else words)
    shown = [each for each in found if each.printed]
    assert len(shown) > 7
    assert [each.command for each in shown if not re.search(each.shows, each.printed)] == []


def test_every_option_of_the_cdk_that_the_page_writes_is_one_that_the_pinned_version_has() -> None:
    cdk.install()
    registry = json.loads((cdk.COMMAND.parents[1] / "lib" / "cli" / "cli-type-registry.json").read_text())
    written = {
        (command, option)
        for command, line in re.findall(r"^    cdk (\w+) ([^\n#]*)", DEPLOY.read_text(), re.MULTILINE)
        for option in re.findall(r"(?:^| )--?([a-z][a-z-]*)", line)
    }

    assert {command for command, _ in written} == {"bootstrap", "deploy", "destroy"}
    for command, option in written:
        options = {**registry["globalOptions"], **registry["commands"][command]["options"]}
        assert option in options or any(option in each.get("alias", ()) for each in options.values()), (command, option)


MANUAL = "\n".join(page.read_text() for page in (ROOT / "docs" / "how-to").glob("*.md"))
COMMANDS = {parser.prog: (parser, summary) for parser, summary in write_commands_page.commands(build_parser())}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_summary_json_output_and_an_example_that_is_in_the_manual(name: str) -> None:
    """Word for word, so that the manual's example is one that the parser takes."""
    parser, summary = COMMANDS[name]
    example = (parser.epilog or "").removeprefix("Example: ")

    assert summary
    assert "--json" in parser._option_string_actions
    assert example.startswith(name)
    assert example in MANUAL


@pytest.mark.parametrize("columns", ["40", "300"])
def test_the_page_of_commands_is_up_to_date_on_any_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    assert write_commands_page.PAGE.read_text(encoding="utf-8") == write_commands_page.page(), "run `make docs`"


def test_the_page_of_costs_is_up_to_date() -> None:
    assert write_cost_page.PAGE.read_text(encoding="utf-8") == write_cost_page.page(), "run `make docs`"
