"""Settings of clients: their authentication, from secrets in the form of Lambda's own mapping, and their time."""

from __future__ import annotations

import base64
import datetime as dt
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import botocore.auth
import botocore.session
import pytest
from aws_lambda_powertools.utilities import parameters
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from botocore.credentials import Credentials
from confluent_kafka import KafkaError, KafkaException, Producer

from mirrorless.adapters.kafka.client import (
    LEAST_SECONDS,
    MARGIN_SECONDS,
    TOKEN_SECONDS,
    TurnedAway,
    client_config,
    is_principal_of,
    msk_iam_token,
    seconds_left,
    wait_left,
)
from mirrorless.errors import ConfigurationError, Retriable
from mirrorless.flow.naming import CLIENT_LOG_VARIABLE
from mirrorless.flow.settings import Authentication, ClusterSettings
from tests.support.certificates import Authority

REGION = "eu-west-1"
CREDENTIALS = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session/token+==")
FROZEN = dt.datetime(2026, 11, 21, 10, 30, 15)  # noqa: DTZ001  botocore's own clock is naive, in UTC
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture
def secrets(aws: None) -> Iterator[Any]:  # noqa: ARG001 -- where it is
    """Secrets Manager, empty, and nothing remembered of other tests' secrets."""
    parameters.clear_caches()  # type: ignore[no-untyped-call]  # theirs
    yield boto3.client("secretsmanager")
    parameters.clear_caches()  # type: ignore[no-untyped-call]  # theirs


def config(kind: Any = "plaintext", secret: str = "", **how: Any) -> dict[str, Any]:
    authentication = Authentication(type=kind, secret=secret, **how)
    cluster = ClusterSettings(alias="eu-west", bootstrap="b-1:9096", region=REGION, authentication=authentication)
    return client_config(cluster, "us-east->eu-west|writer")


def store(secrets: Any, name: str, **members: str) -> None:
    secrets.create_secret(Name=name, SecretString=json.dumps(members))


def test_plaintext_needs_no_secret() -> None:
    found = config()

    assert (found["bootstrap.servers"], found["security.protocol"]) == ("b-1:9096", "PLAINTEXT")
    assert found["client.id"] == "us-east->eu-west|writer"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("reconnect.backoff.max.ms", 1_000),  # with 10 s, a killed target cost an event its transaction
        ("socket.keepalive.enable", True),
        ("log.connection.close", False),  # of those that end while it is frozen
        ("enable.metrics.push", False),  # each push is a request, and an event pays for it (KIP-714)
    ],
)
def test_a_client_finds_a_broker_soon_keeps_idle_connections_and_gives_no_metrics(option: str, value: object) -> None:
    assert config()[option] == value


def test_scram_takes_user_and_password_from_the_secret_and_a_private_authority_from_another(secrets: Any) -> None:
    store(secrets, "AmazonMSK_user", username="mirror", password="s3cret\\nwith backslash")  # noqa: S106  not one
    store(secrets, "ca", certificate=PEM)

    found = config("scram", "AmazonMSK_user", mechanism="SCRAM-SHA-256", ca="ca")

    assert found["security.protocol"] == "SASL_SSL"
    assert found["sasl.mechanisms"] == "SCRAM-SHA-256"
    assert (found["sasl.username"], found["sasl.password"]) == ("mirror", "s3cret\\nwith backslash")
    assert found["ssl.ca.pem"] == PEM


def test_mutual_tls_takes_certificate_and_key_even_if_their_line_ends_are_spelt_out(secrets: Any) -> None:
    key = PEM.replace("CERTIFICATE", "PRIVATE KEY")
    store(secrets, "tls", certificate=PEM.replace("\n", "\\n"), privateKey=key, privateKeyPassword="pass")

    found = config("mtls", "tls")

    assert found["security.protocol"] == "SSL"
    assert (found["ssl.certificate.pem"], found["ssl.key.pem"]) == (PEM, key)
    assert found["ssl.key.password"] == "pass"
    assert "ssl.ca.pem" not in found
    store(secrets, "open", certificate=PEM, privateKey=PEM)
    assert "ssl.key.password" not in config("mtls", "open")


def test_tls_alone_needs_no_secret_but_takes_a_private_authority(secrets: Any) -> None:
    store(secrets, "ca", certificate=PEM)

    assert (config("tls")["security.protocol"], "ssl.ca.pem" in config("tls")) == ("SSL", False)
    assert config("tls", ca="ca")["ssl.ca.pem"] == PEM


def test_plain_takes_user_and_password_over_tls(secrets: Any) -> None:
    store(secrets, "user", username="mirror", password="s3cret")  # noqa: S106  not one

    found = config("plain", "user")

    assert (found["security.protocol"], found["sasl.mechanisms"]) == ("SASL_SSL", "PLAIN")
    assert (found["sasl.username"], found["sasl.password"]) == ("mirror", "s3cret")


TOKENS = {
    "oauthTokenEndpointUrl": "https://idp.example.com/token",
    "oauthClientId": "mirror",
    "oauthClientSecret": "s3cret",
}


