"""Rules on more than one value of replication.yaml: names, clusters, topics, cycles, limits of Lambda and Kafka."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from itertools import combinations
from typing import TYPE_CHECKING, Any

from mirrorless.chain.lane import ALIAS
from mirrorless.config.authentication_rules import problems_with_access, problems_with_authentication
from mirrorless.config.broker_ports import is_connection, problems_with_ports
from mirrorless.config.problems import FlowPaths, Path, Problem, section
from mirrorless.config.types import START_WORDS
from mirrorless.flow.filters import NameFilter, is_literal
from mirrorless.flow.policy import LONGEST_TOPIC
from mirrorless.flow.poller_groups import MAPPINGS_OF_A_GROUP, POLLERS_OF_A_GROUP
from mirrorless.topics.discovery import LONGEST_GROUP, SHORTEST_MAPPED

if TYPE_CHECKING:
    from mirrorless.config.cluster import Cluster, ClusterSection
    from mirrorless.config.flow import Flow

PROVISIONED_ONLY = (
    "minimum.pollers",
    "maximum.pollers",
    "poller.group.name",
    "partial.batch.response",
    "metrics",
    "system.log.level",
)
"""Options that the Lambda API refuses on an on-demand mapping."""

_ALIAS_ADVICE = "use a-z, 0-9 and hyphen, for example `us-east`"


def problems_with_names(data: Any) -> Iterator[Problem]:
    """Find problems of aliases, flow names and modes. The values of the document may still be invalid."""
    clusters, flows, defaults = (section(data, name) for name in ("clusters", "flows", "defaults"))
    for alias in clusters:
        if not ALIAS.fullmatch(alias):
            yield Problem(path=("clusters", alias), what=f"{alias!r} is no cluster alias", hint=_ALIAS_ADVICE)
    for name in flows:
        yield from _flow_name(name, list(clusters))
    shared = section(defaults, "mapping")
    for name in flows:
        mapping = section(section(flows, name), "mapping")
        if mapping.get("mode", shared.get("mode")) == "on-demand":
            yield from _provisioned_only(mapping, ("flows", name, "mapping"))
    somewhere_provisioned = any(section(section(flows, name), "mapping").get("mode") == "provisioned" for name in flows)
    if shared.get("mode") == "on-demand" and not somewhere_provisioned:
        yield from _provisioned_only(shared, ("defaults", "mapping"))


def _flow_name(name: str, aliases: list[str]) -> Iterator[Problem]:
    path: Path = ("flows", name)
    source, arrow, target = name.partition("->")
    if not arrow or not source or not target:
        hint = f"write source->target, for example `{'->'.join([*aliases, 'us-east', 'eu-west'][:2])}`"
        yield Problem(path=path, what=f"{name!r} is no flow", hint=hint)
        return
    for alias in dict.fromkeys((source, target)):
        if aliases and alias not in aliases:
            close = get_close_matches(alias.strip(), aliases, n=1)
            guess = f"did you mean `{close[0]}`? Otherwise " if close else ""
            what, hint = f"there is no cluster {alias!r}", f"{guess}describe `{alias}` under `clusters`"
            yield Problem(path=path, what=what, hint=hint)
    if source == target:
        yield Problem(path=path, what="source and target are the same cluster", hint="name two different clusters")


def _provisioned_only(mapping: dict[str, Any], path: Path) -> Iterator[Problem]:
    for key in PROVISIONED_ONLY:
        if key in mapping:
            hint = "write `mode: provisioned`, or remove it"
            yield Problem(path=(*path, key), what="an on-demand mapping does not have this option", hint=hint)


def problems_with_topics(flow: Flow, paths: FlowPaths) -> Iterator[Problem]:
    """Find problems of the topics of one flow."""
    settings, wanted = flow.settings, flow.topics
    if not settings.topics and flow.enabled:
        hint = "add `topics: [orders]`, or `topics: .*` for every topic, or `enabled: false`"
        yield Problem(path=paths.of(flow, "topics"), what="the flow has no topics", hint=hint)
    for index, topic in enumerate(settings.topics):
        path = paths.of(flow, "topics", index)
        if is_literal(topic):
            yield from _literal(topic, wanted, flow, path)
        elif not settings.refresh_topics_enabled:
            hint = "write `refresh.topics.enabled: true`, or name the topics one by one"
            yield Problem(path=path, what=f"nothing discovers topics that match {topic!r}", hint=hint)
    if settings.replication_policy == "prefixed":
        yield from _unreadable(flow, paths.of(flow, "replication.policy.separator"))


def _unreadable(flow: Flow, path: Path) -> Iterator[Problem]:
    """Find prefixes by which origins could not be read back. MM2 lived with what `topic.prefix` says."""
    separator, prefixes = flow.settings.replication_policy_separator, flow.prefixes
    for alias, prefix in sorted(prefixes.items()):
        longer = (each for each in prefixes.values() if each.startswith(f"{prefix}{separator}"))
        if separator in alias and prefix == alias:
            what = f"{separator!r} is part of the alias {alias!r}: origins could not be read back from remote topics"
            yield Problem(path=path, what=what, hint="write a separator that no alias contains, for example `.` or `_`")
        elif other := next(longer, None):
            what = f"{other!r} begins with {prefix!r} and {separator!r}: `{other}{separator}orders` has two origins"
            hint = "write another `topic.prefix`, or another separator"
            yield Problem(path=("clusters", alias, "topic.prefix"), what=what, hint=hint)


def problems_between(flows: Sequence[Flow], paths: FlowPaths) -> Iterator[Problem]:
    """Find enabled flows that write to one remote topic, or would replicate a record in a circle for ever."""
    for one, other in combinations(flows, 2):
        if one.name.target == other.name.target:
            yield from _meeting(one, other, paths)
    for cycle in _cycles([flow for flow in flows if flow.settings.replication_policy == "identity"]):
        if (topic := _shared_topic(cycle)) and not all(flow.origins for flow in cycle):
            way = ", ".join(str(flow.name) for flow in cycle)
            what = f"records of {topic} would be replicated in a circle for ever ({way}): "
            what += "names under `identity` do not contain their origin"
            hint = "write `loop.prevention: header` in each of these flows, whose copies then carry their origin, or "
            hint += "`replication.policy: prefixed`, or name different topics in each of them"
            yield Problem(path=paths.of(cycle[-1], "replication.policy"), what=what, hint=hint)


def _literal(topic: str, wanted: NameFilter, flow: Flow, path: Path) -> Iterator[Problem]:
    def problem(what: str, hint: str) -> Problem:
        return Problem(path=path, what=what, hint=hint)

    mapped = flow.triggers.of(topic) == "mapping"
    if len(topic) < SHORTEST_MAPPED and mapped:
        what = f"{topic!r} is one character long, and an event source mapping takes two or more"
        yield problem(what, f"schedule it by `trigger.overrides: {{{topic}: schedule}}`, or rename the topic")
    if flow.policy.is_internal_topic(topic):
        yield problem(f"{topic!r} is internal to Kafka or to the replication, and never replicated", "remove it")
    elif flow.policy.is_cycle(topic, flow.name):
        origin = flow.policy.original_topic(topic)
        yield problem(
            f"{topic!r} has been at one end of this flow already, which is a cycle", f"name the original, `{origin}`"
        )
    elif not wanted.accepts(topic):
        yield problem(f"{topic!r} is excluded by `topics.exclude`", "remove it here, or change the exclusion")
    if len(remote := flow.remote_topic(topic)) > LONGEST_TOPIC:
        what = f"its remote topic would have {len(remote)} characters, a topic has at most {LONGEST_TOPIC}"
        yield problem(what, "shorten the source's alias, or write `replication.policy: identity`")
    elif mapped and (length := len(flow.group_name(topic))) > LONGEST_GROUP:
        what = f"its consumer group would have {length} characters, Lambda takes {LONGEST_GROUP}"
        yield problem(what, "shorten the cluster aliases, or schedule this topic by `trigger.overrides`")


def _meeting(one: Flow, other: Flow, paths: FlowPaths) -> Iterator[Problem]:
    """Find a remote topic that two flows would write to: each would take the other's records for damage."""
    theirs = {one.remote_topic(topic) for topic in one.literal_topics}
    ours = [other.remote_topic(topic) for topic in other.literal_topics]
    meeting = next((f"{remote!r}" for remote in ours if remote in theirs), None)
    if meeting is None and one.settings.replication_policy == other.settings.replication_policy == "identity":
        meeting = _shared_topic((one, other))
    if meeting:
        what = f"{meeting} on {other.name.target} would be written by {one.name} and by {other.name}"
        hint = "write `replication.policy: prefixed` in one of the flows, or name different topics in each of them"
        yield Problem(path=paths.of(other, "topics"), what=what, hint=hint)


