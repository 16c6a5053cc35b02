"""Rules and defaults of the Lambda API for Kafka event source mappings, in AWS's names.

What one field may be is the API's own model (`lab.esm.api_model`); here are the rules between fields. What no mapping
of ours sets the lab refuses, rather than ignoring it: most of it would drop records of a replica, change their bytes or
give up their order.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lab.esm.api_model import members, violations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LambdaApiError(Exception):
    """An answer of the Lambda API other than success.

    Attributes:
        status: the HTTP status code.
        code: the error's name in the API.
    """

    status = 500
    code = "ServiceException"

    def __str__(self) -> str:
        return f"{self.code} ({self.status}): {super().__str__()}"


class ValidationError(LambdaApiError):
    """A field breaks the API's model."""

    status, code = 400, "ValidationException"


class InvalidParameterValueError(LambdaApiError):
    """Fields contradict each other, or the mapping's kind."""

    status, code = 400, "InvalidParameterValueException"


class ResourceNotFoundError(LambdaApiError):
    """No such mapping, function or cluster."""

    status, code = 404, "ResourceNotFoundException"


class ResourceConflictError(LambdaApiError):
    """The same event source and consumer group are mapped already."""

    status, code = 409, "ResourceConflictException"


class ResourceInUseError(LambdaApiError):
    """The mapping is being created, updated or deleted."""

    status, code = 400, "ResourceInUseException"


class TooManyRequestsError(LambdaApiError):
    """The API's pace was exceeded: call again later."""

    status, code = 429, "TooManyRequestsException"


@dataclass(frozen=True, slots=True)
class FunctionName:
    """A function, or one version or alias of it.

    A mapping belongs to exactly what it was made for: listing a function does not list its aliases' mappings, and an
    alias is asked for by its own name (https://docs.aws.amazon.com/lambda/latest/api/API_ListEventSourceMappings.html).
    """

    name: str
    qualifier: str = ""

    @classmethod
    def of(cls, text: str) -> FunctionName:
        """Read what the API takes: a name, a name with an account, an ARN; each with a qualifier or without."""
        name, _, qualifier = text.rpartition("function:")[2].partition(":")
        return cls(name, qualifier)

    def __str__(self) -> str:
        return f"{self.name}:{self.qualifier}" if self.qualifier else self.name


Settings = dict[str, Any]
"""A mapping's fields by the API's names, with defaults filled in."""

DEFAULT_WINDOW_S = 0.5
"""The batching window of a mapping that names none. AWS takes whole seconds, so it cannot be set again afterwards."""

MAXIMUM_POLLERS = 2_000
"""Of one mapping."""

_PROVISIONED_ONLY = {
    "MaximumRetryAttempts": -1,
    "MaximumRecordAgeInSeconds": -1,
    "BisectBatchOnFunctionError": False,
    "FunctionResponseTypes": [],
    "MetricsConfig": {},
    "LoggingConfig": {},
}
_NOT_OURS = {
    "MaximumRetryAttempts": "would end the retries",
    "MaximumRecordAgeInSeconds": "would end the retries",
    "DestinationConfig": "would end the retries",
    "BisectBatchOnFunctionError": "would split a batch that is retried whole",
    "FilterCriteria": "would drop records from a replica",
    "SchemaRegistryConfig": "would change the records' bytes",
    "ConsumptionMode": "would give up their order",
    **dict.fromkeys(
        ("EventSourceArn", "AmazonManagedKafkaEventSourceConfig"), "is for MSK, and the lab's clusters are self-managed"
    ),
    **dict.fromkeys(
        (
            "ParallelizationFactor",
            "TumblingWindowInSeconds",
            "Queues",
            "ScalingConfig",
            "DocumentDBEventSourceConfig",
        ),
        "is not for Kafka",
    ),
}
"""What no mapping of ours sets to anything but the default, and why."""
GROUP_CONFIG = "SelfManagedKafkaEventSourceConfig"


def settings_of_create(request: Mapping[str, Any]) -> Settings:
    """The settings of a new mapping. The consumer group may still be missing: it defaults to the UUID.

    Raises:
        ValidationError: a field breaks the API's model.
        InvalidParameterValueError: fields contradict each other, or are not for this kind of mapping.
    """
    _fit("CreateEventSourceMapping", request)
    _check_source(request)
    _check_start(request)
    defaults = {"Enabled": True, "BatchSize": 100, "StartingPosition": None}
    settings = {**defaults, **{name: value for name, value in request.items() if value is not None}}
    if not settings.get("ProvisionedPollerConfig"):
        # AWS refuses these even with their default values.
        _refuse_provisioned_only([name for name in _PROVISIONED_ONLY if request.get(name) is not None])
    _refuse_not_ours(request)
    return _settled(settings)


