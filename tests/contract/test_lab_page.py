"""The page about the lab's event source mappings, held to the tests and switches that there are."""

from __future__ import annotations

import re
from dataclasses import fields

from lab.esm.behaviour import LabBehaviour
from tests.support.assembly import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "lab-mappings.md").read_text()
ROWS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ") and "**" not in line][1:]
OTHERS = {
    "concurrent_invocations",
    "on_demand_pollers",
    "on_demand_retries_with_destination",
    "retry_initial_s",
    "retry_max_s",
    "bisect_consumes_retry",
    "stop_grace_s",
    "session_timeout_s",
    "max_poll_interval_s",
    "payloads_ahead",
    "metadata_refresh_s",
    "control_calls_per_second",
}
"""Switches that stand for a number of the lab's own, or that a line names in words."""


def test_every_behaviour_is_held_by_a_test_that_there_is_or_refused() -> None:
    written = "".join(path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py"))
    found = {name for _, _, by in ROWS for name in re.findall(r"`(test_\w+)`", by)}

    assert len(ROWS) > 40
    assert [name for name in sorted(found) if f"def {name}(" not in written] == []
    assert [what for what, how, by in ROWS[1:] if "refused" not in how and "`test_" not in by] == []


def test_every_switch_that_changes_a_behaviour_is_on_the_page() -> None:
    switches = {each.name for each in fields(LabBehaviour)}

    assert {name for name in switches if f"`{name}`" in PAGE} == switches - OTHERS
