"""The way from the text of replication.yaml to a validated Configuration, or to every problem in it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pydantic import ValidationError

from mirrorless.config import yaml_source
from mirrorless.config.authentication_rules import problems_with_shared_secrets
from mirrorless.config.cluster import Cluster, Plaintext
from mirrorless.config.flow import Flow
from mirrorless.config.flow_section import FlowSection
from mirrorless.config.loop_rules import origins_of, problems_with_loops
from mirrorless.config.messages import InvalidConfiguration, Path, Problem, problems_of
from mirrorless.config.rules import (
    FlowPaths,
    problems_between,
    problems_with_cluster,
    problems_with_limits,
    problems_with_names,
    problems_with_pollers,
    problems_with_topics,
)
from mirrorless.config.schedule_rules import (
    problems_with_overrides,
    problems_with_schedule,
    problems_with_schedule_keys,
)
from mirrorless.config.schema import DeploymentSection, Document
from mirrorless.config.serverless_rules import problems_with_replicas, problems_with_serverless
from mirrorless.errors import ConfigurationError
from mirrorless.lane import FlowName
from mirrorless.settings import Tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


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
                shared_tables=msgspec.to_builtins(Tables()),
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


def load(source: File | str, *, now: datetime | None = None) -> Configuration:
    """Read a configuration. Args: as of `examine`.

    Raises:
        InvalidConfiguration: with every problem.
        ConfigurationError: the file cannot be read.
    """
    found = examine(source, now=now)
    if found.problems or found.configuration is None:
        raise found.as_error()
    return found.configuration


def examine(source: File | str, *, now: datetime | None = None) -> Examination:
    """Look at a configuration in a file; or at the text itself, which is a `str` with a line break.

    `now` is the moment that a start time must precede; left out, the clock's.

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
    return _examined(yaml_source.read(text, origin=origin), origin, now or datetime.now(UTC))


def _examined(text: yaml_source.YamlSource, origin: str, now: datetime) -> Examination:
    problems = [*problems_with_names(text.data), *problems_with_schedule_keys(text.data)]
    misnamed = [each.path for each in problems if len(each.path) == len(("flows", "a->b"))]
    data, left_out = deepcopy(text.data), list(misnamed)
    _leave_out(data, misnamed)
    for attempt in range(_ATTEMPTS):
        try:
            Document.model_validate(data)
            break
        except ValidationError as exc:
            errors = exc.errors(include_url=False)
            refused = problems_of(errors, yaml_source.YamlSource(data=data, lines=text.lines))
            if attempt == 0:
                whole = _problems_of_all(text) if misnamed else refused
                problems += whole
                left_out += [each.path for each in whole]
            _leave_out(data, [each.path for each in refused])
    found = Examination(
        origin=origin, text=text, problems=tuple(problems), left_out=tuple(left_out), configuration=None
    )
    # A flow between clusters of which one is left out is no flow any more.
    lost = [each.path for each in problems_with_names(data) if each.path[0] == "flows"]
    _leave_out(data, lost)
    if (written := _written(data)) is None:
        return found
    found = replace(found, left_out=(*found.left_out, *lost))
    configuration = _resolved(written, data, origin)
    more = _problems_of_values(configuration, written, data, now)
    return replace(found.with_problems(more), configuration=configuration)


def _written(data: Any) -> Document | None:
    try:
        return Document.model_validate(data)
    except ValidationError:
        return None


_ATTEMPTS: Final = 4
"""What is left out may leave a section without a key that it must have, which is left out with it."""


def _problems_of_all(text: yaml_source.YamlSource) -> list[Problem]:
    """The problems of single values, those of misnamed sections among them."""
    try:
        Document.model_validate(text.data)
    except ValidationError as exc:
        return problems_of(exc.errors(include_url=False), text)
    return []


def _leave_out(data: Any, paths: Iterable[Path]) -> None:
    """Remove values from a document; the whole section where a value is missing, but for a cluster's addresses."""
    # Of a list, the last entries first: the others keep their places.
    for path in sorted(set(paths), key=lambda each: tuple(str(step).zfill(9) for step in each), reverse=True):
        *way, last = path or ("",)
        holder: Any = data
        for step in way:
            inside = isinstance(holder, dict) and step in holder
            holder = holder[step] if inside or (isinstance(holder, list) and isinstance(step, int)) else None
        in_list = isinstance(holder, list) and isinstance(last, int)
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
        yield from problems_with_serverless(cluster)
    yield from problems_with_shared_secrets(configuration.clusters.values())
    for flow in configuration.flows.values():
        yield from problems_with_topics(flow, paths)
        yield from problems_with_limits(flow, paths, now)
        yield from problems_with_replicas(flow, paths)
        yield from problems_with_schedule(flow, paths)
    yield from problems_with_overrides(list(configuration.flows.values()), paths)
    yield from problems_between(configuration.enabled_flows, paths)
    yield from problems_with_loops(configuration.enabled_flows, paths)
    yield from problems_with_pollers(configuration.enabled_flows, paths)


def _resolved(written: Document, data: Any, origin: str) -> Configuration:
    clusters = {alias: Cluster.of(alias, section) for alias, section in written.clusters.items()}
    flows: dict[FlowName, Flow] = {}
    for text, section in data["flows"].items():
        name = FlowName.parse(text)
        flows[name] = Flow(
            name=name,
            source=clusters[name.source],
            target=clusters[name.target],
            settings=FlowSection.model_validate(_merged(data.get("defaults", {}), section)),
            aliases=frozenset(clusters),
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
    for section in ("mapping", "function", "schedule"):
        if section in merged:
            merged[section] = {**defaults.get(section, {}), **flow.get(section, {})}
    return merged
