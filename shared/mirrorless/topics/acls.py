"""The ACLs that the target should have, now and after a failover, and the changes to get there. Pure.

MM2's rule decides what is due now: a principal that may read a topic may read its remote topic, and only the flow
writes there. MM2 copies ACLs of literal topics only, and never revokes. Here prefixes and the wildcard are copied too,
and a binding that the flow created is deleted once the source no longer grants it.

What MM2 leaves out is staged: an application that moves to the target writes to the remote topics, from where a
reconcile takes its records back, and needs its groups and transactional ids. No schedule applies that; the operator
does, at a failover.

No binding, ALLOW or DENY, ever applies to groups and transactional ids of the replication itself. With an ALLOW on
them, a principal of the source could fence the writers of other flows to the target, or move offsets of mappings that
read there. An ALLOW on the wildcard beside a DENY for that principal on `mirrorless` would prevent that, but it is no
narrowing that is safe everywhere: the replication may have a user of the same name, and where
`allow.everyone.if.no.acl.found` is true, the first binding that applies to an id, of any principal, ends the access of
all who have none. So such bindings are withheld and reported; on groups, they are staged for each group that the flow
follows.

Nor does a DENY go to remote topics that would keep the flow itself out: of the flow's own principal there, or of all
principals. Where it is of all, it is copied for those that other ACLs open the topics to, and nobody gains anything.

The fence of producers by ACLs: each topic of the source denies writes to everyone, until a failback lifts it.

A fenced topic has two bindings: the DENY for all principals, and the same DENY for a principal that does not exist, the
mark. The mark tells a fence from a DENY of the cluster's own, which is neither deleted nor counted as a fence, and it
keeps fences out of the ACLs that flows copy to their targets. Marks are created before, and deleted after, what they
mark. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.flow.naming import OWN_NAMES
from mirrorless.flow.policy import ReplicationPolicy

WILDCARD: Final = "*"
"""As a literal resource name: every resource. As a principal: `User:*`. As a host: from anywhere."""

EVERYONE: Final = "User:*"

NEEDED: Final = frozenset(
    {*("ALL", "READ", "WRITE", "DESCRIBE", "CREATE", "ALTER"), *("ALTER_CONFIGS", "DESCRIBE_CONFIGS")}
)
"""Operations on remote topics without which the flow stands still."""

STAGED_RESOURCES: Final = frozenset({"GROUP", "TRANSACTIONAL_ID"})


class Acl(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One ACL binding, with the names of `kafka-acls.sh` in capitals. Stored as an array."""

    resource: str
    """`TOPIC`, `GROUP`, `TRANSACTIONAL_ID`, `CLUSTER`; `UNKNOWN` where the Kafka client has no name for it."""
    pattern: str
    """`LITERAL` or `PREFIXED`."""
    name: str
    principal: str
    host: str
    permission: str
    """`ALLOW` or `DENY`."""
    operation: str

    @property
    def is_wildcard(self) -> bool:
        """Whether it applies to every resource of its type."""
        return self.pattern == "LITERAL" and self.name == WILDCARD

    @property
    def prefix(self) -> str | None:
        """The prefix of the names that it applies to, empty for the wildcard; None for a single name."""
        if self.is_wildcard:
            return ""
        return self.name if self.pattern == "PREFIXED" else None

    def on(self, pattern: str, name: str) -> Acl:
        """The same right on another resource."""
        return msgspec.structs.replace(self, pattern=pattern, name=name)

    def __str__(self) -> str:
        prefixed = " (PREFIXED)" if self.pattern == "PREFIXED" else ""
        host = "" if self.host == WILDCARD else f" from {self.host}"
        return f"{self.permission} {self.operation} for {self.principal}{host} on {self.resource} {self.name}{prefixed}"


class Acls(Protocol):
    """The ACLs of one cluster."""

    def read(self, deadline: Deadline) -> frozenset[Acl] | None:
        """Every binding; None where the cluster has no authorizer.

        Raises:
            Retriable: the cluster does not answer, or does not permit the read.
        """
        ...

    def create(self, acls: Collection[Acl], deadline: Deadline) -> Mapping[Acl, str]:
        """Create bindings; an existing one is no error. Returns the reason for each that was refused.

        Raises:
            Retriable: the cluster does not answer; some may have been created.
        """
        ...

    def delete(self, acls: Collection[Acl], deadline: Deadline) -> Mapping[Acl, str]:
        """Delete exactly these; a missing one is no error. Returns and raises like `create`."""
        ...

    def is_ours(self, principal: str) -> bool:
        """Whether the cluster knows the flow by this name, as far as its credentials show.

        Raises:
            Retriable: the credentials cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The bindings that the target should have."""

    due: frozenset[Acl]
    """Now."""
    staged: frozenset[Acl]
    """When applications have moved."""
    left: Mapping[Acl, str]
    """The source's bindings that are not copied, with the reason."""
    withheld: frozenset[Acl]
    """The source's bindings that would apply to groups or transactional ids of the replication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The bindings to create and to delete on the target."""

    create: frozenset[Acl]
    delete: frozenset[Acl]