@pytest.mark.parametrize(
    ("kind", "ours", "others"),
    [
        ("scram", ["User:mirror"], ["User:*", "User:mirror2", "mirro", "Group:mirror"]),
        ("plain", ["User:mirror"], ["User:shop"]),
        ("oauthbearer", ["User:mirror"], ["User:*", "User:mirrorless"]),
        ("mtls", ["User:CN=mirror-7", "User:mirror-7"], ["User:CN=mirror", "User:CN=shop", "User:*", "User:r"]),
        ("plaintext", [], ["User:ANONYMOUS", "User:*"]),
        ("iam", [], ["User:*"]),
    ],
)
def test_the_flows_own_principal_is_known_by_its_credentials(
    kind: Any, ours: list[str], others: list[str], secrets: Any
) -> None:
    chain = f"a friendly name\n{Authority.new().issue('mirror-7').certificate}{Authority.new().certificate}"
    members = {"username": "mirror", "password": "s3cret", "certificate": chain, **TOKENS}
    store(secrets, "own", **members, privateKey=PEM)
    authentication = Authentication(type=kind, secret="own")  # noqa: S106  a name
    cluster = ClusterSettings(alias="eu-west", bootstrap="b-1:9096", region=REGION, authentication=authentication)

    assert all(is_principal_of(cluster, each) for each in ours)
    assert not any(is_principal_of(cluster, each) for each in others)


def test_tokens_come_from_the_server_in_the_secret(secrets: Any) -> None:
    store(secrets, "client", **TOKENS, oauthIdpCaCertificate=PEM.replace("\n", "\\n"))

    found = config("oauthbearer", "client", scope="kafka all", logical_cluster="lkc-1", identity_pool="pool-2")

    assert (found["security.protocol"], found["sasl.mechanisms"]) == ("SASL_SSL", "OAUTHBEARER")
    oauth = {name.removeprefix("sasl.oauthbearer."): found[name] for name in found if "oauthbearer" in name}
    assert oauth == {
        "method": "oidc",
        "token.endpoint.url": TOKENS["oauthTokenEndpointUrl"],
        "client.id": "mirror",
        "client.secret": "s3cret",
        "scope": "kafka all",
        "extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
    }
    assert found["https.ca.pem"] == PEM


def test_the_client_takes_what_oauthbearer_gives_it(secrets: Any) -> None:
    """Its own list of public authorities is where Amazon Linux has them, so it looks for others."""
    store(secrets, "client", **TOKENS)

    found = config("oauthbearer", "client")

    assert found["https.ca.location"] == "probe"
    assert not {"https.ca.pem", "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions"} & found.keys()
    Producer({**found, "bootstrap.servers": "127.0.0.1:1", "log_level": 0})


def test_a_secret_does_not_go_to_a_token_server_without_tls(secrets: Any) -> None:
    store(secrets, "client", **TOKENS | {"oauthTokenEndpointUrl": "http://idp.example.com/token"})

    with pytest.raises(ConfigurationError, match="no HTTPS address"):
        config("oauthbearer", "client")


def test_a_private_key_in_place_of_a_clients_secret_is_refused(secrets: Any) -> None:
    """A mapping takes the grant of signed assertions as well; our clients do not."""
    rest = {name: value for name, value in TOKENS.items() if name != "oauthClientSecret"}
    store(secrets, "client", **rest, oauthPrivateKey=PEM)

    with pytest.raises(ConfigurationError, match="'oauthClientSecret'"):
        config("oauthbearer", "client")


def test_a_refused_client_says_where_and_why_and_secrets_are_read_anew(secrets: Any) -> None:
    store(secrets, "client", **TOKENS)
    refused = config("oauthbearer", "client")["error_cb"]
    secrets.put_secret_value(SecretId="client", SecretString=json.dumps(TOKENS | {"oauthClientSecret": "mended"}))
    assert config("oauthbearer", "client")["sasl.oauthbearer.client.secret"] == "s3cret"

    refused(KafkaError(KafkaError._TRANSPORT, "down"))
    refused.check()
    refused(KafkaError(KafkaError._AUTHENTICATION, "Failed to acquire a token"))
    with pytest.raises(Retriable, match=r"us-east->eu-west eu-west at b-1:9096: .* Failed to acquire a token") as told:
        refused.check()

    assert "token server" in told.value.hint
    assert config("oauthbearer", "client")["sasl.oauthbearer.client.secret"] == "mended"


def test_the_first_reason_counts_and_a_session_that_ended_is_none() -> None:
    """A broker says so after a freeze, to a client that then connects anew."""
    turned_away = TurnedAway("us-east->eu-west")
    turned_away(KafkaError(KafkaError._AUTHENTICATION, "Broker: Request not valid in current SASL state"))
    turned_away.check()

    turned_away(KafkaError(KafkaError._AUTHENTICATION, "the token server is down"))
    turned_away(KafkaError(KafkaError._AUTHENTICATION, "there is no token"))
    with pytest.raises(Retriable, match="the token server is down"):
        turned_away.check()


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        ('{"username": "mirror"}', "'password'"),
        ('{"username": "", "password": "x"}', "'username'"),
        ("just a password", "not a JSON object"),
        ('["mirror", "x"]', "not a JSON object"),
    ],
)
def test_a_secret_without_a_member_is_named_with_the_member(secrets: Any, stored: str, named: str) -> None:
    secrets.create_secret(Name="broken", SecretString=stored)

    with pytest.raises(ConfigurationError, match=named) as refused:
        config("scram", "broken")
    assert refused.value.where == "broken"


