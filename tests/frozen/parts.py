"""Parts of what is frozen: each makes the texts of its golden files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from tests.frozen import bundle_contents, cli_answers, conversions, help_pages, reports

Texts = Callable[[], dict[str, str]]

SCHEMA = Path(__file__).parents[2] / "docs" / "replication.schema.json"
"""A unit test holds it to its generator."""


def _schema() -> dict[str, str]:
    return {"schema/replication.schema.json.txt": hashlib.sha256(SCHEMA.read_bytes()).hexdigest() + "\n"}


def _templates() -> dict[str, str]:
    from tests.frozen import templates  # noqa: PLC0415 -- the CDK costs seconds, and comparing the rest needs it not

    return templates.texts()


PARTS: dict[str, Texts] = {
    "help": help_pages.texts,
    "cli": cli_answers.texts,
    "reports": reports.texts,
    "conversions": conversions.texts,
    "schema": _schema,
    "bundles": bundle_contents.texts,
}
"""Compared by tests/frozen/test_frozen.py."""

TEMPLATES: dict[str, Texts] = {"templates": _templates}
"""Compared by tests/infra/test_synth.py, which shares what the tests there have synthesized."""