def _cycles(flows: Sequence[Flow], way: tuple[Flow, ...] = ()) -> Iterator[tuple[Flow, ...]]:
    """Find every simple cycle, each once, from its first flow in the document's order."""
    for index, flow in enumerate(flows):
        if not way:
            yield from _cycles(flows[index + 1 :], (flow,))
        elif flow.name.source == way[-1].name.target:
            longer = (*way, flow)
            if flow.name.target == way[0].name.source:
                yield longer
            elif flow.name.target not in {past.name.source for past in way}:
                yield from _cycles([rest for rest in flows if rest is not flow], longer)


def _shared_topic(cycle: Sequence[Flow]) -> str | None:
    """Return a topic that all these flows take. Patterns cannot be compared, so any two count as overlapping."""
    wanted = [flow.topics for flow in cycle]
    for topic in (topic for each in wanted for topic in each.literals):
        if all(each.accepts(topic) for each in wanted):
            return f"{topic!r}"
    patterns = [each.patterns for each in wanted]
    return f"topics that match {patterns[0][0]!r}" if all(patterns) else None


LEAST_LOOK_MB = 256
"""Of the forwarder, measured: an event of 6 MB with a record of 20 MB in a gap takes 150 MB, with one of 50 MB 220."""

LEAST_LOOK_SECONDS = 30
"""Of an invocation: reading takes 10 s at most, and then a transaction has to fit."""