def test_a_secret_that_is_not_there_is_retriable_and_named(secrets: Any) -> None:  # noqa: ARG001  Secrets Manager must be there, without it
    """Lambda's role, the network or the secret may come; the batch waits."""
    with pytest.raises(Retriable, match="missing-secret"):
        config("scram", "missing-secret")


def test_the_client_takes_what_iam_gives_it() -> None:
    found = config("iam")

    assert (found["security.protocol"], found["sasl.mechanisms"]) == ("SASL_SSL", "OAUTHBEARER")
    assert callable(found["oauth_cb"])
    # Unknown or misspelt options would be refused here; no connection is needed for that.
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    Producer({**found, **nowhere, "oauth_cb": lambda _: ("token", time.time() + 900)})


class _Session:
    def get_credentials(self) -> Credentials | None:
        return CREDENTIALS


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")  # theirs
@pytest.mark.parametrize("session_token", ["session/token+==", "session/token+1==", "session/token+12=="])
def test_the_iam_token_is_the_one_that_awss_own_signer_makes(
    session_token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same credentials, same second: the same signature, and every parameter but the name of the client.

    Of three lengths, so that two of the tokens are padded before they are sent.
    """
    _freeze(monkeypatch)
    monkeypatch.setattr(CREDENTIALS, "token", session_token)
    theirs, their_expiry_ms = MSKAuthTokenProvider.generate_auth_token_from_credentials_provider(REGION, _Provider())

    ours, our_expiry = msk_iam_token(REGION, session=_Session())("")

    our_query, their_query = _query(ours), _query(theirs)
    assert our_query.pop("User-Agent") == ["mirrorless"]
    their_query.pop("User-Agent")
    assert our_query == their_query
    assert urlsplit(_decoded(ours))[:3] == urlsplit(_decoded(theirs))[:3]
    assert "=" not in ours
    assert our_expiry == their_expiry_ms / 1000
    assert our_query["X-Amz-Expires"] == [str(TOKEN_SECONDS)]


def test_without_credentials_there_is_no_token() -> None:
    class Empty:
        def get_credentials(self) -> None:
            return None

    with pytest.raises(ConfigurationError, match="no AWS credentials"):
        msk_iam_token(REGION, session=Empty())("")


class _Provider(botocore.credentials.CredentialProvider):  # type: ignore[misc]  # botocore ships no types
    def load(self) -> Credentials:
        return CREDENTIALS


def _freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    # botocore's signers take the time from this one, in every version that we support.
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: FROZEN)


def _decoded(token: str) -> str:
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()


def _query(token: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(_decoded(token)).query, strict_parsing=True)


@pytest.mark.parametrize("left", [0.0, LEAST_SECONDS - 0.01])
def test_no_call_begins_with_so_little_time_that_the_client_would_damage_its_memory(left: float) -> None:
    with pytest.raises(KafkaException, match="nothing was sent"):
        seconds_left(lambda: MARGIN_SECONDS + left)

    assert seconds_left(lambda: MARGIN_SECONDS + 2 * LEAST_SECONDS) == pytest.approx(2 * LEAST_SECONDS)


def test_the_kafka_clients_own_lines_are_as_many_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ClusterSettings(alias="a", bootstrap="127.0.0.1:1")

    assert client_config(cluster, "a->b|x")["log_level"] == 5
    monkeypatch.setenv(CLIENT_LOG_VARIABLE, "0")
    assert client_config(cluster, "a->b|x")["log_level"] == 0


def test_what_is_under_way_is_waited_for_until_the_margin_and_a_moment_at_least() -> None:
    assert wait_left(lambda: 10.0) == 10.0 - MARGIN_SECONDS
    assert wait_left(lambda: MARGIN_SECONDS) == wait_left(lambda: -5.0) == 0.001


# Requests to coordinators of groups that their caller does not wait for: the process lives on

ROOT = Path(__file__).parent.parent.parent.parent


def asked(way: str, *, rounds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.asked_coordinators", way, str(rounds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_request_that_times_out_by_itself_ends_the_process() -> None:
    """The client's fault. Once a new client passes here, `coordinators.REQUEST_SECONDS` has had its time."""
    died = asked("old", rounds=4)

    assert died.returncode in (-signal.SIGABRT, -signal.SIGSEGV), died.stdout + died.stderr


@pytest.mark.parametrize("way", ["commits", "offsets"])
def test_a_request_that_is_given_up_does_not(way: str) -> None:
    lived = asked(way, rounds=5)

    assert (lived.returncode, lived.stdout) == (0, "lived\n"), lived.stderr
