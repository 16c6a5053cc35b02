"""A flow's scheduled functions in the lab: two real functions, their input, and their timers.

A test that cannot wait for minutes gives other intervals by the names of ControlSettings, such as
`{"refresh_topics_seconds": 1}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.packaging import bundle
from lab.functions.function import LambdaFunction
from lab.functions.timer import Timer
from mirrorless.config.flow import Flow
from mirrorless.scheduled.functions import EVERY_SECONDS, SCHEDULED
from mirrorless.scheduled.settings import control_settings


@dataclass(slots=True, kw_only=True)
class ControlPlane:
    """The scheduled functions of all flows. `stop` from any state."""

    folder: Path
    overrides: Mapping[str, Any] = field(default_factory=dict)
    schedule_seconds: float = EVERY_SECONDS
    functions: dict[str, LambdaFunction] = field(default_factory=dict)
    timers: dict[str, Timer] = field(default_factory=dict)

    def deploy(
        self, flows: Sequence[Flow], *, variables: Mapping[str, str], forwarder: Callable[[Flow], str]
    ) -> Mapping[str, LambdaFunction]:
        """Make the functions and their schedules; nothing runs yet.

        Args:
            flows: with clusters at addresses that answer.
            variables: of every function.
            forwarder: the name of a flow's forwarder.

        Raises:
            ConfigurationError: an override is none of the settings.
        """
        for flow in flows:
            # As the schedule keeps it: text, read anew by each run.
            event = json.loads(json.dumps(flow.control_settings(forwarder(flow)) | dict(self.overrides)))
            control_settings(event)  # what the functions would refuse is refused here
            for scheduled in SCHEDULED:
                name = control_name(flow, scheduled.name)
                self.functions[name] = LambdaFunction(
                    name=name,
                    bundle=bundle.build(scheduled.name),
                    handler=f"{scheduled.name}.handler",
                    variables=variables,
                    timeout_seconds=scheduled.timeout_seconds,
                    memory_mb=scheduled.memory_mb,
                    folder=self.folder / "functions",
                )
                self.timers[name] = Timer(
                    name=name,
                    function=self.functions[name],
                    event=event,
                    interval_s=self.schedule_seconds,
                    log=self.folder / "schedule" / f"{name}.jsonl",
                )
        return self.functions

    def start(self) -> None:
        """Start every schedule: each function runs now, and every minute."""
        for timer in self.timers.values():
            timer.start()

    def stop(self) -> None:
        """End the schedules, and the runs under way with their functions."""
        for timer in self.timers.values():
            timer.begin_stop()
        for function in self.functions.values():
            function.stop()
        for timer in self.timers.values():
            timer.stop()


def control_name(flow: Flow, file: str) -> str:
    """What the deployment calls a flow's scheduled function."""
    return flow.resource_name(file)
