"""The lines of a command whose steps have nothing to say."""

from __future__ import annotations

import queue

from cli.failover import StepProgress

PATIENCE = 30.0


def test_a_step_that_says_nothing_is_named_again_and_again_until_the_command_ends() -> None:
    lines = queue.Queue[str]()
    with StepProgress(lines.put, every_seconds=0.04) as progress:
        progress.begin("3/9 drain")
        found = [lines.get(timeout=PATIENCE) for _ in range(3)]
        progress.begin("4/9 groups")
        lines.get(timeout=PATIENCE)  # may be of the step before
        following = lines.get(timeout=PATIENCE)

    assert all(line.startswith("3/9 drain: at work for ") for line in found)
    assert following.startswith("4/9 groups: at work for ")
