"""Moments and durations in the commands' output."""

from __future__ import annotations

import re
from operator import itemgetter

import pytest
from rich.table import Table

from cli.output import NAME_WIDTH, ago, console, duration, moment, table


def test_a_moment_is_in_utc_or_an_age() -> None:
    now = 1_763_700_000_000

    assert moment(now) == "2025-11-21 04:40:00Z"
    ages = [ago(now - ms, now=now) for ms in (-9, 1_500, 119_000, 120_000, 7_200_000, 200_000_000)]
    assert ages == ["0 s ago", "1 s ago", "119 s ago", "2 min ago", "2 h ago", "2 d ago"]


def test_a_duration_takes_six_characters_at_most() -> None:
    spans = (0, 1, 340, 9_949, 42_000, 119_999, 120_000, 7_200_000, 200_000_000)

    shown = ["0 s", "0.0 s", "0.3 s", "9.9 s", "42 s", "120 s", "2 min", "2 h", "2 d"]
    assert [duration(ms) for ms in spans] == shown


def terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)


def of(headings: str, *rows: tuple[object, ...]) -> Table:
    """A table of tuples. Args: headings: with a comma between."""
    return table(None, [(each, itemgetter(number)) for number, each in enumerate(headings.split(","))], rows)


@pytest.mark.parametrize("width", [60, 80, 120, 300])
@pytest.mark.parametrize("name", ["x" * 249, "orders." * 35, "日本" * 100])
def test_a_long_name_is_folded_and_leaves_the_other_columns_their_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, name: str
) -> None:
    terminal(monkeypatch, width)

    console(soft_wrap=False).print(
        of("=topic,>lanes,>lag,mapping", ("short", 1, None, "Enabled"), (name, 6, 1_234, "Disabled"))
    )

    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert lines[0].split() == ["topic", "lanes", "lag", "mapping"]
    assert lines[2].split() == ["short", "1", "-", "Enabled"]
    assert lines[3].split()[1:] == ["6", "1,234", "Disabled"]
    assert "".join(line.split()[0] for line in lines[3:] if line.split()) == name


@pytest.mark.parametrize("name", ["shop\x1b]0;pwned\x07\x1b[2K\x1b[1A", "shop\x9b2K", "a\x00b\x7f", "s[red] :smile:"])
def test_what_a_name_has_for_the_terminal_is_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    console().print(of("group", (name,)))
    console().print(f"  {name} is ready")

    shown = capsys.readouterr().out
    assert not any(character in shown for character in "\x1b\x07\x9b\x00\x7f")
    assert shown.count(name) == (2 if name.isprintable() else 0)
    assert name[:1] in shown
    assert " is ready" in shown


def test_a_name_that_fits_is_not_folded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(monkeypatch, 70)

    console(soft_wrap=False).print(of("=topic,why", ("x" * NAME_WIDTH, "a sentence that is too long for one line")))

    assert "x" * NAME_WIDTH in capsys.readouterr().out


def test_a_table_wider_than_the_terminal_loses_no_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On 80 columns, `topics` showed `p…` for partitions and for its number."""
    terminal(monkeypatch, 40)

    console().print(of("topic,remote topic,>partitions", ("orders-of-the-day", "us-east.orders-of-the-day", 1_234)))

    assert "…" not in (shown := capsys.readouterr().out)
    assert "1,234" in shown