LARGEST_SETTINGS = 3_072
"""Bytes of a function's settings at most: Lambda gives all environment variables of a function 4 KB together."""


def problems_with_cluster(cluster: Cluster, section: ClusterSection) -> Iterator[Problem]:
    """Find problems of one cluster, whatever flows it is in."""
    path: Path = ("clusters", cluster.alias)
    yield from problems_with_authentication(cluster)
    yield from problems_with_ports(cluster)
    if cluster.msk_arn is None:
        return
    region, account = cluster.msk_arn.split(":")[3:5]
    # The account of a VPC connection is the client's; its ARN names the cluster's owner.
    connects = is_connection(cluster)
    for key, written, said in (("region", section.region, region), ("account", section.account, account)):
        if written not in {None, said} and not (connects and key == "account"):
            hint = f"write {said!r}, or remove `{key}`"
            yield Problem(path=(*path, key), what=f"{written!r} is not what `msk.cluster.arn` says", hint=hint)


def problems_with_prefixes(clusters: Iterable[Cluster]) -> Iterator[Problem]:
    """Find clusters whose topics would have the same names."""
    known: dict[str, str] = {}
    for cluster in sorted(clusters, key=lambda each: each.topic_prefix != each.alias):
        if (other := known.setdefault(cluster.topic_prefix, cluster.alias)) != cluster.alias:
            what = f"{cluster.topic_prefix!r} is what names of topics have for {other}"
            hint = "write another `topic.prefix`, or another alias"
            yield Problem(path=("clusters", cluster.alias, "topic.prefix"), what=what, hint=hint)


