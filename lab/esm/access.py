"""Source access configurations: the rules between them, and the Kafka client's settings that follow from them.

(https://docs.aws.amazon.com/lambda/latest/dg/kafka-cluster-auth.html)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lab.esm.mapping_api import InvalidParameterValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ReadSecret = Callable[[str], str]
"""The text of a secret, by its ARN or name."""

_SASL = {
    "BASIC_AUTH": "PLAIN",
    "SASL_SCRAM_256_AUTH": "SCRAM-SHA-256",
    "SASL_SCRAM_512_AUTH": "SCRAM-SHA-512",
}
_TYPES = frozenset({*_SASL, "IAM_AUTH", "CLIENT_CERTIFICATE_TLS_AUTH", "OAUTHBEARER_AUTH"})
"""Of authentication; a mapping has one at most. IAM_AUTH has no URI: the function's role signs."""
_OF_TOKENS = frozenset({"OAUTHBEARER_SCOPE", "OAUTHBEARER_LOGICAL_CLUSTER", "OAUTHBEARER_IDENTITY_POOL"})
"""Values for a token request or for brokers."""
_ASSERTION = {"oauthClientEmail", "oauthPrivateKey", "oauthTokenExpirationSeconds"}
"""Members of a secret for the other grant, of signed assertions."""
_SEVERAL = frozenset({"VPC_SUBNET", "VPC_SECURITY_GROUP"})
_OURS = _TYPES | _OF_TOKENS | _SEVERAL | {"SERVER_ROOT_CA_CERTIFICATE"}
"""What mappings of ours have."""


def check_access(settings: Mapping[str, Any]) -> None:
    """Check the rules that the API's model does not have. AWS does not document its own words.

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


def client_access(settings: Mapping[str, Any], read_secret: ReadSecret | None) -> dict[str, Any]:
    """The Kafka client's settings of a mapping's authentication and encryption.

    Args:
        settings: the mapping's.
        read_secret: left out, the source is one of the lab's own clusters, which are plaintext whatever is given.

    Raises:
        InvalidParameterValueError: a secret does not have its form, or the lab cannot authenticate so.
    """
    if read_secret is None:
        return {}
    given = {each["Type"]: each.get("URI", "") for each in settings.get("SourceAccessConfigurations") or []}
    chosen = next((kind for kind in given if kind in _TYPES), "")
    authority = given.get("SERVER_ROOT_CA_CERTIFICATE")
    tls = {"ssl.ca.pem": _members(read_secret, authority, ["certificate"])[0]} if authority else {}
    if chosen in _SASL:
        user, password = _members(read_secret, given[chosen], ["username", "password"])
        sasl = {"sasl.mechanisms": _SASL[chosen], "sasl.username": user, "sasl.password": password}
        return {**tls, **sasl, "security.protocol": "SASL_SSL"}
    if chosen == "CLIENT_CERTIFICATE_TLS_AUTH":
        certificate, key = _members(read_secret, given[chosen], ["certificate", "privateKey"])
        return {**tls, "security.protocol": "SSL", "ssl.certificate.pem": certificate, "ssl.key.pem": key}
    if chosen == "OAUTHBEARER_AUTH":
        return {**tls, **_tokens(given, read_secret), "security.protocol": "SASL_SSL"}
    if chosen:
        raise InvalidParameterValueError("The lab has no IAM_AUTH: nothing there would check a role's signature")
    return {**tls, "security.protocol": "SSL" if authority else "PLAINTEXT"}


def _tokens(given: Mapping[str, str], read_secret: ReadSecret) -> dict[str, Any]:
    """Client credentials; the grant of signed assertions is not emulated."""
    secret = given["OAUTHBEARER_AUTH"]
    names = ["oauthTokenEndpointUrl", "oauthClientId", "oauthClientSecret"]
    server, client, client_secret = _members(read_secret, secret, names)
    if not server.startswith("https://"):
        raise InvalidParameterValueError(f"The oauthTokenEndpointUrl of {secret} must be an HTTPS URL")
    stored = json.loads(read_secret(secret))
    if _ASSERTION & stored.keys():
        raise InvalidParameterValueError(f"The secret {secret} has fields of two grants: {', '.join(sorted(stored))}")
    authority = stored.get("oauthIdpCaCertificate")
    extensions = {"logicalCluster": "OAUTHBEARER_LOGICAL_CLUSTER", "identityPoolId": "OAUTHBEARER_IDENTITY_POOL"}
    told = [f"{name}={given[kind]}" for name, kind in extensions.items() if kind in given]
    return {
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": server,
        "sasl.oauthbearer.client.id": client,
        "sasl.oauthbearer.client.secret": client_secret,
        **({"https.ca.pem": authority} if authority else {"https.ca.location": "probe"}),
        **({"sasl.oauthbearer.scope": given["OAUTHBEARER_SCOPE"]} if "OAUTHBEARER_SCOPE" in given else {}),
        **({"sasl.oauthbearer.extensions": ",".join(told)} if told else {}),
    }


def _members(read_secret: ReadSecret, secret: str, names: Sequence[str]) -> list[str]:
    """The members of a secret.

    Raises:
        InvalidParameterValueError: it is no JSON object with these members.
    """
    try:
        found = json.loads(read_secret(secret))
        return [str(found[name]) for name in names]
    except (ValueError, KeyError, TypeError) as exc:
        form = ", ".join(f'"{name}": "…"' for name in names)
        raise InvalidParameterValueError(
            f"The secret value with ARN {secret} does not have the expected format of: {{{form}}}"
        ) from exc
