"""The way from the text of replication.yaml to a validated Configuration, or to every problem in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import ValidationError

from mirrorless.config import yaml_source
from mirrorless.config.cluster import Cluster, Plaintext
from mirrorless.config.flow import Flow
from mirrorless.config.flow_section import FlowSection
from mirrorless.config.loop_rules import origins_of, problems_with_loops
from mirrorless.config.messages import InvalidConfiguration, Problem, problems_of
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
from mirrorless.errors import ConfigurationError
from mirrorless.lane import FlowName
from mirrorless.settings import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def load(source: File | str, *, now: datetime | None = None) -> Configuration:
    """Read a configuration from a file; or from the text itself, which is a `str` with a line break.

    `now` is the moment that a start time must precede; left out, the clock's.

    Raises:
        InvalidConfiguration: with every problem.
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
    return _configuration(yaml_source.read(text, origin=origin), origin, now or datetime.now(UTC))


def _configuration(text: yaml_source.YamlSource, origin: str, now: datetime) -> Configuration:
    problems = [*problems_with_names(text.data), *problems_with_schedule_keys(text.data)]
    try:
        written = Document.model_validate(text.data)
    except ValidationError as exc:
        problems += problems_of(exc.errors(include_url=False), text)
        raise InvalidConfiguration(origin, _in_order(problems, text)) from exc
    if problems:
        raise InvalidConfiguration(origin, _in_order(problems, text))
    # The rules below compare values, so each value must be valid first.
    configuration = _resolved(written, text.data, origin)
    paths = FlowPaths(text.data)
    for cluster in configuration.clusters.values():
        problems += problems_with_cluster(cluster, written.clusters[cluster.alias])
    for flow in configuration.flows.values():
        problems += problems_with_topics(flow, paths)
        problems += problems_with_limits(flow, paths, now)
        problems += problems_with_schedule(flow, paths)
    problems += problems_with_overrides(list(configuration.flows.values()), paths)
    problems += problems_between(configuration.enabled_flows, paths)
    problems += problems_with_loops(configuration.enabled_flows, paths)
    problems += problems_with_pollers(configuration.enabled_flows, paths)
    if problems:
        raise InvalidConfiguration(origin, _in_order(problems, text))
    return configuration


def _in_order(problems: list[Problem], text: yaml_source.YamlSource) -> list[Problem]:
    """Sort problems by line, each once: one in `defaults` is found for every flow."""
    placed = dict.fromkeys(replace(problem, line=text.line_of(problem.path)) for problem in problems)
    return sorted(placed, key=lambda problem: problem.line or 0)


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
