"""A cluster, resolved: where it is and how clients reach it and authenticate; its ARN is parsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrorless.config.cluster_section import AuthenticationSection, ClusterSection, Vpc


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One end of a flow.

    Attributes:
        alias: name of the cluster in topic names, group ids and table keys.
        bootstrap: bootstrap servers, `host:port`, in the order written.
        msk_arn: of the MSK cluster, or of a VPC connection to it.
        region: AWS region; from the ARN where it is not written.
        account: AWS account, twelve digits; from the ARN where it is not written.
        producer: extra options of clients that write to it, by librdkafka's names.
        consumer: extra options of clients that read from it, by librdkafka's names.
    """

    alias: str
    bootstrap: tuple[str, ...]
    msk_arn: str | None
    region: str | None
    account: str | None
    authentication: AuthenticationSection
    vpc: Vpc | None
    producer: dict[str, str | int]
    consumer: dict[str, str | int]

    @classmethod
    def of(cls, alias: str, section: ClusterSection) -> Cluster:
        """Resolve the section of a cluster."""
        arn = section.msk_cluster_arn
        region, account = arn.split(":")[3:5] if arn else (None, None)
        return cls(
            alias=alias,
            bootstrap=section.bootstrap_servers,
            msk_arn=arn,
            region=section.region or region,
            account=section.account or account,
            authentication=section.authentication,
            vpc=section.vpc,
            producer=_options(section, "producer."),
            consumer=_options(section, "consumer."),
        )

    def settings(self) -> dict[str, Any]:
        """Return what a function needs to connect to this cluster."""
        authentication = self.authentication.model_dump(
            by_alias=True, exclude_none=True, exclude={"secret_kms_key_arn"}
        )
        return {
            "alias": self.alias,
            "bootstrap": ",".join(self.bootstrap),
            "region": self.region,
            "authentication": authentication,
        }


def _options(section: ClusterSection, prefix: str) -> dict[str, str | int]:
    written = section.model_dump(by_alias=True, exclude_none=True)
    return {key.removeprefix(prefix): value for key, value in written.items() if key.startswith(prefix)}


_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}


def partition_of(region: str) -> str:
    """Return the AWS partition of a region, the second part of every ARN there."""
    return next((name for start, name in _PARTITIONS.items() if region.startswith(start)), "aws")
