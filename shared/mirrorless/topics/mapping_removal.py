"""How do the mappings of found topics go when their flow does? None may be left, and none may be made again meanwhile.

    1. Hold     the refresh's lease, so that no run of it makes what is deleted here.
    2. Delete   every mapping that has its tags, whatever has become of the function that it calls.
    3. Look     again, until none is left.

Every step can be done again, by this run or by the next one. What a mapping's group has committed stays on the source,
and the chains stay in the offset map: a flow that comes back goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.lane import FlowName
from mirrorless.ports.kafka import Deadline
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.functions import REFRESH_TOPICS
from mirrorless.scheduled.runner import CLAIM_EVERY_SECONDS, lease
from mirrorless.topics.mapping_plan import MappingRefused, Mappings, Request, is_ours, topic_of

HOLDER: Final = "remove_mappings"
"""The same for every run: a run that is repeated takes over at once."""

LONGEST_WAIT_MS: Final = (REFRESH_TOPICS.timeout_seconds + 10) * 1000
"""For the lease. No run of the refresh lasts longer, and nothing starts another."""

GRACE_MS: Final = 180_000
"""The lease goes on for so long after the work. A start that was under way when the schedule went may come two minutes
later; it waits for a minute, and ends. A flow that is deployed again meanwhile waits as well."""

LOOK_EVERY_SECONDS: Final = 5.0
"""Between two looks at mappings that are being deleted."""

NEAR_SECONDS: Final = 5.0
"""What is kept of the deadline, to say how it went."""

PATIENCE: Final = 6
"""So many looks in a row may fail: Lambda's throttling passes, a right that is not granted does not."""


@dataclass(slots=True, kw_only=True)
class Removal:
    """What was done.

    Attributes:
        deleted: mappings deleted by this run.
        warning: what the operator should know although all went well; mostly empty.
    """

    deleted: int = 0
    warning: str = ""


@dataclass(slots=True, kw_only=True)
class MappingRemoval:
    """Removes the mappings that `refresh_topics` has made for one flow.

    Attributes:
        flow: whose.
        mappings: of the whole account and region.
        documents: where the refresh keeps its lease.
        clock: ms since the epoch.
        sleep: for seconds.
    """

    flow: FlowName
    mappings: Mappings
    documents: StateStore
    clock: Callable[[], int]
    sleep: Callable[[float], None]
    _ours: dict[str, bool] = field(default_factory=dict)
    """By UUID: tags do not change by themselves, and each costs a call."""

    def act(self, deadline: Deadline) -> Removal:
        """Do it.

        Without the lease's table it is done all the same, once no run can be under way any more: a refresh that cannot
        take its lease makes nothing.

        Raises:
            MirrorlessError: mappings may be left; a retry goes on.
        """
        removal = Removal(warning=self._hold(deadline))
        try:
            self._remove(removal, deadline)
        finally:
            if not removal.warning:
                with suppress(MirrorlessError):  # it ends by itself, later
                    self._claim(self.clock() + GRACE_MS)
        return removal

    def _hold(self, deadline: Deadline) -> str:
        """Keep the refresh out; answers with why it could not be kept out.

        Raises:
            MirrorlessError: a run of the refresh is at work, and does not end.
        """
        end = self.clock() + LONGEST_WAIT_MS
        while True:
            trouble = ""
            try:
                if self._claim(self.clock() + int(deadline() * 1000) + GRACE_MS):
                    return ""
            except MirrorlessError as exc:
                trouble = f"the refresh's lease was not taken, so it was waited for its longest run to end: {exc}"
            if self.clock() >= end:
                if trouble:
                    return trouble
                raise MirrorlessError(
                    f"somebody keeps the lease of refresh_topics for more than {LONGEST_WAIT_MS // 1000} s",
                    where=str(self.flow),
                    hint="see who invokes refresh_topics of this flow, then delete the stack again",
                )
            self.sleep(CLAIM_EVERY_SECONDS)

    def _claim(self, until: int) -> bool:
        now = self.clock()
        return self.documents.claim(self.flow, lease(REFRESH_TOPICS.name), holder=HOLDER, now=now, until=until)

    def _remove(self, removal: Removal, deadline: Deadline) -> None:
        """Delete, and look again, until nothing is left."""
        failures, trouble, left = 0, "", -1
        while deadline() > NEAR_SECONDS and failures < PATIENCE:
            try:
                left, trouble = self._round(removal, deadline)
            except Retriable as exc:
                trouble = str(exc)
            if not left and not trouble:
                return
            failures = failures + 1 if trouble else 0
            self.sleep(LOOK_EVERY_SECONDS)
        known = f"{left} are left" if left >= 0 else "nobody knows how many are left"
        raise MirrorlessError(
            f"{removal.deleted} mappings of found topics were deleted, {known}{trouble and ': '}{trouble}",
            where=str(self.flow),
            hint="delete the stack again: what is done stays done",
        )

    def _round(self, removal: Removal, deadline: Deadline) -> tuple[int, str]:
        """Delete what can be deleted now; how many of ours there were before that, and what was refused.

        Raises:
            Retriable: Lambda did not answer.
        """
        ours = [each for each in self.mappings.list(deadline) if self._is_ours(each, deadline)]
        refused = ""
        for each in ours:
            if each.get("State") == "Deleting":
                continue
            try:
                removal.deleted += self.mappings.delete(str(each["UUID"]), deadline) == "done"
            except MappingRefused as exc:
                refused = str(exc)
        return len(ours), refused

    def _is_ours(self, mapping: Request, deadline: Deadline) -> bool:
        if topic_of(mapping, self.flow) is None:
            return False  # spares a call for every mapping of the account that is none of this flow's
        uuid = str(mapping["UUID"])
        if uuid not in self._ours:
            self._ours[uuid] = is_ours(self.mappings.tags(str(mapping["EventSourceMappingArn"]), deadline), self.flow)
        return self._ours[uuid]
