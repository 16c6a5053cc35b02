"""Client configuration: bootstrap servers and authentication.

Plaintext, TLS, SASL/PLAIN, SASL/SCRAM, OAUTHBEARER, mutual TLS and MSK IAM, as librdkafka wants them. Secrets come
from Secrets Manager in the forms that Lambda's own event source mapping takes, so that one secret serves both.

Measured on librdkafka 2.16: with its own OIDC method a client has its token and its metadata after 70 ms, and renews
the token at 80 % of its life in a thread of its own. With a callback for tokens, the constructor alone takes a second.
A client that is frozen until after the end of its token renews it when it thaws; the transaction takes 2 s at most.
"""

from __future__ import annotations

import base64
import calendar
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from mirrorless.adapters.aws.secrets import forget_secrets, pem, secret_member, secret_object
from mirrorless.clock import Deadline
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.naming import CLIENT_LOG_VARIABLE
from mirrorless.flow.settings import Authentication, ClusterSettings

ClientConfig = dict[str, Any]

MARGIN_SECONDS = 0.5
"""Kept of every deadline, to raise an error before Lambda kills the process."""

LEAST_SECONDS = 0.1
"""Of a call: where a request of the admin client times out while it is still being made, the client writes into memory
that it has freed. Seen with confluent-kafka 2.16.1 and timeouts of up to 10 ms, on a cluster that does not answer."""

TOKEN_SECONDS = 900
"""The longest life that MSK grants a token."""

_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
"""The first of a chain is the client's own."""
_MSK_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")
_BETWEEN_PARTS = re.compile(r"(?<!\\),\s*")
"""The commas of a certificate's subject."""

_SESSION_ENDED = "not valid in current SASL state"
"""The answer to a token that is renewed too late, as after a freeze: the client connects anew, and that is all."""

_COMPARE = "compare the flow's authentication, its secret and its `ca` with what this listener requires"
_ADVICE = {
    "oauthbearer": "if no token came, check that the token server is up and can be reached from here, and the address, "
    "the client's id and secret and `oauthIdpCaCertificate` in the flow's secret; if the brokers refuse the token, "
    "compare its issuer, audience, scope and life with what they require"
}


def slow_hint(throttled_ms: int) -> str:
    """What to do where a target takes records too slowly. Args: throttled_ms: see `Writer.throttled_ms`."""
    if throttled_ms:
        return (
            "a quota of the target holds the flow back, its brokers asked for pauses of up to "
            f"{throttled_ms / 1000:.1f} s: less is written at once from now on. Raise the quota where the lag grows"
        )
    return (
        "if the target is up, it is slow: less is written at once from now on. Where not even that comes through, "
        "raise the flow's `transaction.timeout.ms`"
    )


def seconds_left(deadline: Deadline) -> float:
    """Seconds that a call may take which begins now.

    A short timeout ends the wait for an answer, not the call, and the client takes a negative one for "for ever".

    Raises:
        KafkaException: too few are left, so nothing may be begun. It is a time-out like the client's own.
    """
    left = deadline() - MARGIN_SECONDS
    if left < LEAST_SECONDS:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no time was left, and nothing was sent"))  # noqa: SLF001 -- the constant's name
    return left


def wait_left(deadline: Deadline) -> float:
    """Seconds for which what is under way is waited for: a moment at least, for an answer that is there already."""
    return max(0.001, deadline() - MARGIN_SECONDS)


def answer(future: Future[Any], deadline: Deadline) -> Any:
    """The result of an admin call.

    Raises:
        KafkaException: what the cluster answered, or a time-out like the client's own.
    """
    try:
        found = future.result(wait_left(deadline))
    except TimeoutError as exc:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from exc  # noqa: SLF001 -- the constant's name
    # Only what `list_offsets` answers has a timestamp. Seen while leaders moved: no offset, and no error either.
    if hasattr(found, "timestamp") and found.offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
    return found


