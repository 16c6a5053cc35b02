"""Options of an event source mapping that follow from a flow: its start, its pollers, and how these authenticate."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from mirrorless.config.cluster import Iam, Mtls, OauthBearer, Plain, Plaintext, Scram, Tls, WithSecret
from mirrorless.poller_groups import literal_group

if TYPE_CHECKING:
    from collections.abc import Callable

    from mirrorless.config.flow import Flow


def starting_position(start: str) -> dict[str, Any]:
    """Return where a group without committed offsets begins.

    With `backfill` a job copies the history, so the mapping begins at the end. Pollers that restart before their first
    commit begin at a later end: the forwarder sees that the job's copy ends below, and its lane waits for a job.
    """
    if start == "earliest":
        return {"StartingPosition": "TRIM_HORIZON"}
    if start in {"latest", "backfill"}:
        return {"StartingPosition": "LATEST"}
    moment = datetime.fromisoformat(start)
    return {"StartingPosition": "AT_TIMESTAMP", "StartingPositionTimestamp": int(moment.timestamp())}


def provisioned(flow: Flow, topic: str) -> dict[str, Any]:
    """Return the options of a provisioned mapping."""
    mapping = flow.settings.mapping
    pollers: dict[str, Any] = {"MinimumPollers": mapping.minimum_pollers, "MaximumPollers": mapping.maximum_pollers}
    if flow.own_poller_groups:
        topics, maximum = flow.template_topics, mapping.maximum_pollers
        pollers["PollerGroupName"] = literal_group(flow.poller_groups, topic, topics, maximum_pollers=maximum)
    elif mapping.poller_group_name is not None:
        pollers["PollerGroupName"] = mapping.poller_group_name
    # Retried for ever and sent nowhere else: with any other setting a failing batch loses records.
    request: dict[str, Any] = {"ProvisionedPollerConfig": pollers, "MaximumRetryAttempts": -1}
    # Whether the function uses it or not: a deployment changes the function before its mappings, and a mapping
    # without it would take a list of failed records for success. They would be lost.
    request["FunctionResponseTypes"] = ["ReportBatchItemFailures"]
    if mapping.metrics:
        request["MetricsConfig"] = {"Metrics": list(mapping.metrics)}
    if mapping.system_log_level:
        request["LoggingConfig"] = {"SystemLogLevel": mapping.system_log_level}
    return request


def source_access(flow: Flow, secret_arn: Callable[[str], str]) -> list[dict[str, str]]:
    """Return how pollers authenticate, and where they stand. `secret_arn` turns a secret's name into its ARN."""
    access: list[dict[str, str]] = []
    match flow.source.authentication:
        case Plain(secret=secret):
            access.append({"Type": "BASIC_AUTH", "URI": secret_arn(secret)})
        case OauthBearer() as oauth:
            told = {
                "OAUTHBEARER_AUTH": secret_arn(oauth.secret),
                "OAUTHBEARER_SCOPE": oauth.scope,
                "OAUTHBEARER_LOGICAL_CLUSTER": oauth.logical_cluster,
                "OAUTHBEARER_IDENTITY_POOL": oauth.identity_pool,
            }
            access += [{"Type": kind, "URI": value} for kind, value in told.items() if value]
        case Scram(secret=secret, mechanism=mechanism):
            access.append({"Type": f"SASL_SCRAM_{mechanism[-3:]}_AUTH", "URI": secret_arn(secret)})
        case Mtls(secret=secret):
            access.append({"Type": "CLIENT_CERTIFICATE_TLS_AUTH", "URI": secret_arn(secret)})
        case Iam() if not flow.mapped_by_arn:
            access.append({"Type": "IAM_AUTH"})
        case Iam() | Plaintext() | Tls():
            pass  # an MSK mapping without a secret uses IAM where the cluster has it, else TLS, else plaintext
    if flow.mapped_by_arn:
        return access  # the pollers use the cluster's own network, and its certificates are Amazon's
    if isinstance(flow.source.authentication, WithSecret | Tls) and flow.source.authentication.ca:
        access.append({"Type": "SERVER_ROOT_CA_CERTIFICATE", "URI": secret_arn(flow.source.authentication.ca)})
    if vpc := flow.home.vpc:
        access += [{"Type": "VPC_SUBNET", "URI": f"subnet:{subnet}"} for subnet in vpc.subnets]
        access += [{"Type": "VPC_SECURITY_GROUP", "URI": f"security_group:{group}"} for group in vpc.security_groups]
    return access
