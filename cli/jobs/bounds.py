"""Bounds in a topic's history on the command line: `earliest`, `latest`, `offset:4711`, a time."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from cli.args import offset
from cli.output import moment
from mirrorless.jobs.request import Bound

FORMS = "earliest, latest, offset:N, a time such as 2026-11-21T20:30:00Z, or milliseconds since 1970"

LEAST_MS = 100_000_000_000
"""A plain number below it would be a time before March 1973, and is taken for an offset by mistake."""

LARGEST_MS = 253_402_300_799_999
"""The end of the year 9999."""


def bound(text: str) -> Bound:
    """Read `--from` or `--to`.

    Raises:
        ArgumentTypeError: it is none of the forms.
    """
    if text in {"earliest", "latest"}:
        return Bound(text)  # type: ignore[arg-type]  # one of the two
    if text.startswith("offset:"):
        return Bound("offset", offset(text.removeprefix("offset:")))
    if text.isascii() and text.isdigit():
        return Bound("timestamp", _ms(text))
    return Bound("timestamp", _time(text))


def written(each: Bound) -> str:
    """A bound for people."""
    match each.kind:
        case "offset":
            return f"upstream offset {each.value}"
        case "timestamp":
            return moment(each.value)
        case _:
            return each.kind


def is_empty(start: Bound, end: Bound) -> bool:
    """Whether nothing can lie between two bounds, as far as that is known without a cluster."""
    if start.kind == end.kind and start.kind in {"offset", "timestamp"}:
        return start.value >= end.value
    return start.kind == "latest" or end.kind == "earliest"


def _ms(text: str) -> int:
    value = int(text)
    if not LEAST_MS <= value <= LARGEST_MS:
        raise argparse.ArgumentTypeError(
            f"{text} is no time in milliseconds since 1970: write offset:{text} if an upstream offset is meant"
        )
    return value


def _time(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no place in a topic's history: write {FORMS}") from None
    if found.tzinfo is None:
        whole = text if "T" in text or " " in text else f"{text}T00:00:00"
        raise argparse.ArgumentTypeError(f"{text} has no time zone: write {whole}Z for UTC, or +01:00")
    if found < datetime(1970, 1, 1, tzinfo=UTC):
        raise argparse.ArgumentTypeError(f"{text} is before 1970, and no record is as old")
    return int(found.timestamp() * 1000)
