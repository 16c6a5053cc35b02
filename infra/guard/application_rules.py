"""Rules on EMR Serverless applications, which are changed only while they stand still.

"An application has to be in a stopped or created state in order to be updated."
(https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_UpdateApplication.html)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from infra.guard.templates import APPLICATION, Resource, Templates, changeable_at_times, value_at, watched
from infra.guard.verdict import ChangeFinding, refused

CHANGEABLE: Final = frozenset({"CREATED", "STOPPED"})
"""States of an application that takes an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationState:
    """An application as EMR Serverless has it.

    Attributes:
        id: by which it is stopped.
        state: such as `STARTED`.
        region: where it is.
    """

    id: str
    state: str
    region: str


def updated_applications(old: Templates, new: Templates) -> list[Resource]:
    """The applications of which a deployment changes what EMR Serverless changes in place, as they are now."""
    after = watched(new)
    applications = {key: was for key, was in watched(old).items() if was.type == APPLICATION and key in after}
    return [was for key, was in applications.items() if _updated(was, after[key])]


def running_applications(
    old: Templates, new: Templates, states: Mapping[str, ApplicationState]
) -> Iterator[ChangeFinding]:
    """The updates that EMR Serverless would refuse now. Args: states: by the names of applications."""
    after = watched(new)
    for was in updated_applications(old, new):
        now = states.get(was.name)
        if now is None or now.state in CHANGEABLE:
            continue
        what = ", ".join(_updated(was, after[was.stack, was.id]))
        why = f"it is {now.state}, and is changed only while it is stopped: the deployment would be rolled back"
        stop = f"aws emr-serverless stop-application --region {now.region} --application-id {now.id}"
        instead = f"let its jobs end, or cancel them; then `{stop}`, and deploy when it is STOPPED"
        yield refused(was, what, why, instead)


def _updated(was: Resource, now: Resource) -> list[str]:
    paths = changeable_at_times(APPLICATION)
    return [path for path in paths if value_at(was.properties, path) != value_at(now.properties, path)]
