"""Parts of the integration tests, each a process of its own (`pytest --part N tests/integration`).

A part has clusters, DynamoDB, Spark and labs of its own; each is started once, and stopped after the last test that
needs it. A part begins with what takes longest. Processes and not workers of pytest-xdist: its groups (3.8) have no
effect on node ids of pytest 9.2, so that every worker would start every lab.
"""

from __future__ import annotations

from collections.abc import Sequence

PARTS: Sequence[Sequence[str]] = (
    # Programs that a stranger runs, and labs that are started as commands or whose schedules run every few seconds.
    ("test_lab_demo.py", "test_lab_failover.py", "test_lab_up.py", "test_tutorial.py", "test_mirror_client.py"),
    # Two clusters with an authorizer, and one Spark session.
    ("test_acl_sync.py", "spark/"),
    # One lab, and faults; parts of a lab, and environments without one around them.
    (
        "test_flow_faults.py",
        "test_template.py",
        "test_lab_servers.py",
        "test_lab_mappings.py",
        "test_lab_runtime.py",
        "test_cli_on_stores.py",
        "test_checkpoints.py",
    ),
    # Pulls and whole batches, clusters that ask who comes, and rounds of the scheduled functions.
    (
        "test_pull.py",
        "test_raw_copy.py",
        "test_secured_clusters.py",
        "test_active_active.py",
        "test_java_readback.py",
        "test_rate_sampling.py",
        "test_refresh_topics.py",
    ),
    # Single lanes, and every file that is not named above. Some kill a broker: when it is back it checks every log.
    ("test_lane_", "test_kafka_", ""),
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
