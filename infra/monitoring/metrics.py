"""CloudWatch metrics that dashboards and alarms read: names, dimensions and regions as plain values.

Our own metrics are written by `mirrorless.adapters.aws.metrics`: a flow's, and on request those of each remote topic.
Both take the names from `mirrorless.flow.counts`.

One metric by all its dimensions works everywhere, and is all that alarms read. SEARCH finds metrics whose last
dimension is not fixed yet, on dashboards only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mirrorless.flow.naming import FORWARD, PULL
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.flow.triggers import SCHEDULE

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment
    from mirrorless.flow.counts import OfFlow, OfTopics

MINUTE: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        dimensions: all of them: CloudWatch takes a metric with one more for another metric.
        stat: `Sum`, `Maximum`, `p99` and so on.
        region: where it is kept.
    """

    namespace: str
    name: str
    dimensions: tuple[tuple[str, str], ...]
    stat: str
    region: str

    def row(self, **options: Any) -> list[Any]:
        """How a dashboard names it."""
        pairs = [text for pair in self.dimensions for text in pair]
        return [self.namespace, self.name, *pairs, {"stat": self.stat, "region": self.region, **options}]


def of_flow(flow: FlowDeployment, name: OfFlow, stat: str, *, part: str = FORWARD) -> Metric:
    """The metric of a flow, of its batches or of its tasks. Args: part: where what emits it runs."""
    region = flow.place_of(part).region
    return Metric(
        namespace=flow.flow.metrics_namespace,
        name=name,
        dimensions=tuple(_tags(flow).items()),
        stat=stat,
        region=region,
    )


def over_topics(flow: FlowDeployment, name: OfTopics, stat: str) -> str:
    """SEARCH the forwarder's metric of every topic; a dashboard shows a line for each."""
    terms = " ".join(f'{key}="{value}"' for key, value in _tags(flow).items())
    schema = ",".join([flow.flow.metrics_namespace, *_tags(flow), "topic"])
    return f"SEARCH('{{{schema}}} MetricName=\"{name}\" {terms}', '{stat}', {MINUTE})"


def of_function(flow: FlowDeployment, part: str, name: str, stat: str) -> Metric:
    """Lambda's metric of a function, whatever version or alias was called."""
    dimensions = (("FunctionName", flow.flow.resource_name(part)),)
    region = flow.place_of(part).region
    return Metric(namespace="AWS/Lambda", name=name, dimensions=dimensions, stat=stat, region=region)


def of_table(flow: FlowDeployment, table: str, name: str, stat: str) -> Metric:
    """DynamoDB's metric of a table, in the region that writes it. Args: table: by what it holds, `offset_map`."""
    dimensions = (("TableName", flow.flow.tables[table]),)
    return Metric(namespace="AWS/DynamoDB", name=name, dimensions=dimensions, stat=stat, region=flow.state.region)


def over_mappings(name: str, stat: str, *, period: int = MINUTE) -> str:
    """SEARCH the metric of every mapping of the region: its only dimension is an id that AWS gives it.

    (https://docs.aws.amazon.com/lambda/latest/dg/monitoring-metrics-view.html)
    """
    return f"SEARCH('{{AWS/Lambda,EventSourceMappingUUID}} MetricName=\"{name}\"', '{stat}', {period})"


def lag_on_msk(flow: FlowDeployment, name: str) -> str | None:
    """SEARCH MSK's own metric of the consumer groups of a flow's mappings, or None where the source is not our MSK.

    It has them at every monitoring level, for clusters of both kinds, under the name of the cluster.
    (https://docs.aws.amazon.com/msk/latest/developerguide/consumer-lag.html) The group is matched by its words: another
    flow whose aliases only add words to these would show as well.
    """
    arn = flow.flow.source.msk_arn
    if not flow.flow.mapped_by_arn or arn is None or ":cluster/" not in arn:
        return None
    cluster, words = arn.split("/")[1], f"mirrorless {flow.flow.source.alias} {flow.flow.target.alias}"
    schema = '{AWS/Kafka,"Cluster Name","Consumer Group",Topic}'
    return f'SEARCH(\'{schema} MetricName="{name}" "Cluster Name"="{cluster}" {words}\', \'Maximum\', {MINUTE})'


def round_trip(flow: FlowDeployment) -> Metric | None:
    """Heartbeats of the source that arrived on the target: they took the path of any record. None without them."""
    settings = flow.flow.settings
    emitted = settings.emit_heartbeats_enabled and settings.emit_heartbeats_source_enabled
    mapped = (
        settings.heartbeats_replication_enabled and settings.refresh_topics_enabled
    ) or HEARTBEATS_TOPIC in flow.flow.literal_topics
    part = PULL if heartbeats_scheduled(flow) else FORWARD
    return of_flow(flow, "heartbeats-arrived", "Sum", part=part) if emitted and mapped else None


def heartbeats_scheduled(flow: FlowDeployment) -> bool:
    """Whether `pull` replicates the source's heartbeats."""
    return flow.flow.triggers.of(HEARTBEATS_TOPIC) == SCHEDULE


def _tags(flow: FlowDeployment) -> dict[str, str]:
    return {"source": flow.flow.source.alias, "target": flow.flow.target.alias}
