"""Rights to read the secrets of a flow's two clusters: credentials, and certificates of private authorities.

Pollers act by the forwarder's role, and read the same secrets. A secret that is written by its name has an ARN that
ends with six letters of Secrets Manager's choice.
(https://docs.aws.amazon.com/secretsmanager/latest/userguide/auth-and-access_iam-policies.html)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.iam import Right
from mirrorless.config.cluster import WithSecret, secrets_of

if TYPE_CHECKING:
    from infra.deployment import FlowDeployment, Location
    from infra.iam import Part

_SUFFIX = "-??????"
_MULTI_REGION = ":key/mrk-"


def rights(part: Part, flow: FlowDeployment) -> list[Right]:
    """What a part may read where it runs: secrets of the same names must be there."""
    if part == "remove_mappings":  # it calls Lambda, and no cluster
        return []
    return readable(flow, flow.place_of(part))


def readable(flow: FlowDeployment, place: Location) -> list[Right]:
    """To read a flow's secrets as they are called in a place."""
    secrets: dict[str, None] = {}
    keys: dict[tuple[str, str], None] = {}
    for cluster in (flow.flow.source, flow.flow.target):
        proof = cluster.authentication
        secrets |= dict.fromkeys(_resource(flow, secret, place) for secret in secrets_of(proof))
        if not isinstance(proof, WithSecret):
            continue
        region, account = flow.secret_arn(proof.secret, at=place).split(":")[3:5]
        found = (_key_there(key, region, account) for key in proof.secret_kms_key_arn)
        if key := next(filter(None, found), None):
            keys[key, region] = None
    if not secrets:
        return []
    return [
        Right(actions=("secretsmanager:GetSecretValue",), resources=tuple(secrets)),
        *(
            Right(
                actions=("kms:Decrypt",),
                resources=(key,),
                conditions={"StringEquals": {"kms:ViaService": f"secretsmanager.{region}.amazonaws.com"}},
            )
            for key, region in keys
        ),
    ]


def _resource(flow: FlowDeployment, secret: str, place: Location) -> str:
    arn = flow.secret_arn(secret, at=place)
    return arn if secret.startswith("arn:") else f"{arn}{_SUFFIX}"


def _key_there(key: str, region: str, account: str) -> str | None:
    """The key that opens a secret in a place, if this may be it: of a multi-region key, the replica there."""
    parts = key.split(":")
    if parts[4] != account:
        return None
    if parts[3] == region:
        return key
    return ":".join([*parts[:3], region, *parts[4:]]) if _MULTI_REGION in key else None
