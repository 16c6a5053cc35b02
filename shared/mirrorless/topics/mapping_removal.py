"""The removal of discovered topics' mappings when their flow is deleted.

    1. Hold     the lease of the refresh, so that no run of it creates what is deleted here.
    2. Delete   every mapping with the flow's tags, whether or not its function still exists.
    3. Repeat   until none is left.

Every step can be repeated, by this run or by the next one. The commits of a mapping's group stay on the source, and the
chains stay in the offset map: a flow that is deployed again resumes where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.ports.stores import StateStore
from mirrorless.scheduled.functions import REFRESH_TOPICS
from mirrorless.scheduled.runner import CLAIM_EVERY_SECONDS, lease
from mirrorless.topics.mapping_plan import NEAR_SECONDS, MappingRefused, Mappings, Request, is_ours, topic_of

HOLDER: Final = "remove_mappings"
"""The same for every run, so that a repeated run gets the lease at once."""

LONGEST_WAIT_MS: Final = (REFRESH_TOPICS.timeout_seconds + 10) * 1000
"""The wait for the lease, at most. No run of the refresh lasts longer, and nothing starts another."""

GRACE_MS: Final = 180_000
"""How long the lease is held after the work. A start that was pending when the schedule was deleted may come two
minutes later; it waits for a minute, and ends. A flow that is deployed again in that time waits as well."""

LOOK_EVERY_SECONDS: Final = 5.0
"""Between two listings of mappings that are being deleted."""

FAILURES: Final = 6
"""Failed rounds in a row before giving up: throttling passes, a missing permission does not."""


@dataclass(slots=True, kw_only=True)
class Removal:
    """The result of a run.

    Attributes:
        deleted: mappings deleted by this run.
        warning: for the operator, although the removal succeeded; mostly empty.
    """

    deleted: int = 0
    warning: str = ""


@dataclass(slots=True, kw_only=True)
class MappingRemoval:
    """Removes the mappings that `refresh_topics` has made for one flow.

    Attributes:
        flow: whose mappings.
        mappings: of the whole account and region.
        documents: with the lease of the refresh.
        clock: ms since the epoch.
        sleep: for seconds.
    """

    flow: FlowName
    mappings: Mappings
    documents: StateStore
    clock: Callable[[], int]
    sleep: Callable[[float], None]
    _ours: dict[str, bool] = field(default_factory=dict)
    """By UUID: tags do not change by themselves, and each read is a call."""

    def act(self, deadline: Deadline) -> Removal:
        """Remove the mappings.

        If the table of the lease cannot be read, the removal waits until no run can be active any more: a refresh that
        cannot get its lease creates nothing.

        Raises:
            MirrorlessError: mappings may be left; a retry continues.
        """
        removal = Removal(warning=self._hold(deadline))
        try:
            self._remove(removal, deadline)
        finally:
            if not removal.warning:
                with suppress(MirrorlessError):  # the lease expires by itself, later
                    self._claim(self.clock() + GRACE_MS)
        return removal

    def _hold(self, deadline: Deadline) -> str:
        """Hold the lease of the refresh. Returns a warning where it could not be taken.

        Raises:
            MirrorlessError: a run of the refresh is active, and does not end.
        """
        end = self.clock() + LONGEST_WAIT_MS
        while True:
            trouble = ""
            try:
                if self._claim(self.clock() + int(deadline() * 1000) + GRACE_MS):
                    return ""
            except MirrorlessError as exc:
                trouble = (
                    f"the lease of refresh_topics was not taken; the removal waited until no run could be active: {exc}"
                )
            if self.clock() >= end:
                if trouble:
                    return trouble
                raise MirrorlessError(
                    f"the lease of refresh_topics was held by another run for more than {LONGEST_WAIT_MS // 1000} s",
                    where=str(self.flow),
                    hint="see who invokes refresh_topics of this flow, then delete the stack again",
                )
            self.sleep(CLAIM_EVERY_SECONDS)

    def _claim(self, until: int) -> bool:
        now = self.clock()
        epoch = self.documents.claim(self.flow, lease(REFRESH_TOPICS.name), holder=HOLDER, now=now, until=until)
        return epoch is not None

    def _remove(self, removal: Removal, deadline: Deadline) -> None:
        """Delete, and list again, until nothing is left."""
        failures, trouble, left = 0, "", -1
        while deadline() > NEAR_SECONDS and failures < FAILURES:
            try:
                left, trouble = self._round(removal, deadline)
            except Retriable as exc:
                trouble = str(exc)
            if not left and not trouble:
                return
            failures = failures + 1 if trouble else 0
            self.sleep(LOOK_EVERY_SECONDS)
        remaining = f"{left} are left" if left >= 0 else "the number left is unknown"
        raise MirrorlessError(
            f"{removal.deleted} mappings of discovered topics were deleted, {remaining}{trouble and ': '}{trouble}",
            where=str(self.flow),
            hint="delete the stack again: it continues from here",
        )

    def _round(self, removal: Removal, deadline: Deadline) -> tuple[int, str]:
        """Delete what can be deleted now. Returns how many of the flow's mappings there were, and the last refusal.

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
            return False  # saves a call for every mapping of another flow in the account
        uuid = str(mapping["UUID"])
        if uuid not in self._ours:
            self._ours[uuid] = is_ours(self.mappings.tags(str(mapping["EventSourceMappingArn"]), deadline), self.flow)
        return self._ours[uuid]
