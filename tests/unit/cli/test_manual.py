"""The help, `--json` and the example of every command, and the operator's manual."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import build_parser
from cli.reference import PAGE, commands, main, reference_page

ROOT = Path(__file__).parents[3]
MANUAL = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "how-to").glob("*.md"))
COMMANDS = {parser.prog: (parser, summary) for parser, summary in commands(build_parser())}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_summary_json_output_and_an_example_that_is_in_the_manual(name: str) -> None:
    """Word for word, so that the manual's example is one that the parser takes."""
    parser, summary = COMMANDS[name]
    example = (parser.epilog or "").removeprefix("Example: ")

    assert summary
    assert "--json" in parser._option_string_actions
    assert example.startswith(name)
    assert example in MANUAL


def test_the_committed_page_is_what_the_parser_says(tmp_path: Path) -> None:
    """When this fails: `python -m cli.reference`, and commit what it writes."""
    main(tmp_path / "commands.md")

    assert (ROOT / PAGE).read_text(encoding="utf-8") == (tmp_path / "commands.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", ["40", "300"])
def test_the_page_does_not_depend_on_the_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = reference_page()

    monkeypatch.setenv("COLUMNS", columns)

    assert reference_page() == page
