"""A cluster's ACLs in memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.topics.acls import Acl


@dataclass(slots=True)
class MemoryAcls:
    """A cluster's ACLs in a set. It refuses what is in `refused`; `silent`: it raises after each change."""

    there: set[Acl] | None = field(default_factory=set)
    refused: set[Acl] = field(default_factory=set)
    silent: bool = False
    ours: str = "User:mirrorless"
    reads: int = 0

    def read(self, _: Deadline) -> frozenset[Acl] | None:
        """See `Acls.read`."""
        self.reads += 1
        return None if self.there is None else frozenset(self.there)

    def is_ours(self, principal: str) -> bool:
        """See `Acls.is_ours`."""
        return principal == self.ours

    def create(self, acls: Collection[Acl], _: Deadline) -> dict[Acl, str]:
        """See `Acls.create`."""
        assert self.there is not None
        self.there |= set(acls) - self.refused
        return self._answer(acls)

    def delete(self, acls: Collection[Acl], _: Deadline) -> dict[Acl, str]:
        """See `Acls.delete`."""
        assert self.there is not None
        self.there -= set(acls) - self.refused
        return self._answer(acls)

    def _answer(self, acls: Collection[Acl]) -> dict[Acl, str]:
        if self.silent:
            raise Retriable("the cluster did not say what became of it")
        return dict.fromkeys(self.refused & set(acls), "refused")
