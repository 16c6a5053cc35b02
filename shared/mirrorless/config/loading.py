"""The way from the text of replication.yaml to a validated Configuration, or to every problem in it.

The rules on one flow beside others, on its triggers and its schedules are here, with those on flows in a circle that
keep the names of topics: `loop.prevention`, and what only one of them may do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pydantic import ValidationError

from mirrorless.chain.lane import FlowName
from mirrorless.config import yaml_source
from mirrorless.config.authentication_rules import (
    problems_with_replicas,
    problems_with_serverless,
    problems_with_shared_secrets,
)
from mirrorless.config.cluster import Cluster, Mtls, Plaintext, Scram
from mirrorless.config.flow import Flow
from mirrorless.config.flow_section import FlowSection
from mirrorless.config.messages import problems_of
from mirrorless.config.problems import FlowPaths, InvalidConfiguration, Path, Problem, section
from mirrorless.config.rules import (
    problems_between,
    problems_with_cluster,
    problems_with_limits,
    problems_with_names,
    problems_with_pollers,
    problems_with_prefixes,
    problems_with_topics,
)
from mirrorless.config.schema import DeploymentSection, Document
from mirrorless.config.transform_rules import (
    problems_with_functions,
    problems_with_keys,
    problems_with_registry,
    problems_with_rules,
)
from mirrorless.errors import ConfigurationError
from mirrorless.flow.filters import NameFilter, is_literal
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.flow.settings import Tables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import ErrorDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """replication.yaml, validated whole and resolved.

    Attributes:
        origin: the file, for errors.
        clusters: by alias, in the order written.
        flows: every flow by its name, in the order written, whether enabled or not.
        deployment: what is deployed beyond the flows.
    """

    origin: str
    clusters: Mapping[str, Cluster]
    flows: Mapping[FlowName, Flow]
    deployment: DeploymentSection

    @property
    def folder(self) -> File:
        """Where the operator's own functions are: beside the file."""
        return File(self.origin).resolve().parent

    @property
    def enabled_flows(self) -> tuple[Flow, ...]:
        """The flows that run."""
        return tuple(flow for flow in self.flows.values() if flow.enabled)

    def flow(self, name: str | FlowName) -> Flow:
        """Return one flow.

        Raises:
            ConfigurationError: there is no such flow, or the text is no flow's name.
        """
        for flow_name, flow in self.flows.items():
            if str(flow_name) == str(name):
                return flow
        known = ", ".join(map(str, self.flows))
        raise ConfigurationError("there is no such flow", where=f"{self.origin}: {name}", hint=f"name one of {known}")

    def with_clusters_at(self, bootstrap: Mapping[str, str], *, replication_factor: int = 1) -> Configuration:
        """Return the same flows between other clusters: plaintext, at these addresses, without an ARN.

        The lab runs a configuration of the cloud so. `bootstrap` maps each alias to `host:port[,host:port]`. The lab's
        clusters have too few brokers for the replication factors that are written, and all flows share their tables.
        """
        replacements = {
            alias: replace(
                cluster,
                bootstrap=tuple(bootstrap[alias].split(",")),
                msk_arn=None,
                authentication=Plaintext(type="plaintext"),
                vpc=None,
            )
            for alias, cluster in self.clusters.items()
        }
        # All of them: a topic with more replicas than brokers cannot be created.
        names = (name for name in FlowSection.model_fields if name.endswith("replication_factor"))
        factors = dict.fromkeys(names, replication_factor)
        flows = {
            name: replace(
                flow,
                source=replacements[name.source],
                target=replacements[name.target],
                settings=flow.settings.model_copy(update=factors),
                shared_tables=msgspec.structs.asdict(Tables()),
            )
            for name, flow in self.flows.items()
        }
        return replace(self, clusters=replacements, flows=flows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A document with everything that is wrong with it.

    Attributes:
        origin: the file, for errors.
        text: the document.
        problems: what is wrong, in no order.
        left_out: what was left out to go on, since its value or its name is wrong.
        configuration: the rest, resolved; None where too little is left. What it says of the part that was left out is
            a default, and no problem of the document's.
    """

    origin: str
    text: yaml_source.YamlSource
    problems: tuple[Problem, ...]
    left_out: tuple[Path, ...]
    configuration: Configuration | None

    def with_problems(self, more: Iterable[Problem]) -> Examination:
        """The same with further problems of the configuration; those about what was left out are none."""
        known = [
            each
            for each in more
            if not any(each.path[: len(path)] == path or path[: len(each.path)] == each.path for path in self.left_out)
        ]
        return replace(self, problems=(*self.problems, *known))

    def as_error(self) -> InvalidConfiguration:
        """All problems by lines, each once: one in `defaults` is found for every flow."""
        placed = dict.fromkeys(replace(each, line=self.text.line_of(each.path)) for each in self.problems)
        return InvalidConfiguration(self.origin, sorted(placed, key=lambda problem: problem.line or 0))


def load(source: File | str, *, now: datetime | None = None, trial: bool = False) -> Configuration:
    """Read a configuration. Args: as of `examine`.

    Raises:
        InvalidConfiguration: with every problem.
        ConfigurationError: the file cannot be read.
    """
    found = examine(source, now=now, trial=trial)
    if found.problems or found.configuration is None:
        raise found.as_error()
    return found.configuration


def examine(source: File | str, *, now: datetime | None = None, trial: bool = False) -> Examination:
    """Look at a configuration in a file; or at the text itself, which is a `str` with a line break.

    Args:
        source: the file, or the text.
        now: the moment that a start time must precede; left out, the clock's.
        trial: whether the operator's own functions are tried, which runs them.

    Raises:
        InvalidConfiguration: the text is not YAML.
        ConfigurationError: the file cannot be read.
    """
    if isinstance(source, str) and "\n" in source:
        text, origin = source, "replication.yaml"
    else:
        origin = str(source)
        try:
            text = File(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            hint = "name a file of UTF-8 text; replication.example.yaml is one to begin with"
            raise ConfigurationError(f"the file cannot be read: {exc}", where=origin, hint=hint) from exc
    found = _examined(yaml_source.read(text, origin=origin), origin, now or datetime.now(UTC))
    if not trial or found.configuration is None:
        return found
    paths, flows = FlowPaths(found.text.data), found.configuration.flows.values()
    folder = found.configuration.folder
    return found.with_problems([each for flow in flows for each in problems_with_functions(flow, paths, folder)])


def _examined(text: yaml_source.YamlSource, origin: str, now: datetime) -> Examination:
    problems = [*problems_with_names(text.data), *problems_with_schedule_keys(text.data)]
    misnamed = [each.path for each in problems if len(each.path) == len(("flows", "a->b"))]
    of_values = problems_of(_validated(text.data)[1], text)
    problems += of_values
    data, left_out = deepcopy(text.data), [*misnamed, *(each.path for each in of_values)]
    _leave_out(data, misnamed)
    for _ in range(_ATTEMPTS):
        if not (errors := _validated(data)[1]):
            break
        _leave_out(
            data, [each.path for each in problems_of(errors, yaml_source.YamlSource(data=data, lines=text.lines))]
        )
    # A flow between clusters of which one is left out is no flow any more.
    lost = [each.path for each in problems_with_names(data) if each.path[0] == "flows"]
    _leave_out(data, lost)
    written, _ = _validated(data)
    found = Examination(
        origin=origin, text=text, problems=tuple(problems), left_out=(*left_out, *lost), configuration=None
    )
    if written is None:
        return found
    configuration = _resolved(written, data, origin)
    more = _problems_of_values(configuration, written, data, now)
    return replace(found.with_problems(more), configuration=configuration)


def _validated(data: Any) -> tuple[Document | None, list[ErrorDetails]]:
    """A document by its model, or what is wrong with its values."""
    try:
        return Document.model_validate(data), []
    except ValidationError as exc:
        return None, exc.errors(include_url=False)


_ATTEMPTS: Final = 4
"""What is left out may leave a section without a key that it must have, which is left out with it."""


def _leave_out(data: Any, paths: Iterable[Path]) -> None:
    """Remove values from a document; the whole section where a value is missing, but for a cluster's addresses."""
    # Of a list, the last entries first: the others keep their places.
    for path in sorted(set(paths), key=lambda each: tuple(str(step).zfill(9) for step in each), reverse=True):
        *way, last = path or ("",)
        holder: Any = data
        for step in way:
            inside = isinstance(holder, dict) and step in holder
            holder = holder[step] if inside or (isinstance(holder, list) and isinstance(step, int)) else None
        in_list = isinstance(holder, list) and isinstance(last, int) and last < len(holder)
        is_there = last in holder if isinstance(holder, dict) else in_list
        if last == "bootstrap.servers" and isinstance(holder, dict):
            holder[last] = ["unknown.invalid:9092"]
        elif is_there:
            del holder[last]
        elif way:
            _leave_out(data, [tuple(way)])


def _problems_of_values(configuration: Configuration, written: Document, data: Any, now: datetime) -> Iterator[Problem]:
    """What is wrong with values beside others; each of them is valid by itself."""
    paths = FlowPaths(data)
    for cluster in configuration.clusters.values():
        yield from problems_with_cluster(cluster, written.clusters[cluster.alias])
        yield from problems_with_registry(cluster)
        yield from problems_with_serverless(cluster)
    yield from problems_with_shared_secrets(configuration.clusters.values())
    yield from problems_with_prefixes(configuration.clusters.values())
    for flow in configuration.flows.values():
        yield from problems_with_topics(flow, paths)
        yield from problems_with_limits(flow, paths, now)
        yield from problems_with_replicas(flow, paths)
        yield from problems_with_schedule(flow, paths)
        yield from problems_with_rules(flow, paths)
    yield from problems_with_keys(written.keys)
    yield from problems_with_entries(list(configuration.flows.values()), paths)
    yield from problems_between(configuration.enabled_flows, paths)
    yield from problems_with_loops(configuration.enabled_flows, paths)
    yield from problems_with_pollers(configuration.enabled_flows, paths)


def _resolved(written: Document, data: Any, origin: str) -> Configuration:
    clusters = {alias: Cluster.of(alias, found) for alias, found in written.clusters.items()}
    flows: dict[FlowName, Flow] = {}
    for text, own in data["flows"].items():
        name = FlowName.parse(text)
        flows[name] = Flow(
            name=name,
            source=clusters[name.source],
            target=clusters[name.target],
            settings=FlowSection.model_validate(_merged(data.get("defaults", {}), own)),
            prefixes={alias: cluster.topic_prefix for alias, cluster in clusters.items()},
            keys=written.keys,
            deployment=written.deployment.name,
        )
    origins = origins_of(list(flows.values()))
    flows = {
        name: replace(
            flow,
            origins=origins[name],
            has_counterpart=bool(origins[name])
            and (back := flows.get(name.turned)) is not None
            and back.enabled
            and bool(origins[name.turned]),
        )
        for name, flow in flows.items()
    }
    return Configuration(origin=origin, clusters=clusters, flows=flows, deployment=written.deployment)


def _merged(defaults: dict[str, Any], flow: dict[str, Any]) -> dict[str, Any]:
    """Return a flow's own keys over those of `defaults`, section by section."""
    merged = {**defaults, **flow}
    for name in ("mapping", "function", "schedule"):
        if name in merged:
            merged[name] = {**defaults.get(name, {}), **flow.get(name, {})}
    return merged


PAIR = 2
"""Clusters between which consumer groups can be carried."""


def marks(flow: Flow) -> bool:
    """Whether a flow adds the origin header to its copies."""
    return flow.settings.loop_prevention == "header" and flow.settings.replication_policy == "identity"


def origins_of(flows: Sequence[Flow]) -> Mapping[FlowName, tuple[str, ...]]:
    """The clusters of the circle of each flow that marks its copies, disabled ones too; empty for all others.

    A flow without a way back has its own two: its counterpart may be enabled one day.
    """
    ways = [flow.name for flow in flows if marks(flow)]
    return {
        flow.name: tuple(
            sorted(
                {flow.name.source, flow.name.target}
                | {alias for alias in reached(flow.name.target, ways) if flow.name.source in reached(alias, ways)}
            )
        )
        if marks(flow)
        else ()
        for flow in flows
    }


def reached(alias: str, ways: Collection[FlowName]) -> set[str]:
    """The clusters that a record of one gets to, and itself."""
    found, new = {alias}, {alias}
    while new:
        new = {way.target for way in ways if way.source in new} - found
        found |= new
    return found


def problems_with_loops(flows: Sequence[Flow], paths: FlowPaths) -> Iterator[Problem]:
    """Find what `loop.prevention` does not allow.

    Args:
        flows: those that are enabled.
        paths: of their values.
    """
    for flow in flows:
        if flow.settings.loop_prevention and not marks(flow):
            what = "prefixed names show where a record comes from, and need no header"
            yield Problem(path=paths.of(flow, "loop.prevention"), what=what, hint="remove it")
    for circle in _circles(flows):
        yield from _one_way(circle, paths)
        for flow in circle:
            yield from _of_one(flow, circle, paths)


def _circles(flows: Sequence[Flow]) -> list[list[Flow]]:
    """The flows of each circle, in the document's order."""
    found: dict[tuple[str, ...], list[Flow]] = {}
    ways = [flow.name for flow in flows if marks(flow)]
    for flow in flows:
        if marks(flow) and flow.name.source in reached(flow.name.target, ways):
            found.setdefault(flow.origins, []).append(flow)
    return list(found.values())


def _one_way(circle: Sequence[Flow], paths: FlowPaths) -> Iterator[Problem]:
    """What is copied in both directions would be changed back and forth, or come back once it is removed."""
    for key, what in (("sync.topic.configs.enabled", "configs of topics"), ("sync.topic.acls.enabled", "ACLs")):
        copying = [flow for flow in circle if getattr(flow.settings, key.replace(".", "_"))]
        for flow in copying[1:]:
            yield Problem(
                path=paths.of(flow, key),
                what=f"{copying[0].name} copies {what} too: what is changed on one side would be changed back",
                hint="write `false` in all flows between these clusters but one",
            )


def _of_one(flow: Flow, circle: Sequence[Flow], paths: FlowPaths) -> Iterator[Problem]:
    settings = flow.settings
    if settings.delivery != "exactly_once":
        what = "between clusters that replicate to each other, copies must not be visible before the map has them"
        yield Problem(path=paths.of(flow, "delivery"), what=what, hint="write `delivery: exactly_once`")
    if len(circle) > PAIR and settings.emit_checkpoints_enabled:
        what = f"groups cannot be carried in a circle of {len(circle)} clusters: no map spans two flows"
        hint = "write `emit.checkpoints.enabled: false` and `sync.group.offsets.enabled: false`, or use pairs"
        yield Problem(path=paths.of(flow, "emit.checkpoints.enabled"), what=what, hint=hint)
    if flow.source.account != flow.target.account and settings.emit_checkpoints_enabled:
        what = "groups are carried by the maps of both flows, and each is in an account of its own"
        hint = "write `emit.checkpoints.enabled: false` and `sync.group.offsets.enabled: false`"
        yield Problem(path=paths.of(flow, "emit.checkpoints.enabled"), what=what, hint=hint)


def problems_with_schedule_keys(data: Any) -> Iterator[Problem]:
    """Find keys of schedules that exclude each other. The values of the document may still be invalid."""
    shared = section(section(data, "defaults"), "schedule")
    if shared.get("continuous") is True:
        yield from _interval(shared, ("defaults", "schedule"))
    flows = section(data, "flows")
    for name in flows:
        own = section(section(flows, name), "schedule")
        if own.get("continuous", shared.get("continuous")) is True:
            yield from _interval(own, ("flows", name, "schedule"))


def _interval(schedule: dict[str, Any], path: Path) -> Iterator[Problem]:
    if "interval.seconds" in schedule:
        what = "a schedule that is continuous has no interval"
        yield Problem(path=(*path, "interval.seconds"), what=what, hint="remove it, or write `continuous: false`")


def problems_with_schedule(flow: Flow, paths: FlowPaths) -> Iterator[Problem]:
    """Find problems of the triggers and the schedules of one flow."""
    if flow.triggers.schedules and not flow.settings.refresh_topics_enabled:
        key = "trigger" if flow.settings.trigger == "schedule" else "trigger.overrides"
        what = "nothing keeps the list of scheduled topics, nor maps those that change back"
        yield Problem(path=paths.of(flow, key), what=what, hint="write `refresh.topics.enabled: true`")
    if flow.has_pull:
        yield from _secrets_out_of_reach(flow)


def problems_with_entries(flows: Sequence[Flow], paths: FlowPaths) -> Iterator[Problem]:
    """Find topics of `trigger.overrides` and `transforms` that can decide nothing.

    An entry of `defaults` is one if it does so in no flow.
    """
    found: dict[Path, list[Problem | None]] = {}
    for flow in flows:
        overrides, rules = paths.of(flow, "trigger.overrides"), paths.of(flow, "transforms")
        by_trigger = [[((*overrides, entry), entry)] for entry in flow.settings.trigger_overrides]
        by_rule = [
            [((*rules, number, "topics", index), entry) for index, entry in enumerate(rule.topics)]
            for number, rule in enumerate(flow.rules)
        ]
        for path, problem in (*_undecided(flow, by_trigger), *_undecided(flow, by_rule)):
            placed = None if problem is None else Problem(path=path, what=problem[0], hint=problem[1])
            found.setdefault(path, []).append(placed)
    for same in found.values():
        problems = [problem for problem in same if problem is not None]
        if len(problems) == len(same):
            yield problems[0]


def _undecided(
    flow: Flow, ordered: Iterable[Sequence[tuple[Path, str]]]
) -> Iterator[tuple[Path, tuple[str, str] | None]]:
    """What is wrong with each entry, and what to write instead. What a pattern of the flow finds is not known.

    Args:
        flow: whose topics they are to match.
        ordered: entries with their places; those that decide alike together, and before all that they win over.
    """
    earlier: list[str] = []
    for alike in ordered:
        for path, entry in alike:
            yield path, _why_undecided(flow, entry, earlier)
        earlier += [entry for _, entry in alike]


def _why_undecided(flow: Flow, entry: str, earlier: Sequence[str]) -> tuple[str, str] | None:
    literal = is_literal(entry)
    if literal and not flow.all_settings().replicates(entry):
        return f"the flow does not replicate {entry!r}", "remove it, or add the topic to `topics`"
    if not literal and not flow.topic_patterns and not any(_matches(entry, topic) for topic in _named(flow)):
        return f"no topic of the flow matches {entry!r}", "remove it, or add such topics to `topics`"
    covering = (each for each in earlier if each in {entry, ".*"} or (literal and _matches(each, entry)))
    if (winner := next(covering, None)) is None:
        return None
    return f"{winner!r} matches {entry!r} already", f"write it above {winner!r}: the first entry that matches holds"


def _named(flow: Flow) -> Iterator[str]:
    """The topics that a flow without patterns may take: those that it names, and heartbeats."""
    yield from flow.literal_topics
    separator = flow.settings.replication_policy_separator
    yield from filter(
        flow.all_settings().replicates,
        (HEARTBEATS_TOPIC, *(f"{prefix}{separator}{HEARTBEATS_TOPIC}" for prefix in sorted(flow.prefixes.values()))),
    )


def _matches(entry: str, topic: str) -> bool:
    return NameFilter(include=(entry,)).accepts(topic)


def _secrets_out_of_reach(flow: Flow) -> Iterator[Problem]:
    """Find secrets in another region than that of the function `pull`, which reads them."""
    home = flow.pull_home.region
    for cluster in (flow.source, flow.target):
        proof = cluster.authentication
        if home is None or not isinstance(proof, Scram | Mtls) or not proof.secret.startswith("arn:"):
            continue
        if (region := proof.secret.split(":")[3]) != home:
            what = f"the secret is in {region}, and scheduled topics of {flow.name} are read in {home}"
            hint = f"write its name alone and replicate it to {home}, or change `schedule: {{run.in: …}}`"
            yield Problem(path=("clusters", cluster.alias, "authentication", "secret"), what=what, hint=hint)