def wanted_acls(
    source: Iterable[Acl],
    *,
    taken: Collection[str],
    flow: FlowName,
    policy: ReplicationPolicy,
    is_ours: Callable[[str], bool] = lambda _: False,
) -> Wanted:
    """Map each binding of the source to the target.

    Args:
        source: its bindings.
        taken: the topics of the source that the flow replicates.
        flow: for the names of remote topics.
        policy: for the names of remote topics.
        is_ours: whether a principal is the flow's own on the target.
    """
    source = frozenset(source)
    topics = [acl for acl in source if acl.resource == "TOPIC" and not _unknown(acl)]
    names = _Names(taken=frozenset(taken), flow=flow, policy=policy)
    moving = [acl for acl in source if acl.resource in STAGED_RESOURCES and not _unknown(acl)]
    remote, moved = list(names.on_remote_topics(topics)), list(names.when_moved(topics))
    kept_back = _KeptBack.of([*remote, *moved], is_ours)
    staged = [*kept_back.spare(moved), *_groups_and_ids(moving)]
    due = frozenset(acl for _, acl in kept_back.spare(remote))
    copied = {origin for origin, _ in [*remote, *staged]}
    return Wanted(
        due=due,
        staged=frozenset(acl for _, acl in staged) - due,
        left={acl: _why_left(acl, names.taken) for acl in sorted(source - copied)} | kept_back.why,
        withheld=frozenset(acl for acl in moving if _applies_to_ours(acl)),
    )


def on_groups(withheld: Iterable[Acl], groups: Iterable[str]) -> frozenset[Acl]:
    """The withheld bindings on groups, each on the groups that the flow follows."""
    groups = [group for group in groups if not group.startswith(OWN_NAMES)]
    return frozenset(
        acl.on("LITERAL", group)
        for acl in withheld
        if acl.resource == "GROUP" and acl.prefix is not None
        for group in groups
        if group.startswith(acl.prefix)
    )


def why_withheld(acl: Acl) -> str:
    """The reason why a binding is not staged as it stands."""
    if acl.prefix is None or acl.prefix.startswith(OWN_NAMES):
        return f"names that begin with {OWN_NAMES} are Mirrorless's own"
    if acl.permission == "DENY":
        return "it would apply to Mirrorless itself; it is staged on the names that other ACLs open"
    if acl.resource == "GROUP":
        return "it would open Mirrorless's own groups; it is staged for each group that the flow follows"
    return f"it would open Mirrorless's own ids; grant {acl.principal} the names or prefixes that it uses"


def downgraded(acl: Acl) -> Acl | None:
    """MM2's rule for a remote topic: ALLOW ALL becomes ALLOW READ, ALLOW WRITE is dropped, all else stays."""
    if acl.permission != "ALLOW":
        return acl
    if acl.operation == "WRITE":
        return None
    return msgspec.structs.replace(acl, operation="READ") if acl.operation == "ALL" else acl


def changes(due: frozenset[Acl], *, on_target: frozenset[Acl], ours: frozenset[Acl], kept: frozenset[Acl]) -> Changes:
    """The changes that the target needs.

    Args:
        due: the bindings that the target should have.
        on_target: all of its bindings.
        ours: those that the flow created; no other is ever deleted.
        kept: those that a failover created: the schedule does not delete them.
    """
    return Changes(create=due - on_target, delete=(ours & on_target) - due - kept)


def held_back(allows: Iterable[Acl], without: Iterable[Acl]) -> dict[Acl, Acl]:
    """The ALLOWs that must wait, each with a DENY that could not be created: without it they would permit too much."""
    missing = sorted(without)
    return {
        allow: deny
        for allow in allows
        for deny in missing
        if deny.principal == allow.principal or EVERYONE in {deny.principal, allow.principal}
    }


