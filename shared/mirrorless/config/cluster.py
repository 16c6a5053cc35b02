"""A cluster: its section of replication.yaml, and resolved.

Resolved it is where it is and how clients reach it and authenticate; its ARN is parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from pydantic import Field

from mirrorless.config.types import Addresses, Identifiers, KeyArns, Section
from mirrorless.flow.settings import Authentication, ClusterSettings, SchemaRegistry

_ENCRYPTED_WITH = (
    "Key that the secret is encrypted with, where it is not Secrets Manager's own; one for each account that has a "
    "secret of this name"
)

_LITERAL = r"^[a-zA-Z0-9/*:_+=.@-]+( [a-zA-Z0-9/*:_+=.@-]+)*$"
"""What a mapping takes in place of a secret's ARN, by the Lambda API; with single spaces."""

OperatorSecret = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=200,
        description="Like `secret`, of a user that only reads, for who looks by `mirrorless`. Left out, operators who "
        "only look may read no secret, and do not see lag, heartbeats and what is on the clusters.",
    ),
]

PrivateCa = Annotated[
    str | None,
    Field(
        min_length=1,
        max_length=200,
        description="Secret with the `certificate` (PEM) of a private certificate authority.",
    ),
]


class Plaintext(Section):
    """No authentication and no encryption: for the lab and for closed networks."""

    type: Literal["plaintext"] = Field(description="No authentication, no TLS.")


class Tls(Section):
    """Encryption without authentication."""

    type: Literal["tls"] = Field(
        description="TLS, no authentication. The mappings of an MSK cluster use IAM instead where it has that."
    )
    ca: PrivateCa = None


class Plain(Section):
    """A user name and a password, as they are, over TLS. MSK does not have it."""

    type: Literal["plain"] = Field(description="SASL/PLAIN over TLS.")
    secret: str = Field(
        min_length=1, max_length=200, description="Secrets Manager name or ARN of `username` and `password`."
    )
    secret_kms_key_arn: KeyArns = Field(default=(), description=f"{_ENCRYPTED_WITH}.")
    operator_secret: OperatorSecret = None
    ca: PrivateCa = None


class Scram(Section):
    """A user name and a password, over TLS."""

    type: Literal["scram"] = Field(description="SASL/SCRAM over TLS.")
    secret: str = Field(
        min_length=1,
        max_length=200,
        description="Secrets Manager name or ARN of `username` and `password`; on MSK it begins with `AmazonMSK_`.",
    )
    secret_kms_key_arn: KeyArns = Field(
        default=(), description=f"{_ENCRYPTED_WITH}; required where the secret's name begins with `AmazonMSK_`."
    )
    operator_secret: OperatorSecret = None
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        default="SCRAM-SHA-512", description="The hash; MSK has SCRAM-SHA-512 only."
    )
    ca: PrivateCa = None


class OauthBearer(Section):
    """Tokens of an OAuth 2.0 identity provider, for client credentials, over TLS. MSK does not have it."""

    type: Literal["oauthbearer"] = Field(description="SASL/OAUTHBEARER over TLS.")
    secret: str = Field(
        min_length=1,
        max_length=200,
        description="Secrets Manager name or ARN of `oauthTokenEndpointUrl` (HTTPS), `oauthClientId` and "
        "`oauthClientSecret`, maybe `oauthIdpCaCertificate` (PEM).",
    )
    secret_kms_key_arn: KeyArns = Field(default=(), description=f"{_ENCRYPTED_WITH}.")
    operator_secret: OperatorSecret = None
    scope: str | None = Field(
        default=None, max_length=200, pattern=_LITERAL, description="Scope of the tokens, where the provider wants one."
    )
    logical_cluster: str | None = Field(
        default=None,
        max_length=200,
        pattern=r"^[a-zA-Z0-9-]+$",
        description="Confluent Cloud's id of the cluster, `lkc-…`, which its brokers want beside the token.",
    )
    identity_pool: str | None = Field(
        default=None,
        max_length=200,
        pattern=r"^[a-zA-Z0-9-]+$",
        description="Confluent Cloud's id of the identity pool, `pool-…`.",
    )
    ca: PrivateCa = None


class Mtls(Section):
    """A client certificate."""

    type: Literal["mtls"] = Field(description="Mutual TLS.")
    secret: str = Field(
        min_length=1,
        max_length=200,
        description="Secrets Manager name or ARN of `certificate` and `privateKey` (PEM), maybe `privateKeyPassword`.",
    )
    secret_kms_key_arn: KeyArns = Field(default=(), description=f"{_ENCRYPTED_WITH}.")
    operator_secret: OperatorSecret = None
    ca: PrivateCa = None


