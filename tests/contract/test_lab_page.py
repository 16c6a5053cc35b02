"""The page about the lab's event source mappings, held to what AWS documents and to the switches that there are."""

from __future__ import annotations

import inspect
from dataclasses import fields

from lab.esm.behaviour import LabBehaviour
from tests.support.assembly import REPOSITORY

PAGE = " ".join((REPOSITORY / "docs" / "reference" / "lab-mappings.md").read_text().split())
SUBJECTS = (
    *("signed header bytes", "left out where null", "gaps kept"),
    *("a group by name, or the mapping's id", "lowest unresolved offset", "assignor", "committed records"),
    *("a window from the first record", "6 MB of JSON, split and never cut", "a record that fits no event"),
    *("a payload holds several partitions", "one batch of a partition at a time", "no more than partitions"),
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
    *("fields of the creation only", "an empty `ProvisionedPollerConfig`", "5 MB/s of each", "by the lag"),
    *("2,000 pollers of a poller group", "what a role may do: secrets, MSK", "15 calls a second"),
)
"""Behaviours that AWS's pages describe, in the words of ours."""


def test_every_line_of_what_aws_does_has_one_of_the_page() -> None:
    """Each subject in which a stand-in could differ from AWS without anyone's notice."""
    assert [subject for subject in SUBJECTS if subject not in PAGE] == []


def test_every_switch_says_what_it_chooses() -> None:
    described = inspect.getdoc(LabBehaviour) or ""

    assert [each.name for each in fields(LabBehaviour) if f"{each.name}: " not in described] == []
