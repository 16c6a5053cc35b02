"""What a failover, a failback or a drill sees before anything is changed, and what it refuses by that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.errors import Refused, few
from mirrorless.failover.state import FailoverDocument, FailoverOrder, read_document
from mirrorless.failover.work import FailoverEffects
from mirrorless.ports.stores import lanes_with_a_chain
from mirrorless.reports.format import numbered
from mirrorless.topics.acls import unguarded
from mirrorless.topics.discovery import discover
from mirrorless.topics.topic_state import StoredTopics

NAMED = 5
"""Topics and lanes that a sentence names; the others are counted."""


class FailoverRefused(Refused):
    """The command does not fit the state of the flow or of its clusters. Nothing was changed."""


ANSWER_SECONDS = 20.0


class WiderTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A remote topic with more partitions than the source's: no lane brings back what is written to the others."""

    topic: str
    remote_topic: str
    partitions: int
    """Of the source's topic."""
    remote_partitions: int
    offsets: int
    """That stand in the others now."""

    def warning(self, source: str, *, back: bool) -> str:
        """For the operator, before producers move. Args: source: its alias; back: whether they come back."""
        written = (
            "was written to the others stays there" if back else "producers write to the others does not come back"
        )
        remedy = f"Give {self.topic} {numbered(self.remote_partitions, 'partition')} on {source} first"
        other = "" if back else f", or let producers write to the first {self.partitions} only"
        return (
            f"{self.remote_topic} has {self.remote_partitions} partitions, and {self.topic} on {source} "
            f"{self.partitions}: what {written}; {numbered(self.offsets, 'offset')} in them now. {remedy}{other}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a command has seen before it changes anything."""

    source_trouble: str = ""
    """Why the source does not answer; empty while it does."""
    target_trouble: str = ""
    document: FailoverDocument | None = None
    iam: bool = False
    """Whether clients of the source are authenticated by IAM."""
    authorizer: bool = True
    """Whether the source has one."""
    unguarded: Sequence[str] = ()
    """Topics without ACLs on the source."""
    stopped: Sequence[str] = ()
    """Lanes that are stopped, each with its reason."""
    leased: Sequence[str] = ()
    """Lanes that a job has."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """Those that the flow replicates, with their partitions; without heartbeats, which nobody's records are in."""
    wider: Sequence[WiderTopic] = ()
    marked: bool = False
    """Whether the flow marks its copies, see `mirrorless.records.origin`."""
    both_ways: bool = False
    """Whether there is a flow in the other direction, of the same pair."""
    masked: Sequence[str] = ()
    """Topics with a rule of `transforms`: what it leaves out is not on the target, so nothing may come back."""


def observe(effects: FailoverEffects, order: FailoverOrder, *, back: bool) -> Observation:
    """Look at everything that a refusal may rest on.

    Raises:
        Retriable: a store does not answer, or a cluster that had answered before.
    """
    flow = effects.flow
    document = read_document(effects.documents, flow)
    seen = Observation(
        source_trouble=effects.source.answers(),
        target_trouble=effects.target.answers(),
        document=document,
        marked=bool(effects.settings.origins),
        both_ways=effects.both_ways,
    )
    without_source = order.mode == "source-lost" and not back
    if seen.target_trouble or (seen.source_trouble and not without_source):
        return seen
    topics = known_topics(effects) if without_source else replicated(effects)
    lanes = [Lane(flow, topic, partition) for topic, count in topics.items() for partition in range(count)]
    states, now = effects.states.read(lanes), effects.clock()
    returning = document.back if document is not None and not document.over else None
    own = {*returning.runs, returning.reconcile_run} if returning is not None else set[str]()
    seen = replace(
        seen,
        stopped=[str(lane) for lane, each in sorted(states.items()) if each.stop is not None and not each.of_flow],
        leased=[
            str(lane)
            for lane, each in sorted(states.items())
            if each.lease is not None and now < each.lease.until and each.lease.holder not in own
        ],
        topics=topics,
        masked=[topic for topic in sorted(topics) if effects.settings.rule_of(topic) is not None],
        wider=() if effects.both_ways else _wider(effects, topics),
    )
    if not back and order.mode == "planned" and order.fencing == "acl" and not effects.both_ways:
        seen = _with_acls(seen, effects)
    return seen


def _wider(effects: FailoverEffects, topics: Mapping[str, int]) -> list[WiderTopic]:
    """The topics that have more partitions on the target."""
    there, found = effects.target.partitions(effects.within(ANSWER_SECONDS)), []
    for topic, count in topics.items():
        remote = effects.remote_topic(topic)
        others = [(remote, partition) for partition in range(count, there.get(remote, 0))]
        if others:
            ends = effects.target.ends(others, effects.within(ANSWER_SECONDS))
            offsets = sum(end - start for start, _, end in ends.values())
            found.append(
                WiderTopic(
                    topic=topic,
                    remote_topic=remote,
                    partitions=count,
                    remote_partitions=count + len(others),
                    offsets=offsets,
                )
            )
    return found


def _with_acls(seen: Observation, effects: FailoverEffects) -> Observation:
    if effects.settings.source.authentication.type == "iam":
        return replace(seen, iam=True)
    acls = effects.source.acls.read(effects.within(ANSWER_SECONDS))
    if acls is None:
        return replace(seen, authorizer=False)
    return replace(seen, unguarded=unguarded(seen.topics, acls))


def replicated(effects: FailoverEffects) -> dict[str, int]:
    """The topics that the source has and the flow replicates, with their partitions.

    Raises:
        Retriable: the source does not answer.
    """
    settings = msgspec.structs.replace(effects.settings, heartbeats_replication_enabled=False)
    on_source = effects.source.partitions(effects.within(ANSWER_SECONDS))
    return {topic: on_source[topic] for topic in discover(on_source, settings).taken}


def known_topics(effects: FailoverEffects) -> dict[str, int]:
    """The topics that are known without the source: those of earlier refreshes, and literal ones with a chain."""
    settings, flow = msgspec.structs.replace(effects.settings, heartbeats_replication_enabled=False), effects.flow
    stored = StoredTopics.of(effects.documents.read(flow, "topic")).topics
    counts = {topic: state.partitions for topic, state in stored.items()}
    for topic in settings.topic_filter.literals:
        if topic not in counts and (found := lanes_with_a_chain(effects.chains, flow, topic)):
            counts[topic] = found
    return {topic: counts[topic] for topic in discover(counts, settings).taken}


def check_document(
    flow: FlowName, order: FailoverOrder, document: FailoverDocument | None, *, source_lost: bool
) -> None:
    """Check an order against the failover that is stored.

    Args:
        flow: whose.
        order: the new one.
        document: the stored one; None for none.
        source_lost: whether the source does not answer: then an unfinished planned failover goes on without it.

    Raises:
        FailoverRefused: another failover, or its failback, is unfinished; or the flow has failed over.
    """
    if document is None or document.over:
        return
    if document.back is not None:
        raise _refused(flow, "its failback is unfinished", f"finish it: `mirrorless failback '{flow}' --execute`")
    if document.order == order:
        return
    if not document.ended_at:
        if order.mode == "source-lost" and document.order.mode == "planned" and source_lost:
            return
        raise _refused(
            flow,
            f"a failover with other options is unfinished: {document.order.words}",
            f"finish it: `mirrorless failover '{flow}' {document.order.words} --execute`; "
            f"or undo it: `mirrorless failback '{flow}' --execute`",
        )
    raise _refused(
        flow,
        f"it has failed over already ({document.order.words})",
        f"`mirrorless failback '{flow}' --execute` brings it back",
    )


def check_failover(flow: FlowName, order: FailoverOrder, seen: Observation, *, force: bool) -> None:
    """Check what was seen against a failover or a drill that has not begun.

    Raises:
        FailoverRefused: with the reason, and what to do.
    """
    if seen.target_trouble:
        raise _refused(flow, f"{flow.target} does not answer: {seen.target_trouble}", "try again when it does")
    if seen.source_trouble and order.mode != "source-lost":
        raise _refused(flow, f"{flow.source} does not answer: {seen.source_trouble}", "use --source-lost if it is lost")
    if not seen.topics:
        raise _refused(flow, "no topic of it is known", f"`mirrorless topics '{flow}'` lists what it replicates")
    if order.mode == "source-lost":
        if not seen.source_trouble and not force:
            raise _refused(
                flow,
                f"{flow.source} answers",
                "use --planned, which loses nothing; or --force where it answers you and nobody else",
            )
        return
    if order.mode == "drill":
        return
    _check_way_back(flow, seen)
    if seen.leased:
        raise _refused(flow, f"a job has {few(seen.leased, NAMED)}", "wait for the job, or cancel it")
    if seen.stopped and not force:
        raise _refused(
            flow,
            f"records wait behind stopped lanes: {few(seen.stopped, NAMED)}",
            f"bring them back, see `mirrorless lanes stopped '{flow}'`; "
            "or use --force, and they are missing on the target",
        )
    if order.fencing == "acl":
        _check_acls(flow, seen)


def _check_way_back(flow: FlowName, seen: Observation) -> None:
    """The job of a failback compares bytes, and a marked copy has a header more than its original."""
    if seen.marked and not seen.both_ways:
        raise _refused(
            flow,
            f"it marks its copies, and no flow {flow.turned} of a pair of clusters brings anything back",
            f"enable {flow.turned} with `loop.prevention: header`; in a larger circle of clusters stop producers and "
            "groups yourself, and start the groups on the target at an offset that you choose",
        )


def _check_acls(flow: FlowName, seen: Observation) -> None:
    wait = "stop the producers yourself, and use --fence wait"
    if seen.both_ways:
        raise _refused(flow, f"ACLs that keep producers from {flow.source} would stop {flow.turned} as well", wait)
    if seen.iam:
        raise _refused(flow, f"ACLs of Kafka do not bind the principals of IAM on {flow.source}", wait)
    if not seen.authorizer:
        raise _refused(flow, f"{flow.source} has no authorizer, so ACLs keep nobody from writing", wait)
    if seen.unguarded:
        some = few(seen.unguarded, NAMED)
        raise _refused(
            flow, f"no ACL applies to {some} on {flow.source}: a first one could close it to its readers", wait
        )


def check_failback(flow: FlowName, seen: Observation) -> FailoverDocument:
    """Check what was seen against a failback.

    Returns:
        the failover that it ends.

    Raises:
        FailoverRefused: with the reason, and what to do.
    """
    if seen.document is None:
        raise _refused(flow, "it has not failed over", "nothing is to be brought back")
    if seen.document.over:
        return seen.document  # the command ended after its last write: it shows the report again
    for alias, trouble in ((flow.source, seen.source_trouble), (flow.target, seen.target_trouble)):
        if trouble:
            raise _refused(flow, f"{alias} does not answer: {trouble}", "try again when it does")
    _check_way_back(flow, seen)
    if seen.masked and seen.document.ended_at:
        raise _refused(
            flow,
            _one_way(flow, seen),
            f"let producers and groups stay there; to replicate from {flow.source} again, delete the ACLs that deny "
            f"writes to it, and deploy the flow under another alias of {flow.source}, into topics of its own",
        )
    if seen.leased:
        raise _refused(flow, f"a job has {few(seen.leased, NAMED)}", "wait for the job, or cancel it")
    return seen.document


def no_way_back(flow: FlowName, seen: Observation) -> str:
    """For the operator, before producers move; empty where there is a way back."""
    if not seen.masked:
        return ""
    return f"there will be no failback: {_one_way(flow, seen)}"


def _one_way(flow: FlowName, seen: Observation) -> str:
    some = few(seen.masked, NAMED)
    return f"`transforms` change or leave out records of {some}, so nothing may come back from {flow.target}"


def _refused(flow: FlowName, what: str, hint: str) -> FailoverRefused:
    return FailoverRefused(f"refused, and nothing was changed: {what}", where=str(flow), hint=hint)