class Iam(Section):
    """AWS IAM, signed by the function's role, over TLS."""

    type: Literal["iam"] = Field(description="MSK IAM access control; needs the cluster's region.")


AuthenticationSection = Annotated[
    Plaintext | Tls | Plain | Scram | OauthBearer | Mtls | Iam, Field(discriminator="type")
]

WithSecret = Plain | Scram | OauthBearer | Mtls
"""Authentications whose credentials are in a secret."""


def for_operators(authentication: AuthenticationSection) -> AuthenticationSection:
    """Return how who only looks proves who they are: by a secret of their own, where there is one."""
    if isinstance(authentication, WithSecret) and authentication.operator_secret:
        return authentication.model_copy(update={"secret": authentication.operator_secret})
    return authentication


def secrets_of(authentication: AuthenticationSection) -> tuple[str, ...]:
    """Return the secrets that clients of a cluster read: its credentials, and its private certificate authority."""
    found = [authentication.secret] if isinstance(authentication, WithSecret) else []
    authority = authentication.ca if isinstance(authentication, WithSecret | Tls) else None
    return (*found, *([authority] if authority else []))


class Vpc(Section):
    """The network in the cluster's region from which every broker of its flows can be reached, at both ends."""

    id: str | None = Field(default=None, pattern=r"^vpc-[0-9a-f]+$", description="The VPC.")
    subnets: Identifiers = Field(min_length=1, description="Subnet ids with a route to every broker.")
    security_groups: Identifiers = Field(
        min_length=1, description="Security group ids that the brokers accept connections from."
    )
    endpoints: bool = Field(
        default=False,
        description="Create the interface endpoints that functions, pollers and jobs need in these subnets; needs "
        "`id`. Without them, the network has a route of its own to AWS.",
    )
    route_tables: Identifiers = Field(
        default=(),
        description="With `endpoints`: route table ids of the subnets, which get gateway endpoints of DynamoDB "
        "and, for jobs, of S3; left out, they have them.",
    )


