"""The fence of producers by ACLs: each topic of the source denies writes to everyone, until a failback lifts it.

A fenced topic has two bindings: the DENY for all principals, and the same DENY for a principal that does not exist, the
mark. The mark tells a fence from a DENY of the cluster's own, which is neither deleted nor counted as a fence, and it
keeps fences out of the ACLs that flows copy to their targets. Marks are created before, and deleted after, what they
mark. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from mirrorless.naming import OWN_NAMES
from mirrorless.topics.acls import Acl

MARK: Final = f"User:{OWN_NAMES}.failover"
"""The principal of marks."""

EVERYONE: Final = "User:*"


def mark(topic: str) -> Acl:
    """The mark of a fenced topic."""
    return Acl("TOPIC", "LITERAL", topic, MARK, "*", "DENY", "WRITE")


def deny(topic: str) -> Acl:
    """The DENY that keeps producers from a topic."""
    return Acl("TOPIC", "LITERAL", topic, EVERYONE, "*", "DENY", "WRITE")


def to_create(topics: Iterable[str], there: Collection[Acl]) -> tuple[frozenset[Acl], frozenset[Acl]]:
    """The marks, and then the DENYs, that a fence lacks. A topic with an unmarked DENY is closed already."""
    open_ = [topic for topic in topics if mark(topic) in there or deny(topic) not in there]
    return frozenset(map(mark, open_)).difference(there), frozenset(map(deny, open_)).difference(there)


def to_delete(topics: Iterable[str], there: Collection[Acl]) -> tuple[frozenset[Acl], frozenset[Acl]]:
    """The DENYs, and then the marks, that lift the fence of these topics."""
    marked = [topic for topic in topics if mark(topic) in there]
    return frozenset(map(deny, marked)).intersection(there), frozenset(map(mark, marked))


def without_fences(acls: Iterable[Acl]) -> frozenset[Acl]:
    """A cluster's bindings without fences of producers."""
    there = frozenset(acls)
    marks = {acl for acl in there if acl.principal == MARK}
    return there - marks - {deny(acl.name) for acl in marks}


def unguarded(topics: Iterable[str], acls: Collection[Acl]) -> list[str]:
    """The topics to which no binding applies: a first one could close them to their readers."""
    bindings = [acl for acl in without_fences(acls) if acl.resource == "TOPIC"]
    names = {acl.name for acl in bindings if acl.prefix is None}
    prefixes = tuple({acl.prefix for acl in bindings if acl.prefix is not None})
    return [topic for topic in topics if topic not in names and not topic.startswith(prefixes)]
