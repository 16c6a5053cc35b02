"""Where was a value written that a flow uses? In the flow itself, or in `defaults`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mirrorless.config.names import section

if TYPE_CHECKING:
    from mirrorless.config.flow import Flow
    from mirrorless.config.problems import Path


@dataclass(frozen=True, slots=True)
class Places:
    """The document's data, asked for places."""

    data: Any

    def of(self, flow: Flow, *keys: str | int) -> Path:
        """Return the path of a flow's value; of the flow where nobody wrote it."""
        own, shared = section(section(self.data, "flows"), str(flow.name)), section(self.data, "defaults")
        names = [key for key in keys if isinstance(key, str)]
        holder, key = names[:-1], names[-1]
        for name in holder:
            own, shared = section(own, name), section(shared, name)
        written_in_defaults = key in shared and key not in own
        return ("defaults", *keys) if written_in_defaults else ("flows", str(flow.name), *keys)