class RegistrySection(Section):
    """Where the schemas are that the cluster's records were written by: rules with `format: avro` need them."""

    type: Literal["confluent", "glue"] = Field(
        default="confluent",
        description="A registry with Confluent's interface, as Apicurio, Karapace and Redpanda have it too; or AWS "
        "Glue's of the cluster's region, in the account of whoever asks.",
    )
    url: str | None = Field(
        default=None,
        max_length=300,
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
        description="Address of a registry of `type: confluent`, with the path before `/schemas`; functions and jobs "
        "in the source's `vpc` must reach it.",
    )
    secret: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Secrets Manager name or ARN of its `username` and `password`; left out, it asks for none.",
    )
    secret_kms_key_arn: KeyArns = Field(default=(), description=f"{_ENCRYPTED_WITH}.")
    ca: PrivateCa = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets that its clients read."""
        return tuple(filter(None, (self.secret, self.ca)))

    def settings(self) -> SchemaRegistry:
        """Return what a function needs to ask it."""
        given = {name: value for name, value in self if name in SchemaRegistry.__struct_fields__ and value is not None}
        return SchemaRegistry(**given)


class ClusterSection(Section):
    """A Kafka cluster, under its alias."""

    bootstrap_servers: Addresses = Field(
        min_length=1,
        max_length=10,
        description="Bootstrap servers, `host:port`; for MSK `aws kafka get-bootstrap-brokers` lists them.",
    )
    topic_prefix: str | None = Field(
        default=None,
        pattern=r"^[a-zA-Z0-9._-]{1,200}$",
        description="What names of remote and internal topics have for this cluster, where that is not its alias here: "
        "MM2's alias, so that `A.orders` stays `A.orders`.",
    )
    msk_cluster_arn: str | None = Field(
        default=None,
        pattern=r"^arn:aws[a-z-]*:kafka:[a-z0-9-]+:[0-9]{12}:(cluster|vpc-connection)/\S+$",
        description="ARN of an MSK cluster, or of a VPC connection to one; its mappings then need no `vpc`.",
    )
    msk_security_groups: Identifiers = Field(
        default=(),
        description="The MSK cluster's own security groups, or those of the VPC connection: pollers carry them. "
        "On-demand mappings need them where `vpc.endpoints` is set, to let pollers into these.",
    )
    region: str | None = Field(
        default=None,
        pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$",
        description="AWS region; taken from `msk.cluster.arn` where there is one.",
    )
    account: str | None = Field(
        default=None,
        pattern=r"^[0-9]{12}$",
        description="AWS account, twelve digits in quotes; taken from `msk.cluster.arn` where there is one.",
    )
    authentication: AuthenticationSection = Field(
        default_factory=lambda: Plaintext(type="plaintext"), description="How clients authenticate."
    )
    vpc: Vpc | None = Field(
        default=None, description="The network to reach the cluster by; left out, the deployment uses none."
    )
    schema_registry: RegistrySection | None = Field(
        default=None, description="The schemas of its records; left out, rules cannot look into Avro."
    )

    producer_compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = Field(
        default=None, description="Compression of what is written to this cluster; left out, lz4."
    )
    producer_compression_level: int | None = Field(
        default=None, ge=-1, le=12, description="Compression level, by the codec's own scale."
    )
    producer_linger_ms: int | None = Field(
        default=None, ge=0, le=1_000, description="Milliseconds to wait for more records per request."
    )
    producer_batch_size: int | None = Field(
        default=None, ge=1, le=104_857_600, description="Bytes of a produce batch at most."
    )
    producer_message_max_bytes: int | None = Field(
        default=None,
        ge=1_000,
        le=104_857_600,
        description="Bytes of a request at most; keep it at the target's `message.max.bytes`.",
    )
    producer_socket_timeout_ms: int | None = Field(
        default=None, ge=10, le=300_000, description="Milliseconds to wait for a broker's response."
    )
    producer_client_rack: str | None = Field(
        default=None, min_length=1, description="Rack, or availability zone, of the producers."
    )
    consumer_client_rack: str | None = Field(
        default=None, min_length=1, description="Rack, or availability zone, of jobs that read this cluster."
    )
    consumer_fetch_min_bytes: int | None = Field(
        default=None, ge=1, le=104_857_600, description="Bytes a job waits for per fetch."
    )
    consumer_fetch_wait_max_ms: int | None = Field(
        default=None, ge=0, le=60_000, description="Milliseconds a job's fetch may wait."
    )
    consumer_max_partition_fetch_bytes: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="Bytes that a job fetches per partition at most."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One end of a flow.

    Attributes:
        alias: name of the cluster in group ids and table keys.
        topic_prefix: the same in names of topics; the alias, where none is written.
        bootstrap: bootstrap servers, `host:port`, in the order written.
        msk_arn: of the MSK cluster, or of a VPC connection to it.
        msk_groups: its own security groups.
        region: AWS region; from the ARN where it is not written.
        account: AWS account, twelve digits; from the ARN where it is not written.
        producer: extra options of clients that write to it, by librdkafka's names.
        consumer: extra options of clients that read from it, by librdkafka's names.
    """

    alias: str
    topic_prefix: str
    bootstrap: tuple[str, ...]
    msk_arn: str | None
    msk_groups: tuple[str, ...]
    region: str | None
    account: str | None
    authentication: AuthenticationSection
    vpc: Vpc | None
    schema_registry: RegistrySection | None
    producer: dict[str, str | int]
    consumer: dict[str, str | int]

    @classmethod
    def of(cls, alias: str, section: ClusterSection) -> Cluster:
        """Resolve the section of a cluster."""
        arn = section.msk_cluster_arn
        region, account = arn.split(":")[3:5] if arn else (None, None)
        return cls(
            alias=alias,
            topic_prefix=section.topic_prefix or alias,
            bootstrap=section.bootstrap_servers,
            msk_arn=arn,
            msk_groups=section.msk_security_groups,
            region=section.region or region,
            account=section.account or account,
            authentication=section.authentication,
            vpc=section.vpc,
            schema_registry=section.schema_registry,
            producer=_options(section, "producer."),
            consumer=_options(section, "consumer."),
        )

    def settings(self, *, looking: bool = False) -> ClusterSettings:
        """Return what a function needs to connect to this cluster. Args: looking: as an operator who only reads."""
        proof = for_operators(self.authentication) if looking else self.authentication
        authentication = proof.model_dump(
            by_alias=True, exclude_none=True, exclude={"secret_kms_key_arn", "operator_secret"}
        )
        return ClusterSettings(
            alias=self.alias,
            bootstrap=",".join(self.bootstrap),
            region=self.region,
            authentication=msgspec.convert(authentication, type=Authentication),
        )


def _options(section: ClusterSection, prefix: str) -> dict[str, str | int]:
    written = section.model_dump(by_alias=True, exclude_none=True)
    return {key.removeprefix(prefix): value for key, value in written.items() if key.startswith(prefix)}


_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}


def partition_of(region: str) -> str:
    """Return the AWS partition of a region, the second part of every ARN there."""
    return next((name for start, name in _PARTITIONS.items() if region.startswith(start)), "aws")
