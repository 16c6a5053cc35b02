"""`mirrorless translate FLOW TOPIC PARTITION OFFSET [--reverse]`: an offset's counterpart on the other cluster."""

from __future__ import annotations

import argparse
from typing import Any

from cli.args import BadInput, add_deployment, add_lane, offset
from cli.clusters import ClusterView
from cli.deployment import DeployedFlows, Stores
from cli.output import print_json, say
from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import NEW_LANE, Head
from mirrorless.flow.filters import should_replicate
from mirrorless.flow.policy import ReplicationPolicy
from mirrorless.protocol.map_reads import MapReads
from mirrorless.protocol.past import PastStore
from mirrorless.protocol.translate import OffsetMap, Translation


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `translate`."""
    parser = subparsers.add_parser(
        "translate",
        help="translate an offset between source and target, by the offset map",
        description="Translate an upstream offset into the downstream offset; with --reverse, the other way round.",
        epilog="Example: mirrorless translate 'us-east->eu-west' orders 3 1234",
    )
    add_lane(parser)
    parser.add_argument("offset", metavar="OFFSET", type=offset, help="upstream; with --reverse downstream")
    parser.add_argument("--reverse", action="store_true", help="from the target back to the source")
    add_deployment(parser, run)


def run(arguments: argparse.Namespace) -> int:
    """Print the translated offset and its state. Exit code 0 for every state of the translation."""
    deployment = DeployedFlows.of(arguments)
    lane = deployment.lane(arguments.flow, arguments.topic, arguments.partition)
    stores = deployment.stores(lane.flow)
    lane, head = _with_head(lane, deployment, stores)
    if head == NEW_LANE:
        _check_that_it_exists(lane, deployment)

    offsets = OffsetMap(
        MapReads(chains=stores.chains, stops=stores.states.read), PastStore(documents=stores.checkpoints)
    )
    found = (offsets.upstream if arguments.reverse else offsets.downstream)(lane, arguments.offset)

    if arguments.json:
        answer: dict[str, Any] = {"offset": found.offset, "state": found.state, "bound": found.bound}
        answer["generation"] = head.generation
        if lane.topic != arguments.topic:
            answer["source_topic"] = lane.topic
        print_json(answer, indent=None)
    else:
        if lane.topic != arguments.topic:
            say(f"{arguments.topic} is the remote topic of {lane.topic}.")
        say(_sentence(lane, arguments.offset, found, reverse=arguments.reverse))
    return 0


def _with_head(lane: Lane, deployment: DeployedFlows, stores: Stores) -> tuple[Lane, Head]:
    """The lane and its head. Where no such source topic was replicated, the name may be the remote topic's."""
    head = stores.chains.heads([lane])[lane]
    if head != NEW_LANE:
        return lane, head
    upstream = _upstream(lane, deployment.flow(lane.flow).policy)
    if upstream is None or upstream == lane.topic:
        return lane, head
    other = Lane(lane.flow, upstream, lane.partition)
    other_head = stores.chains.heads([other])[other]
    return (lane, head) if other_head == NEW_LANE else (other, other_head)


def _upstream(lane: Lane, policy: ReplicationPolicy) -> str | None:
    """The source topic whose remote topic the lane names."""
    return policy.upstream_topic(lane.topic) if policy.topic_source(lane.topic) == lane.flow.source else None


def _check_that_it_exists(lane: Lane, deployment: DeployedFlows) -> None:
    """Check a lane without a map; where the source does not answer, it may exist.

    Raises:
        BadInput: the source has no such topic or partition, or the flow does not take the topic.
    """
    flow = deployment.flow(lane.flow)
    policy = flow.policy
    there = ClusterView.source(deployment, lane.flow).partitions()
    if there is None:
        return
    upstream = _upstream(lane, policy)
    topic = lane.topic if lane.topic in there or upstream is None else upstream
    hint = f"`mirrorless topics '{lane.flow}'` lists what the flow takes"
    if topic not in there:
        raise BadInput(f"{lane.flow.source} has no topic {topic}", where=str(lane.flow), hint=hint)
    if lane.partition >= there[topic]:
        raise BadInput(
            f"topic {topic} has no partition {lane.partition}",
            where=str(lane.flow),
            hint=f"{lane.flow.source} has 0 to {there[topic] - 1}",
        )
    if not should_replicate(topic, flow=lane.flow, topics=flow.topics, policy=policy, heartbeats=True):
        raise BadInput(f"the flow does not take topic {topic}", where=str(lane.flow), hint=hint)


def _sentence(lane: Lane, given: int, found: Translation, *, reverse: bool) -> str:
    here, there = ("downstream", "upstream") if reverse else ("upstream", "downstream")
    end_of = "the remote topic" if reverse else "the lane"
    this, other = f"{here} {given}", f"{there} {found.offset}"
    said = {
        "exact": f"{this} is {other}.",
        "next_record": f"no replicated record stands at {this}; the next one is at {other}.",
        "approximate": f"{this} lies before this flow's own records; {other} is its place, or at most {found.bound} "
        "offsets before it.",
        "ahead_of_replication": f"{this} is ahead of replication; what is replicated of {end_of} ends before {other}.",
        "before_map": f"{this} is before the map; its oldest record is at {other}.",
        "no_map": "nothing of this lane has been replicated, so there is no offset to go to.",
        "map_lost": "the lane is stopped, and its map describes records that are gone: there is no offset to go to "
        f"until it is reset. `mirrorless lanes stopped '{lane.flow}'` has the reason.",
    }
    return f"{lane}: {said[found.state]}"
