"""The lines of a command whose steps have nothing to say."""

from __future__ import annotations

import queue

from cli.step_progress import StepProgress

PATIENCE = 30.0


def test_a_step_that_says_nothing_is_named_again_and_again_until_the_command_ends() -> None:
    lines = queue.Queue[str]()
    with StepProgress(lines.put, every_seconds=0.04) as progress:
        progress.begin("3/9 drain")
        found = [lines.get(timeout=PATIENCE) for _ in range(3)]
        progress.begin("4/9 groups")
        while not (line := lines.get(timeout=PATIENCE)).startswith("4/9"):
            found.append(line)

    assert all(line.startswith("3/9 drain: at work for ") for line in found)
    assert line.startswith("4/9 groups: at work for ")


def test_nothing_is_said_before_the_first_step_but_what_a_step_says_itself() -> None:
    lines = queue.Queue[str]()
    with StepProgress(lines.put, every_seconds=0.001) as progress:
        progress.say("waiting for producers")
        progress.begin("1/9 check")
        first, second = (lines.get(timeout=PATIENCE) for _ in range(2))

    assert first == "waiting for producers"
    assert second.startswith("1/9 check: ")
