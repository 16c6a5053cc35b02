"""The generated reference of all commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import build_parser
from cli.reference import PAGE, commands, main, reference_page

ROOT = Path(__file__).parents[3]
COMMANDS = {parser.prog: parser for parser, _ in commands(build_parser())}


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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_section_has_its_options_and_its_example(name: str) -> None:
    section = reference_page().partition(f"\n## {name}\n")[2].partition("\n## ")[0]

    for option in COMMANDS[name]._option_string_actions.keys() - {"-h", "--help"}:
        assert f"| `{option}" in section
    assert f"    {(COMMANDS[name].epilog or '').removeprefix('Example: ')}\n" in section
    assert all(
        len(line) <= 104 for line in section.splitlines() if line.startswith("    mirrorless") and "[-h]" in line
    )
