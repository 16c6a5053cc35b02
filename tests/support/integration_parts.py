"""Parts of the integration tests, each a process of its own (`pytest --part N tests/integration`).

A part has clusters, DynamoDB, Spark and labs of its own; each is started once, and stopped after the last test that
needs it. A part begins with what takes longest. Processes and not workers of pytest-xdist: its groups (3.8) have no
effect on node ids of pytest 9.2, so that every worker would start every lab.
"""

from __future__ import annotations

from collections.abc import Sequence

PARTS: Sequence[Sequence[str]] = (
    # Programs that a stranger runs, one at a time, for each wants two cores.
    ("test_lab_failover.py", "test_lab_demo.py"),
    # Labs whose schedules run every few seconds.
    ("mm2/", "test_mirror_client.py"),
    # Labs that are started as commands, of every example among them.
    ("test_lab_up.py", "test_tutorial.py"),
    # One lab, and faults.
    ("flows/", "test_acl_sync.py", "test_lab_servers.py"),
    # One Spark session.
    ("spark/",),
    # Pollers and environments without a lab around them.
    (
        "test_lab_mappings.py",
        "test_template.py",
        "test_lab_runtime.py",
        "test_refresh_topics.py",
        "test_cli_on_stores.py",
    ),
    # Pulls and whole batches, and clusters that ask who comes.
    (
        "test_pull.py",
        "test_raw_copy.py",
        "test_secured_clusters.py",
        "test_active_active.py",
        "test_java_readback.py",
        "test_rate_sampling.py",
    ),
    # Single lanes, on the two clusters of the session. Some kill a broker: when it comes back it checks every log.
    ("test_lane_",),
    # The two clusters of the session, and every file that is not named above.
    ("test_kafka_groups.py", "test_kafka_records.py", "test_lab_application.py", ""),
)
"""Beginnings of paths below tests/integration, by part; the longest that fits decides."""


def place(path: str) -> tuple[int, int]:
    """The part of a file, and its place there."""
    fits = [
        (len(beginning), part, position)
        for part, beginnings in enumerate(PARTS)
        for position, beginning in enumerate(beginnings)
        if path.startswith(beginning)
    ]
    _, part, position = max(fits)
    return part, position