def settings_of_update(current: Settings, request: Mapping[str, Any]) -> Settings:
    """The settings after an update; fields that are not given stay.

    To leave provisioned mode, give `ProvisionedPollerConfig={}` and the defaults of what only that mode has.

    Raises:
        ValidationError: a field breaks the API's model.
        InvalidParameterValueError: a field can be set at creation only, or fields contradict each other.
    """
    create_only = sorted((members("CreateEventSourceMapping") - members("UpdateEventSourceMapping")) & request.keys())
    if create_only:
        raise InvalidParameterValueError(f"{', '.join(create_only)} can be set at creation only: delete and create")
    _fit("UpdateEventSourceMapping", request)
    _refuse_not_ours(request)
    settings = dict(current)
    for name, value in request.items():
        if name == GROUP_CONFIG:
            settings[name] = _updated_config(current, value)
        elif value is not None and name != "UUID":
            settings[name] = value
    return _settled(settings)


def consumer_group(settings: Settings) -> str | None:
    """The consumer group that the settings name."""
    group = settings.get(GROUP_CONFIG, {}).get("ConsumerGroupId")
    return None if group is None else str(group)


_TYPES = frozenset(
    {
        "BASIC_AUTH",
        "SASL_SCRAM_256_AUTH",
        "SASL_SCRAM_512_AUTH",
        "IAM_AUTH",
        "CLIENT_CERTIFICATE_TLS_AUTH",
        "OAUTHBEARER_AUTH",
    }
)
"""Of authentication; a mapping has one at most. IAM_AUTH has no URI: the function's role signs."""
_OF_TOKENS = frozenset({"OAUTHBEARER_SCOPE", "OAUTHBEARER_LOGICAL_CLUSTER", "OAUTHBEARER_IDENTITY_POOL"})
"""Values for a token request or for brokers."""
_SEVERAL = frozenset({"VPC_SUBNET", "VPC_SECURITY_GROUP"})
_OURS = _TYPES | _OF_TOKENS | _SEVERAL | {"SERVER_ROOT_CA_CERTIFICATE"}
"""What mappings of ours have."""


def check_access(settings: Mapping[str, Any]) -> None:
    """Check source access configurations; the lab's clusters are plaintext whatever is given.

    Rules: https://docs.aws.amazon.com/lambda/latest/dg/kafka-cluster-auth.html. AWS does not document its own words.

    Raises:
        InvalidParameterValueError: a type is not for this kind of source, is there twice, or lacks another.
    """
    given = settings.get("SourceAccessConfigurations") or []
    kinds = [str(each.get("Type")) for each in given]
    for each, kind in zip(given, kinds, strict=True):
        if kind not in _OURS:
            raise InvalidParameterValueError(f"The lab has no {kind}: no mapping of ours uses it")
        if bool(each.get("URI")) == (kind == "IAM_AUTH"):
            raise InvalidParameterValueError(f"{kind} takes {'no' if kind == 'IAM_AUTH' else 'a'} URI")
        if kinds.count(kind) > 1 and kind not in _SEVERAL:
            raise InvalidParameterValueError(f"{kind} is there twice")
        if kind in _OF_TOKENS and "OAUTHBEARER_AUTH" not in kinds:
            raise InvalidParameterValueError(f"{kind} requires OAUTHBEARER_AUTH")
    if len(chosen := _TYPES & {*kinds}) > 1:
        raise InvalidParameterValueError(f"One authentication at most, and not {' and '.join(sorted(chosen))}")
    if 0 < len(_SEVERAL & {*kinds}) < len(_SEVERAL):
        raise InvalidParameterValueError("VPC_SUBNET and VPC_SECURITY_GROUP are given together")


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingOptions:
    """What a poller needs to know of its mapping's settings.

    Attributes:
        topic: the one topic.
        group_id: the consumer group.
        batch_size: records per payload, at most.
        window_s: how long to wait for more after a batch's first record arrived.
        starting_position: where partitions without a committed offset begin.
        starting_timestamp_ms: for AT_TIMESTAMP.
        partial_response: the function may name the records that failed.
        pollers: how many consumers share the partitions; no more than there are partitions.
    """

    topic: str
    group_id: str
    batch_size: int
    window_s: float
    starting_position: str
    starting_timestamp_ms: int
    partial_response: bool
    pollers: int

    @classmethod
    def of(cls, settings: Settings, *, group_id: str) -> PollingOptions:
        """Read validated settings."""
        provisioned = settings.get("ProvisionedPollerConfig")
        return cls(
            topic=settings["Topics"][0],
            group_id=group_id,
            batch_size=settings["BatchSize"],
            window_s=float(settings.get("MaximumBatchingWindowInSeconds", DEFAULT_WINDOW_S)),
            starting_position=settings["StartingPosition"],
            starting_timestamp_ms=int(settings.get("StartingPositionTimestamp", 0) * 1000),
            partial_response=bool(settings.get("FunctionResponseTypes")),
            pollers=provisioned["MinimumPollers"] if provisioned else 1,
        )


