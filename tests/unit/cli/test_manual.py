"""The help, `--json` and the example of every command, and the operator's manual."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import build_parser
from cli.reference import PAGE, commands, main, reference_page

GUIDES = (Path(__file__).parents[3] / "docs" / "how-to").glob("*.md")
MANUAL = "\n".join(page.read_text(encoding="utf-8") for page in GUIDES)


COMMANDS = {parser.prog: (parser, summary) for parser, summary in commands(build_parser())}


def test_the_commands_are_these() -> None:
    assert set(COMMANDS) == {
        "mirrorless config check",
        "mirrorless lab topics",
        "mirrorless lab produce",
        "mirrorless lab consume",
        "mirrorless status",
        "mirrorless translate",
        "mirrorless lanes stopped",
        "mirrorless lanes resume",
        "mirrorless lanes quarantine",
        "mirrorless lanes reset",
        "mirrorless lanes hold",
        "mirrorless lanes release",
        "mirrorless lanes show",
        "mirrorless flow pause",
        "mirrorless flow resume",
        "mirrorless losses",
        "mirrorless groups",
        "mirrorless topics",
        "mirrorless plan",
        "mirrorless acl plan",
        "mirrorless acl apply",
        "mirrorless acl revoke",
        "mirrorless failover",
        "mirrorless failback",
        *(
            f"mirrorless {kind} {command}"
            for kind in ("backfill", "verify", "reconcile")
            for command in ("start", "follow", "cancel", "list")
        ),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_summary(name: str) -> None:
    assert COMMANDS[name][1]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_json_output(name: str) -> None:
    assert "--json" in COMMANDS[name][0]._option_string_actions


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_in_a_commands_help_is_in_the_manual(name: str) -> None:
    """Word for word, so that the manual's example is one that the parser below takes."""
    parser = COMMANDS[name][0]
    example = (parser.epilog or "").removeprefix("Example: ")
    assert example.startswith(name)
    assert example in MANUAL


@pytest.mark.parametrize(
    "order",
    [
        "lanes resume",
        "lanes quarantine",
        "lanes reset",
        "lanes hold",
        "lanes release",
        "acl apply",
        "failover",
        "failback",
    ],
)
def test_what_changes_state_shows_its_plan_first(order: str) -> None:
    options = COMMANDS[f"mirrorless {order}"][0]._option_string_actions
    assert {"--dry-run", "--execute"} <= set(options)
    assert options["--execute"].default is False


ROOT = Path(__file__).parents[3]
PARSERS = {parser.prog: parser for parser, _ in commands(build_parser())}


def test_the_committed_page_is_what_the_parser_says(tmp_path: Path) -> None:
    """When this fails: `python -m cli.reference`, and commit what it writes."""
    main(tmp_path / "reference" / "commands.md")

    written = (tmp_path / "reference" / "commands.md").read_text(encoding="utf-8")
    assert (ROOT / PAGE).read_text(encoding="utf-8") == written


@pytest.mark.parametrize("columns", ["40", "300"])
def test_the_page_does_not_depend_on_the_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = reference_page()

    monkeypatch.setenv("COLUMNS", columns)

    assert reference_page() == page


@pytest.mark.parametrize("name", PARSERS)
def test_a_commands_section_has_its_options_and_its_example(name: str) -> None:
    section = reference_page().partition(f"\n## {name}\n")[2].partition("\n## ")[0]

    for option in PARSERS[name]._option_string_actions.keys() - {"-h", "--help"}:
        assert f"| `{option}" in section
    assert f"    {(PARSERS[name].epilog or '').removeprefix('Example: ')}\n" in section
    assert all(
        len(line) <= 104 for line in section.splitlines() if line.startswith("    mirrorless") and "[-h]" in line
    )
