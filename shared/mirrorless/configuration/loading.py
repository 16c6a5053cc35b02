"""What does a configuration say as a whole? Text in, a validated Configuration out; or every problem at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path as File
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from mirrorless.configuration import document, rules
from mirrorless.configuration.complaints import problems_of
from mirrorless.configuration.flow import Cluster, Flow
from mirrorless.configuration.model import Document, FlowSection, MappingSection, Plaintext
from mirrorless.configuration.problems import InvalidConfiguration
from mirrorless.errors import ConfigurationError
from mirrorless.lane import FlowName

if TYPE_CHECKING:
    from collections.abc import Mapping

PROVISIONED_ONLY = (
    "minimum.pollers",
    "maximum.pollers",
    "poller.group.name",
    "partial.batch.response",
    "metrics",
    "system.log.level",
)
"""Options that the Lambda API refuses on an on-demand mapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """replication.yaml, validated whole and resolved.

    Attributes:
        origin: the file, for errors.
        clusters: by alias, in the order written.
        flows: every flow by its name, in the order written, whether enabled or not.
    """

    origin: str
    clusters: Mapping[str, Cluster]
    flows: Mapping[FlowName, Flow]

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
        """Return the same flows between stand-ins of the clusters: plaintext, at these addresses, found by no ARN.

        `bootstrap` maps each alias to `host:port[,host:port]`; stand-ins have too few brokers for the replication factors
        that are written. This is how a laboratory runs a configuration that is meant for the cloud.
        """
        stand_ins = {
            alias: replace(
                cluster,
                bootstrap=tuple(bootstrap[alias].split(",")),
                msk_arn=None,
                authentication=Plaintext(type="plaintext"),
                vpc=None,
            )
            for alias, cluster in self.clusters.items()
        }
        factors = {
            name: replication_factor
            for name in (
                "replication_factor",
                "heartbeats_topic_replication_factor",
                "checkpoints_topic_replication_factor",
            )
        }
        flows = {
            name: replace(
                flow,
                source=stand_ins[name.source],
                target=stand_ins[name.target],
                settings=flow.settings.model_copy(update=factors),
            )
            for name, flow in self.flows.items()
        }
        return replace(self, clusters=stand_ins, flows=flows)


def load(source: File | str, *, now: datetime | None = None) -> Configuration:
    """Read a configuration from a file; or from the text itself, which is a `str` with a line break.

    `now` is the moment against which a start time is judged; left out, the clock's.

    Raises:
        InvalidConfiguration: with everything that is wrong.
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
    return _configuration(document.read(text, origin=origin), origin, now or datetime.now(UTC))


def _configuration(text: document.Text, origin: str, now: datetime) -> Configuration:
    try:
        written = Document.model_validate(text.data)
    except ValidationError as exc:
        # Rules that look at several values need every value to be sound; those that only look at names do not.
        problems = problems_of(exc.errors(include_url=False), text) + rules.of_names(text)
        raise InvalidConfiguration(origin, sorted(problems, key=lambda problem: problem.line or 0)) from exc
    problems = rules.of_names(text)
    if problems:
        raise InvalidConfiguration(origin, problems)
    configuration = _resolved(written, text.data, origin)
    if problems := rules.of_values(configuration.flows, configuration.clusters, text, now):
        raise InvalidConfiguration(origin, problems)
    return configuration


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
    return Configuration(origin=origin, clusters=clusters, flows=flows)


def _merged(defaults: dict[str, Any], flow: dict[str, Any]) -> dict[str, Any]:
    """Return a flow's own keys over those of `defaults`, section by section."""
    merged = {**defaults, **flow}
    for section in ("mapping", "function"):
        merged[section] = {**defaults.get(section, {}), **flow.get(section, {})}
    if merged["mapping"].get("mode", MappingSection().mode) == "on-demand":
        # What `defaults` say about pollers is meant for the flows that have them; a flow's own words are checked by a rule.
        for key in PROVISIONED_ONLY:
            merged["mapping"].pop(key, None)
    return merged