Copied = tuple[Acl, Acl]
"""A binding of the source, and what becomes of it on the target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptBack:
    """DENYs that would keep the flow out of its remote topics, and what they do for others.

    Attributes:
        denies: what they would be on the target.
        principals: to whom other ACLs open topics, with the operations.
        why: the reason for each binding of the source of which something is kept back.
    """

    denies: frozenset[Acl]
    principals: frozenset[tuple[str, str]]
    why: dict[Acl, str]

    @classmethod
    def of(cls, pairs: Collection[Copied], is_ours: Callable[[str], bool]) -> _KeptBack:
        """Find them among all that is due or staged on topics."""
        denied = [(origin, acl) for origin, acl in pairs if _shuts_out(acl, is_ours)]
        of_all = [acl for _, acl in denied if acl.principal == EVERYONE]
        why = {
            origin: "it would keep the flow itself out of its remote topics"
            + ("; it is copied for those whom other ACLs let in" if acl.principal == EVERYONE else ": it has this name")
            for origin, acl in denied
        }
        why |= {
            origin: f"without this DENY it would open too much: {next(deny for deny in of_all if _limits(deny, acl))}"
            for origin, acl in pairs
            if acl.permission == "ALLOW" and acl.principal == EVERYONE and any(_limits(deny, acl) for deny in of_all)
        }
        return cls(
            denies=frozenset(acl for _, acl in denied),
            principals=frozenset(
                (acl.principal, acl.operation)
                for _, acl in pairs
                if acl.permission == "ALLOW" and acl.principal != EVERYONE and not is_ours(acl.principal)
            ),
            why=why,
        )

    def spare(self, pairs: Iterable[Copied]) -> Iterator[Copied]:
        """The bindings without those that are kept back; a DENY of all for each of the others whom ACLs let in."""
        for origin, acl in pairs:
            if acl not in self.denies:
                if origin not in self.why:
                    yield origin, acl
            elif acl.principal == EVERYONE:
                for principal, operation in self.principals:
                    if _takes(acl.operation, operation):
                        yield origin, msgspec.structs.replace(acl, principal=principal)


def _shuts_out(acl: Acl, is_ours: Callable[[str], bool]) -> bool:
    """Whether the flow cannot work while this is on one of its remote topics."""
    if acl.permission != "DENY" or acl.operation not in NEEDED:
        return False
    return acl.principal == EVERYONE or is_ours(acl.principal)


def _limits(deny: Acl, allow: Acl) -> bool:
    """Whether a DENY takes a part of what an ALLOW gives, from whatever host."""
    if not _takes(deny.operation, allow.operation):
        return False
    pairs = ((deny, allow), (allow, deny))
    return deny.name == allow.name or any(a.prefix is not None and b.name.startswith(a.prefix) for a, b in pairs)


def _takes(denied: str, allowed: str) -> bool:
    """Whether denied operations are among those that an ALLOW gives; who may read or write may describe as well."""
    return "ALL" in {denied, allowed} or denied == allowed or denied.startswith("DESCRIBE")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Topic bindings by their names on the target: on the remote topics, and under the names they have."""

    taken: frozenset[str]
    flow: FlowName
    policy: ReplicationPolicy

    def on_remote_topics(self, topics: Collection[Acl]) -> Iterator[Copied]:
        """The bindings that are due, each with its origin on the source: a name becomes its remote name.

        A prefix stays a prefix where the policy renames topics: `*` becomes `us-east.` PREFIXED. Under the identity
        policy it would apply to topics of the target outside the flow, so it becomes one literal for each topic.
        """
        opened = self._opened(topics) if self._renames else frozenset()
        for acl in topics:
            copied = downgraded(acl)
            if copied is None or not self._concerns(acl, opened):
                continue
            if acl.prefix is None:
                yield acl, copied.on("LITERAL", self._remote(acl.name))
            elif self._renames:
                yield acl, copied.on("PREFIXED", self._remote(acl.prefix))
            else:
                for topic in self._reach(acl):
                    yield acl, copied.on("LITERAL", self._remote(topic))

    def when_moved(self, topics: Collection[Acl]) -> Iterator[Copied]:
        """The bindings to stage, likewise: what MM2's rule leaves out, on the remote topics; and prefixes as they are.

        Rights to write are on single topics: `us-east.` PREFIXED would open the flow's checkpoints topic.
        A prefix is an application's own name space: a streams application makes its internal topics under it, also on
        the target. It is not kept where a topic of the replication has it.
        """
        kept = [acl for acl in topics if acl.permission == "ALLOW" and self._stays_prefix(acl)]
        for acl in kept:
            yield acl, acl
        for acl in topics:
            if acl.permission == "DENY":
                yield from ((acl, denied) for prefix in self._opened(kept) for denied in _denied_below(acl, prefix))
            elif downgraded(acl) != acl and (self._renames or acl not in kept):
                for topic in self._reach(acl):
                    if not self.policy.is_heartbeats_topic(topic):
                        yield acl, acl.on("LITERAL", self._remote(topic))

    def _stays_prefix(self, acl: Acl) -> bool:
        """Whether an ALLOW is staged on its prefix."""
        if not acl.prefix or not self._reach(acl) or not (self._renames or downgraded(acl) != acl):
            return False
        policy, source = self.policy, self.flow.source
        heartbeats = policy.heartbeats_topic()
        ours = heartbeats, self._remote(heartbeats), policy.checkpoints_topic(source), policy.offset_syncs_topic(source)
        return not any(topic.startswith(acl.prefix) for topic in ours)

    def _concerns(self, acl: Acl, opened: frozenset[str]) -> bool:
        """Whether it applies to a taken topic, or denies a part of what an ALLOW on a prefix permits on the target."""
        if self._reach(acl):
            return True
        return acl.permission == "DENY" and any(acl.name.startswith(prefix) for prefix in opened)

    def _opened(self, topics: Iterable[Acl]) -> frozenset[str]:
        """The prefixes of ALLOWs."""
        return frozenset(
            acl.prefix for acl in topics if acl.prefix is not None and acl.permission == "ALLOW" and self._reach(acl)
        )

    def _reach(self, acl: Acl) -> list[str]:
        """The taken topics that a binding applies to."""
        prefix = acl.prefix
        if prefix is None:
            return [acl.name] if acl.name in self.taken else []
        return [topic for topic in self.taken if topic.startswith(prefix)]

    def _remote(self, name: str) -> str:
        return self.policy.remote_topic(self.flow.source, name)

    @property
    def _renames(self) -> bool:
        """Whether the policy prefixes names, so that a prefix matches this flow's remote topics only."""
        return bool(self._remote(""))