def problems_with_limits(flow: Flow, paths: FlowPaths, now: datetime) -> Iterator[Problem]:
    """Find problems of the numbers of one flow."""
    settings, mapping = flow.settings, flow.settings.mapping
    timeout_ms = settings.function.timeout_seconds * 1_000
    if settings.transaction_timeout_ms >= timeout_ms:
        what = f"a transaction may take {settings.transaction_timeout_ms:,} ms, and its function only {timeout_ms:,} ms"
        hint = f"write less than {timeout_ms:,}, or a longer `function: {{timeout.seconds: …}}`"
        yield Problem(path=paths.of(flow, "transaction.timeout.ms"), what=what, hint=hint)
    if mapping.mode == "provisioned" and mapping.minimum_pollers > mapping.maximum_pollers:
        what = f"{mapping.minimum_pollers} pollers at least are more than the {mapping.maximum_pollers} at most"
        hint = f"write 1 to {mapping.maximum_pollers}, or raise `maximum.pollers`"
        yield Problem(path=paths.of(flow, "mapping", "minimum.pollers"), what=what, hint=hint)
    if settings.start not in START_WORDS and datetime.fromisoformat(settings.start) > now:
        what = f"{settings.start} is in the future, and Lambda refuses to start there"
        hint = "write a time that is past, or `latest`"
        yield Problem(path=paths.of(flow, "start"), what=what, hint=hint)
    if settings.sync_group_offsets_enabled and not settings.emit_checkpoints_enabled:
        what = "group offsets come from checkpoints, and those are turned off"
        hint = "write `emit.checkpoints.enabled: true`, or turn this off too"
        yield Problem(path=paths.of(flow, "sync.group.offsets.enabled"), what=what, hint=hint)
    if (size := len(flow.function_settings_json().encode())) > LARGEST_SETTINGS:
        what = f"the function's settings would take {size:,} bytes, and there is room for {LARGEST_SETTINGS:,}"
        plain = replace(flow, settings=settings.model_copy(update={"transforms": ()}))
        rest = len(plain.function_settings_json().encode())
        path: Path = ("clusters", flow.name.source, "bootstrap.servers")
        hint = "name fewer `bootstrap.servers`; two or three are enough to find the rest"
        if size - rest > rest:
            path = paths.of(flow, "transforms")
            what += f"; {size - rest:,} of them are these rules with their keys"
            hint = 'name what stays by `pass` beside `"*": drop`, write fewer or shorter rules, or divide the topics '
            hint += "among two flows with an alias of the source each"
        yield Problem(path=path, what=what, hint=hint)
    if flow.stops_at_oversize:
        yield from _too_small_to_look(flow, paths)
    yield from problems_with_access(flow)


def _too_small_to_look(flow: Flow, paths: FlowPaths) -> Iterator[Problem]:
    """Find a forwarder without room or time to look for records that no event can carry."""
    function = flow.settings.function
    if function.memory_mb < LEAST_LOOK_MB:
        what = f"{function.memory_mb} MB do not hold an event and the large records that `oversize: stop` looks for"
        hint = f"write {LEAST_LOOK_MB} or more, or `oversize: ledger`"
        yield Problem(path=paths.of(flow, "function", "memory.mb"), what=what, hint=hint)
    if function.timeout_seconds < LEAST_LOOK_SECONDS:
        what = f"{function.timeout_seconds} s are too short to look for large records, and to write an event"
        hint = f"write {LEAST_LOOK_SECONDS} or more, or `oversize: ledger`"
        yield Problem(path=paths.of(flow, "function", "timeout.seconds"), what=what, hint=hint)


def problems_with_pollers(flows: Sequence[Flow], paths: FlowPaths) -> Iterator[Problem]:
    """Find poller groups that the configuration names and that hold more than Lambda allows.

    A group is of one VPC: here, of one source cluster.
    """
    groups: dict[tuple[str, str], list[Flow]] = defaultdict(list)
    for flow in flows:
        mapping = flow.settings.mapping
        if mapping.mode == "provisioned" and mapping.poller_group_name:
            groups[mapping.poller_group_name, flow.name.source].append(flow)
    for (name, source), members in groups.items():
        counts = [sum(flow.triggers.of(topic) == "mapping" for topic in flow.literal_topics) for flow in members]
        mappings = sum(counts)
        maximums = [flow.settings.mapping.maximum_pollers for flow in members]
        pollers = sum(count * maximum for count, maximum in zip(counts, maximums, strict=True))
        if pollers > POLLERS_OF_A_GROUP:
            what = f"the {mappings} mappings of group {name!r} on {source} may have {pollers:,} pollers in all"
            what += f", and a group has {POLLERS_OF_A_GROUP:,} at most"
            hint = f"write {max(1, POLLERS_OF_A_GROUP // mappings)} or fewer, or leave out `poller.group.name`"
            yield Problem(path=paths.of(members[-1], "mapping", "maximum.pollers"), what=what, hint=hint)
        if mappings > MAPPINGS_OF_A_GROUP:
            what = f"group {name!r} on {source} would have {mappings} mappings, and may have {MAPPINGS_OF_A_GROUP}"
            hint = "leave it out, or use another `poller.group.name` in some of the flows"
            yield Problem(path=paths.of(members[-1], "mapping", "poller.group.name"), what=what, hint=hint)