class TurnedAway:
    """Why a cluster, or the server of its tokens, turned a client away: the client's error callback.

    Refused clients raise time-outs only; the reason goes to this callback, which a client calls when it is polled. It
    does not hold the client, which holds it: neither would go when discarded.

    Attributes:
        why: the first reason, which those after it follow from; empty where there was none. Clear it before a warm
            client is used again.
    """

    def __init__(self, where: str, hint: str = _COMPARE) -> None:
        """Args: where: flow and cluster. hint: what the operator can do."""
        self.why = ""
        self._where = where
        self._hint = hint

    def __call__(self, error: KafkaError) -> None:
        """Note an error that the client reports."""
        refused = error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL)  # noqa: SLF001 -- the constants' names
        if refused and _SESSION_ENDED not in error.str():
            self.why = self.why or error.str()

    def check(self) -> None:
        """Raise the reason, if there was one. The next client reads its secrets anew: they may have been mended.

        Raises:
            Retriable: the client was turned away.
        """
        if self.why:
            forget_secrets()
            raise Retriable(f"the cluster turned us away: {self.why}", where=self._where, hint=self._hint)


@contextmanager
def translated(what: str, where: str, turned_away: TurnedAway | None = None) -> Iterator[None]:
    """Turn the client's errors into `Retriable`: whatever it was, the batch comes again."""
    try:
        yield
    except KafkaException as exc:
        if turned_away is not None:
            turned_away.check()
        error = exc.args[0]
        raise Retriable(f"the cluster did not {what}: {error.str()} ({error.name()})", where=where) from exc


def client_config(cluster: ClusterSettings, client_id: str) -> ClientConfig:
    """Librdkafka's settings that every client of a cluster shares.

    Args:
        cluster: where, and by what authentication.
        client_id: `flow|role`, so that broker logs name the culprit.

    Returns:
        the settings, with a `TurnedAway` of its own as `error_cb`.

    Raises:
        ConfigurationError: when a secret lacks a member.
        Retriable: when Secrets Manager does not answer.
    """
    where = f"{client_id.partition('|')[0]} {cluster.alias} at {cluster.bootstrap}"
    return {
        "bootstrap.servers": cluster.bootstrap,
        "client.id": client_id,
        "error_cb": TurnedAway(where, _ADVICE.get(cluster.authentication.type, _COMPARE)),
        "socket.keepalive.enable": True,
        # A broker that is back is found within a second, as by Kafka's own clients. By librdkafka's 10 s, an event that
        # was under way when a broker was killed found it only after its transaction had timed out.
        "reconnect.backoff.max.ms": 1_000,
        # A broken connection is no news after a thaw; the client reconnects and the chain decides what was done.
        "log.connection.close": False,
        # Rebootstrapping after a freeze was measured to stall warm producers for 2 s, and some for ever.
        "metadata.recovery.strategy": "none",
        "enable.metrics.push": False,
        # Notices and worse: librdkafka's lines below that are about itself, and would stand between our lines.
        "log_level": int(os.environ.get(CLIENT_LOG_VARIABLE, "5")),
    } | (_by_properties(cluster) if cluster.authentication.type == "properties" else _authentication(cluster))


def consumer_config(cluster: ClusterSettings, client_id: str) -> ClientConfig:
    """The same of a consumer: it compares the checksum of each batch, which librdkafka leaves out by default."""
    return client_config(cluster, client_id) | {"check.crcs": True}


def _authentication(cluster: ClusterSettings) -> ClientConfig:
    how = cluster.authentication
    tls = {} if not how.ca else {"ssl.ca.pem": secret_member(how.ca, "certificate")}
    if how.type == "tls":
        return tls | {"security.protocol": "SSL"}
    if how.type in ("plain", "scram"):
        secret = how.secret
        return tls | {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "PLAIN" if how.type == "plain" else how.mechanism,
            "sasl.username": secret_member(secret, "username"),
            "sasl.password": secret_member(secret, "password"),
        }
    if how.type == "oauthbearer":
        return tls | _oauth(how)
    if how.type == "mtls":
        mutual = tls | {
            "security.protocol": "SSL",
            "ssl.certificate.pem": secret_member(how.secret, "certificate"),
            "ssl.key.pem": secret_member(how.secret, "privateKey"),
        }
        password = secret_object(how.secret).get("privateKeyPassword")
        return mutual | ({"ssl.key.password": password} if password else {})
    if how.type == "iam":
        if not cluster.region:
            raise ConfigurationError("IAM signs for a region, and the cluster has none", where=cluster.alias)
        return tls | {
            "security.protocol": "SASL_SSL",
            "sasl.mechanisms": "OAUTHBEARER",
            "oauth_cb": msk_iam_token(cluster.region),
        }
    return {"security.protocol": "PLAINTEXT"}


