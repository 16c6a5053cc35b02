"""Moments and durations in the commands' output."""

from __future__ import annotations

import pytest

from cli.output import ago, console, duration, moment, table


def test_a_moment_is_in_utc_or_an_age() -> None:
    now = 1_763_700_000_000

    assert moment(now) == "2025-11-21 04:40:00Z"
    assert [ago(now - ms, now=now) for ms in (-9, 1_500, 119_000, 120_000, 7_200_000, 200_000_000)] == [
        "0 s ago",
        "1 s ago",
        "119 s ago",
        "2 min ago",
        "2 h ago",
        "2 d ago",
    ]


def test_a_duration_takes_six_characters_at_most() -> None:
    spans = (0, 1, 340, 9_949, 42_000, 119_999, 120_000, 7_200_000, 200_000_000)

    assert [duration(ms) for ms in spans] == [
        "0 s",
        "0.0 s",
        "0.3 s",
        "9.9 s",
        "42 s",
        "120 s",
        "2 min",
        "2 h",
        "2 d",
    ]


def test_a_table_wider_than_the_terminal_loses_no_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On 80 columns, `topics` showed `p…` for partitions and for its number."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    made = table()
    for heading in ("topic", "remote topic", "partitions"):
        made.add_column(heading)
    made.add_row("orders-of-the-day", "us-east.orders-of-the-day", "1,234")

    console().print(made)

    assert "…" not in (shown := capsys.readouterr().out)
    assert "1,234" in shown
