"""A flow's settings for its functions: one small JSON text in their environment, read once at cold start.

The deployment writes it (`Flow.function_settings()`), so that a cold start needs neither YAML nor pydantic. Lambda
allows 4 KB for all variables: it has only what this flow's functions use, and no secret.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mirrorless.chain.lane import FlowName
from mirrorless.errors import ConfigurationError
from mirrorless.flow.filters import CONFIG_PROPERTIES_EXCLUDE
from mirrorless.flow.naming import FLOW_VARIABLE, mapping_group, shared_name
from mirrorless.flow.policy import ReplicationPolicy, replication_policy
from mirrorless.records.origin import OriginRule


class Authentication(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a client authenticates."""

    type: Literal["plaintext", "tls", "plain", "scram", "oauthbearer", "mtls", "iam"] = "plaintext"
    secret: str = ""
    """Secrets Manager ARN or name: `username`/`password`, `certificate`/`privateKey`, or `oauth…`."""
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    ca: str = ""
    """Secrets Manager ARN or name of a private certificate authority (`certificate`); empty for public ones."""
    scope: str = ""
    logical_cluster: str = msgspec.field(default="", name="logical.cluster")
    identity_pool: str = msgspec.field(default="", name="identity.pool")


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One end of a flow."""

    alias: str
    bootstrap: str
    region: str | None = None
    authentication: Authentication = Authentication()


class Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names of the DynamoDB tables, all in the target's region."""

    offset_map: str = shared_name("offset_map")
    lanes: str = shared_name("lanes")
    loss_ledger: str = shared_name("loss_ledger")
    checkpoints: str = shared_name("checkpoints")
    control: str = shared_name("control")


class FlowSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one flow."""

    flow: str
    source: ClusterSettings
    target: ClusterSettings
    policy: Literal["prefixed", "identity"] = "prefixed"
    separator: str = "."
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    transaction_timeout_ms: int = 10_000
    replication_factor: int = 2
    map_retention_days: int = 30
    config_properties_exclude: tuple[str, ...] = CONFIG_PROPERTIES_EXCLUDE
    use_defaults_from: Literal["source", "target"] = "target"
    """Whose default a topic config takes that the source topic leaves at its default."""
    producer: dict[str, str | int | float | bool] = {}
    tables: Tables = Tables()
    tables_role: str | None = None
    """ARN of the role that reaches the tables, where they are in another account than the functions."""
    history_first: bool = False
    """Whether a lane begins with a backfill: without a chain it waits, except at upstream offset 0."""
    oversize: Literal["ledger", "stop"] = "ledger"
    """What becomes of records of mapped topics that no event can carry."""
    origins: tuple[str, ...] = ()
    """Clusters of the circle of flows with the same names that this one belongs to; empty: it marks no records."""
    from_earliest: bool = False
    """Whether a lane without a chain begins with its log, where it stops at such records."""
    copy: Literal["auto", "records"] = "auto"
    """How jobs copy lanes: by whole record batches where that is better, or by records."""

    @property
    def name(self) -> FlowName:
        """The flow's name as a value."""
        return FlowName.parse(self.flow)

    def remote_topic(self, topic: str) -> str:
        """The topic's name on the target."""
        return self._policy.remote_topic(self.source.alias, topic)

    def origin_rule(self, topic: str) -> OriginRule | None:
        """The rule of a source topic whose records may return; None for others, and where the flow marks none."""
        if not self.origins or self.remote_topic(topic) != topic:
            return None
        return OriginRule.of(topic, source=self.source.alias, target=self.target.alias, clusters=self.origins)

    def begins_with_history(self, topic: str) -> bool:
        """Whether a backfill comes before a source topic's first batch. Heartbeats have no history of use."""
        return self.history_first and not self._policy.is_heartbeats_topic(topic)

    @property
    def _policy(self) -> ReplicationPolicy:
        return replication_policy(self.policy, source_alias=self.source.alias, separator=self.separator)

    def consumer_group(self, topic: str) -> str:
        """The consumer group of a topic's mapping."""
        return mapping_group(self.name, topic)


def decode_settings(text: str | None) -> FlowSettings:
    """Read the variable's text.

    Raises:
        ConfigurationError: naming the field that is missing or wrong.
    """
    if not text:
        raise ConfigurationError(
            "the variable is not set", where=FLOW_VARIABLE, hint="deploy the function with this project's stacks"
        )
    try:
        settings = msgspec.json.decode(text, type=FlowSettings)
        FlowName.parse(settings.flow)
    except (msgspec.DecodeError, ValueError) as exc:
        raise ConfigurationError(str(exc), where=FLOW_VARIABLE, hint="deploy again from replication.yaml") from exc
    return settings
