"""What do all sections of replication.yaml have in common? Nothing unknown, nothing converted, nothing changed."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[int, Field(ge=1, le=86_400)]
KeyArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/\S+$")]


class Section(BaseModel):
    """A mapping of replication.yaml: nothing unknown in it, nothing converted in silence, nothing changed later."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        alias_generator=lambda name: name.replace("_", "."),
        hide_input_in_errors=True,
    )
