"""The text of replication.yaml with the keys of a plan, checked as any configuration is."""

from __future__ import annotations

from typing import Any, Final

from mirrorless.config import yaml_source
from mirrorless.config.key_edits import Whole, with_flow_keys
from mirrorless.config.loading import load
from mirrorless.config.rules import PROVISIONED_ONLY, section
from mirrorless.lane import FlowName
from mirrorless.planning.keys import PlannedKeys

_PACE: Final = ("continuous", "interval.seconds")
"""Keys of `schedule` of which a plan sets one and removes the other."""


def with_plan(text: str, flow: FlowName, keys: PlannedKeys, *, origin: str) -> str:
    """Return the text of a valid configuration with a plan's keys; all other text stays as it is.

    Raises:
        ConfigurationError: the keys cannot be set without changing more, or do not go with the others.
    """
    standing = yaml_source.read(text, origin=origin).data["flows"][str(flow)]
    changes: dict[str, Any] = {}
    if keys.overrides is not None:
        changes["trigger.overrides"] = Whole(keys.overrides)
    if keys.schedule is not None:
        kept = {key: value for key, value in section(standing, "schedule").items() if key not in _PACE}
        changes["schedule"] = Whole({**kept, **keys.schedule})
    if keys.mapping is not None:
        refused = PROVISIONED_ONLY if keys.mapping.get("mode") == "on-demand" else ()
        own = section(standing, "mapping")
        kept = {key: value for key, value in own.items() if key not in refused}
        changes["mapping"] = keys.mapping if kept == own else Whole({**kept, **keys.mapping})
    if keys.checkpoint_seconds is not None:
        changes["emit.checkpoints.interval.seconds"] = keys.checkpoint_seconds
    if not changes:
        return text
    after = with_flow_keys(text, str(flow), changes, origin=origin)
    load(after if "\n" in after else f"{after}\n")
    return after