def _unknown(acl: Acl) -> bool:
    return "UNKNOWN" in {acl.resource, acl.pattern, acl.permission, acl.operation}


def _groups_and_ids(moving: Collection[Acl]) -> Iterator[Copied]:
    """The bindings on groups and transactional ids to stage, each with its origin.

    A DENY that would apply to the replication is staged on what the ALLOWs open.
    """
    plain = [acl for acl in moving if not _applies_to_ours(acl)]
    for acl in plain:
        yield acl, acl
    for acl in moving:
        if acl.permission == "DENY" and acl.prefix is not None and _applies_to_ours(acl):
            for allow in plain:
                opened = allow.permission == "ALLOW" and allow.resource == acl.resource
                if opened and allow.name.startswith(acl.prefix):
                    yield acl, acl.on(allow.pattern, allow.name)


def _applies_to_ours(acl: Acl) -> bool:
    """Whether a binding on groups or transactional ids applies to some of the replication's."""
    prefix = acl.prefix
    return acl.name.startswith(OWN_NAMES) if prefix is None else prefix.startswith(OWN_NAMES[: len(prefix)])


def _denied_below(deny: Acl, prefix: str) -> Iterator[Acl]:
    """The part of a DENY that is below a prefix."""
    if deny.prefix is not None and prefix.startswith(deny.prefix):
        yield deny.on("PREFIXED", prefix)
    elif deny.name.startswith(prefix):
        yield deny


def _why_left(acl: Acl, taken: Collection[str]) -> str:
    if _unknown(acl):
        return "this version of the Kafka client has no name for it"
    if acl.resource == "CLUSTER":
        return "ACLs on the cluster are never copied: rights on one cluster do not apply to another"
    if acl.resource in STAGED_RESOURCES:
        return why_withheld(acl)
    if acl.resource != "TOPIC":
        return f"ACLs on {acl.resource} are not copied"
    return _why_topics_left(acl, taken)


def _why_topics_left(acl: Acl, taken: Collection[str]) -> str:
    if acl.name in taken or (acl.prefix is not None and any(topic.startswith(acl.prefix) for topic in taken)):
        return "only the replication writes heartbeats"
    if acl.prefix is None:
        return "the flow does not replicate this topic"
    return "the flow replicates no topic with this prefix" if acl.prefix else "the flow replicates no topic"


MARK: Final = f"User:{OWN_NAMES}.failover"
"""The principal of marks."""


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
