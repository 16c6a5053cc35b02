"""The page about the lab's event source mappings, held to the tests and switches that there are."""

from __future__ import annotations

import re
from dataclasses import fields

from lab.esm.behaviour import LabBehaviour
from tests.support.assembly import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "lab-mappings.md").read_text()
ROWS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ") and "**" not in line][1:]
SUBJECTS = (
    *("signed header bytes", "left out where null", "gaps kept"),
    *("a group by name, or the mapping's id", "lowest unresolved offset", "assignor", "isolation level"),
    *("a window from the first record", "6 MB of JSON, split and never cut", "a record that fits no event"),
    *("several partitions in a payload", "one batch of a partition at a time", "no more than partitions"),
    *("the same batch for ever", "on demand (400)", "retries, age, halves"),
    *(
        "objects as identifiers, an unknown one means all",
        "SQS, SNS, S3, a topic",
    ),
    *("a poller's end between success and commit", "a rebalance while a function runs", "a batch twice"),
    *("throttled, timed out, out of memory, exited", "a failed commit", "up to 90 s without polls", "`LATEST` loses"),
    *(
        "Creating, Enabling, Enabled, Updating, Disabling",
        "`LastProcessingResult`",
        "one mapping per group and source (409)",
    ),
    *("fields of the creation only", "an empty `ProvisionedPollerConfig`", "5 MB/s", "by the lag"),
    *("2,000 pollers of a poller group", "cannot read or decrypt", "lacks rights of MSK", "15 calls a second"),
)
"""Behaviours that AWS's pages describe, in the words of ours."""

OTHERS = {
    "concurrent_invocations",
    "on_demand_pollers",
    "retry_initial_s",
    "retry_max_s",
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


def test_a_refused_behaviour_has_its_reason() -> None:
    refused = {what.strip(): by for what, how, by in ROWS if "refused" in how}

    assert len(refused) > 5
    assert [what for what, by in refused.items() if len(re.sub(r"`test_\w+`", "", by).split()) < 4] == []


def test_every_line_of_what_aws_does_has_one_of_the_page() -> None:
    """Each subject in which a stand-in could differ from AWS without anyone's notice."""
    assert [subject for subject in SUBJECTS if subject not in PAGE] == []


def test_every_switch_that_changes_a_behaviour_is_on_the_page() -> None:
    switches = {each.name for each in fields(LabBehaviour)}

    assert {name for name in switches if f"`{name}`" in PAGE} == switches - OTHERS