def _fit(operation: str, request: Mapping[str, Any]) -> None:
    broken = violations(operation, request)
    if broken:
        plural = "error" if len(broken) == 1 else "errors"
        raise ValidationError(f"{len(broken)} validation {plural} detected: {'; '.join(broken)}")


def _check_source(request: Mapping[str, Any]) -> None:
    if not request.get("SelfManagedEventSource", {}).get("Endpoints", {}).get("KAFKA_BOOTSTRAP_SERVERS"):
        raise InvalidParameterValueError("SelfManagedEventSource.Endpoints needs KAFKA_BOOTSTRAP_SERVERS")
    if not request.get("Topics"):
        raise InvalidParameterValueError("Topics is required for Kafka: exactly one topic")


def _check_start(request: Mapping[str, Any]) -> None:
    position, moment = request.get("StartingPosition"), request.get("StartingPositionTimestamp")
    if position is None:
        raise InvalidParameterValueError("StartingPosition is required for Kafka: TRIM_HORIZON, LATEST or AT_TIMESTAMP")
    if position != "AT_TIMESTAMP":
        if moment is not None:
            raise InvalidParameterValueError("StartingPositionTimestamp is for StartingPosition AT_TIMESTAMP only")
        return
    if moment is None:
        raise InvalidParameterValueError("StartingPosition AT_TIMESTAMP needs StartingPositionTimestamp")
    if moment > time.time():
        raise InvalidParameterValueError("StartingPositionTimestamp is in the future")


def _refuse_not_ours(request: Mapping[str, Any]) -> None:
    """Refuse what no mapping of ours sets, wherever it stands."""
    for name, value in request.items():
        if name == GROUP_CONFIG and value:
            _refuse_not_ours(value)
        elif name in _NOT_OURS and not _is_default(value):
            raise InvalidParameterValueError(f"The lab refuses {name}, which {_NOT_OURS[name]}")


def _is_default(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_default, value.values()))
    return value is None or value is False or value in (-1, "", [])


def _updated_config(current: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    old = current.get(GROUP_CONFIG, {})
    if given.get("ConsumerGroupId", old.get("ConsumerGroupId")) != old.get("ConsumerGroupId"):
        raise InvalidParameterValueError(
            f"{GROUP_CONFIG}.ConsumerGroupId can be set at creation only: delete and create"
        )
    return {**old, **given}


def _settled(settings: Settings) -> Settings:
    """Check the rules that hold for every mapping, and fill in what follows from them."""
    if settings.get("ProvisionedPollerConfig") == {}:
        del settings["ProvisionedPollerConfig"]  # AWS: an empty configuration turns provisioned mode off
    provisioned = settings.get("ProvisionedPollerConfig")
    if provisioned is None:
        left = {name: settings.pop(name) for name in _PROVISIONED_ONLY if name in settings}
        _refuse_provisioned_only([name for name, value in left.items() if value != _PROVISIONED_ONLY[name]])
        return settings
    pollers = {"MinimumPollers": 1, "MaximumPollers": 200, **provisioned}
    if pollers.get("PollerGroupName") == "":
        del pollers["PollerGroupName"]  # AWS: an empty name leaves the group
    if pollers["MaximumPollers"] > MAXIMUM_POLLERS:
        raise InvalidParameterValueError(f"MaximumPollers is at most {MAXIMUM_POLLERS} for Kafka")
    if pollers["MinimumPollers"] > pollers["MaximumPollers"]:
        raise InvalidParameterValueError("MinimumPollers is greater than MaximumPollers")
    defaults = {name: _PROVISIONED_ONLY[name] for name in ("MaximumRetryAttempts", "MaximumRecordAgeInSeconds")}
    return {**defaults, "BisectBatchOnFunctionError": False, **settings, "ProvisionedPollerConfig": pollers}


def _refuse_provisioned_only(names: Sequence[str]) -> None:
    for name in names:
        word = name[0].lower() + name[1:]
        raise InvalidParameterValueError(
            f"Unsupported '{word}' parameter for given event source mapping type: it needs ProvisionedPollerConfig"
        )