def _by_properties(cluster: ClusterSettings) -> ClientConfig:
    from mirrorless.adapters.kafka import client_properties  # noqa: PLC0415 -- functions have no such files

    path = cluster.authentication.secret
    given = client_properties.read_client_properties(path)
    found: ClientConfig = dict(client_properties.librdkafka_authentication(given, path))
    if given.get("sasl.mechanism") == client_properties.MSK_IAM:
        region = _MSK_REGION.search(cluster.bootstrap)
        if region is None:
            raise ConfigurationError("IAM signs for a region, and the brokers' names have none", where=path)
        found["oauth_cb"] = msk_iam_token(region[1])
    return found


def _oauth(how: Authentication) -> ClientConfig:
    """Client credentials, exchanged for tokens by the client itself."""
    server = secret_member(how.secret, "oauthTokenEndpointUrl")
    if not server.startswith("https://"):
        raise ConfigurationError(
            "'oauthTokenEndpointUrl' is no HTTPS address: the client's secret would be readable on its way",
            where=how.secret,
            hint="write the token server's https:// address; Lambda's Kafka mapping takes no other either",
        )
    authority = secret_object(how.secret).get("oauthIdpCaCertificate")
    extensions = {"logicalCluster": how.logical_cluster, "identityPoolId": how.identity_pool}
    told = ",".join(f"{name}={value}" for name, value in extensions.items() if value)
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": server,
        "sasl.oauthbearer.client.id": secret_member(how.secret, "oauthClientId"),
        "sasl.oauthbearer.client.secret": secret_member(how.secret, "oauthClientSecret"),
        # The client's own default is where Amazon Linux has its authorities; an operator's machine may be another.
        **({"https.ca.pem": pem(str(authority))} if authority else {"https.ca.location": "probe"}),
        **({"sasl.oauthbearer.scope": how.scope} if how.scope else {}),
        **({"sasl.oauthbearer.extensions": told} if told else {}),
    }


def is_principal_of(cluster: ClusterSettings, principal: str) -> bool:
    """Whether brokers may know clients with these credentials by a name, such as `User:mirrorless`.

    Of a certificate, each part of the name must be in it: brokers make names of its subject by rules of their own. The
    subject of a token is known to the token server alone; it is the client's id, by most.

    Raises:
        ConfigurationError, Retriable: the secret lacks a member, or cannot be read.
    """
    how, name = cluster.authentication, principal.removeprefix("User:")
    if how.type in ("plain", "scram"):
        return name == secret_member(how.secret, "username")
    if how.type == "oauthbearer":
        return name == secret_member(how.secret, "oauthClientId")
    if how.type == "mtls":
        own = _CERTIFICATE.search(secret_member(how.secret, "certificate"))
        body = ssl.PEM_cert_to_DER_cert(own[0]) if own else b""
        parts = (part.partition("=")[2] or part for part in _BETWEEN_PARTS.split(name))
        return all(bytes([len(part.encode())]) + part.encode() in body for part in parts)
    return False


def msk_iam_token(region: str, *, session: Any = None) -> Callable[[str], tuple[str, float]]:
    """A token callback for MSK IAM: a presigned `kafka-cluster:Connect`, signed by botocore.

    (https://docs.aws.amazon.com/msk/latest/developerguide/iam-access-control.html)
    """
    import botocore.session  # noqa: PLC0415 -- only clusters with IAM pay for this import
    from botocore.auth import SigV4QueryAuth  # noqa: PLC0415 -- same
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415 -- same

    session = session or botocore.session.get_session()

    def token(_: str) -> tuple[str, float]:
        credentials = session.get_credentials()
        if credentials is None:
            raise ConfigurationError("there are no AWS credentials to sign MSK's token with", where=region)
        request = AWSRequest(
            "GET", f"https://kafka.{region}.amazonaws.com/", params={"Action": "kafka-cluster:Connect"}
        )
        frozen = credentials.get_frozen_credentials()
        SigV4QueryAuth(frozen, "kafka-cluster", region, expires=TOKEN_SECONDS).add_auth(request)
        url = f"{request.url}&User-Agent=mirrorless"
        signed_at = time.strptime(parse_qs(urlsplit(url).query)["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ")
        encoded = base64.urlsafe_b64encode(url.encode()).rstrip(b"=").decode()
        return encoded, calendar.timegm(signed_at) + TOKEN_SECONDS

    return token
