"""Faults of the runs of `pull`: runs that outlive the lease of their shard, lose it, or are started twice."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from lab.cloud import Lab
from mirrorless.config.flow import Flow
from mirrorless.naming import pull_schedule

LOOK_EVERY_SECONDS = 0.2
TAKEN_WITHIN_SECONDS = 25.0
"""For which a stopped run stands still at most: its lease, and the time until the schedule starts another run."""
ONE_TRY = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 1})
SHARD = 0


@dataclass(slots=True, kw_only=True)
class PullFaults:
    """The faults of the runs of one flow's only shard."""

    lab: Lab
    flow: Flow
    _client: Any = field(init=False)

    def __post_init__(self) -> None:
        """Make the client, which takes a while."""
        self._client = self.lab.dynamodb.client(ONE_TRY)

    def await_taken(self) -> bool:
        """Wait until another run has the shard than now; False where none takes it in time."""
        holder, deadline = self._holder(), time.monotonic() + TAKEN_WITHIN_SECONDS
        pause = threading.Event()
        while time.monotonic() < deadline:
            pause.wait(LOOK_EVERY_SECONDS)
            if (now := self._holder()) is not None and now != holder:
                return True
        return False

    def take_lease_away(self) -> bool:
        """Take the lease from its holder, which goes on; False where there is none, or DynamoDB does not answer."""
        if self._holder() is None:
            return False
        try:
            self._client.update_item(
                TableName=self.lab.tables.control, Key=self._key(), UpdateExpression="REMOVE holder"
            )
        except (BotoCoreError, ClientError):
            return False
        return True

    def start_run(self) -> None:
        """Start one more run."""
        self.lab.scheduled.timers[pull_schedule(self.flow.name, SHARD)].start_once()

    def _holder(self) -> str | None:
        try:
            item = self._client.get_item(TableName=self.lab.tables.control, Key=self._key(), ConsistentRead=True)
        except (BotoCoreError, ClientError):
            return None  # DynamoDB is down just now
        holder: str | None = item.get("Item", {}).get("holder", {}).get("S")
        return holder

    def _key(self) -> dict[str, dict[str, str]]:
        return {"flow": {"S": str(self.flow.name)}, "key": {"S": f"pull/{SHARD}/lease"}}
