"""A cluster behind TLS takes our records when we prove who we are, and only then.

A real broker, certificates made here, a token server in a thread, and the secrets in Secrets Manager's own form (moto:
AWS has no local one).
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from uuid import uuid4

import boto3
import msgspec
import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from moto.server import ThreadedMotoServer

from lab.servers.kafka import KafkaBroker, KafkaCluster
from lab.servers.process import free_port, running
from mirrorless.adapters.kafka.lane_log import KafkaLaneLog
from mirrorless.adapters.kafka.topics import KafkaTopics
from mirrorless.adapters.kafka.wire.raw_log import KafkaRawLog
from mirrorless.adapters.kafka.wire.raw_writer import RawWriter
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.flow.settings import Authentication, ClusterSettings
from mirrorless.jobs.copy_task import OffsetRange
from mirrorless.records.batch_records import packed, records
from mirrorless.records.record import Record
from tests.support.certificates import Authority
from tests.support.lane_stage import LaneStage
from tests.support.topics import create_topic
from tests.support.tries import some_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

AUDIENCE = "kafka"
CLIENT = "mirrorless"


class TokenServer:
    """Gives tokens for client credentials.

    Attributes:
        client_secret: what a client must show; change it as an operator would.
        lifetime_s: of the tokens.
        requests: the form of each granted request.
    """

    def __init__(self, authority: Authority) -> None:
        """Choose addresses and begin to answer. Args: authority: signs the certificate of `/token`."""
        self.client_secret = "open says me"  # noqa: S105 -- of a server that lives for a minute
        self.lifetime_s = 3600.0
        self.requests: list[dict[str, str]] = []
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        proof = authority.issue("token server")
        with tempfile.TemporaryDirectory() as folder:
            pem = Path(folder) / "server.pem"
            pem.write_text(proof.key + proof.certificate)
            self._tls.load_cert_chain(pem)
        self._keys = self._serve(0)
        self._tokens: ThreadingHTTPServer | None = self._serve(0, self._tls)
        self._port = self._tokens.server_port

    @property
    def token_url(self) -> str:
        """Where clients ask."""
        return f"https://127.0.0.1:{self._port}/token"

    @property
    def jwks_url(self) -> str:
        """Where brokers read the public key."""
        return f"http://127.0.0.1:{self._keys.server_port}/jwks"

    def take_down(self) -> None:
        """Refuse connections to `/token`; the keys stay."""
        if self._tokens is not None:
            _close(self._tokens)
            self._tokens = None

    def bring_up(self) -> None:
        """Answer again, at the same address."""
        if self._tokens is None:
            self._tokens = self._serve(self._port, self._tls)

    def stop(self) -> None:
        """End both."""
        self.take_down()
        _close(self._keys)

    def answer(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """The status and the body for a token request."""
        user, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if (user, secret) != (CLIENT, self.client_secret):
            return 401, {"error": "invalid_client", "error_description": "unknown client, or wrong secret"}
        self.requests.append(form)
        return 200, {"access_token": self._token(), "token_type": "Bearer", "expires_in": int(self.lifetime_s)}

    def jwks(self) -> dict[str, Any]:
        """The public key."""
        point = self._key.public_key().public_numbers()
        x, y = (_encoded(number.to_bytes(32, "big")) for number in (point.x, point.y))
        return {"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "1", "x": x, "y": y}]}

    def _token(self) -> str:
        now = time.time()
        claims = {"sub": CLIENT, "aud": AUDIENCE, "iat": int(now), "exp": ceil(now + self.lifetime_s), "scope": "kafka"}
        head, body = (_encoded(json.dumps(part).encode()) for part in ({"alg": "ES256", "kid": "1"}, claims))
        signed = self._key.sign(f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA256()))
        signature = b"".join(number.to_bytes(32, "big") for number in decode_dss_signature(signed))
        return f"{head}.{body}.{_encoded(signature)}"

    def _serve(self, port: int, tls: ssl.SSLContext | None = None) -> ThreadingHTTPServer:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                self._send(*provider.answer(form, self.headers.get("Authorization", "")))

            def do_GET(self) -> None:
                self._send(200, provider.jwks())

            def _send(self, status: int, body: dict[str, Any]) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass  # not between the lines of the tests

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server


def _close(server: ThreadingHTTPServer) -> None:
    server.shutdown()
    server.server_close()


def _encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


USER = "mirrorless"
PASSWORD = "open sesame, she said"  # noqa: S105 -- of a broker that lives for a minute
_KAFKA = "org.apache.kafka.common.security"


class SecuredBroker(KafkaBroker):
    """Its listeners: certificates required, TLS alone, and SASL."""

    def __init__(self, *, authority: Authority, tokens: TokenServer, **rest: Any) -> None:
        """Choose addresses; the rest is as ever."""
        super().__init__(**rest)
        self.by_certificate, self.by_tls, self.by_sasl = (f"127.0.0.1:{free_port()}" for _ in range(3))
        self._authority = authority
        self._tokens = tokens

    def _write_settings(self) -> str:
        path = Path(super()._write_settings())
        server, folder = self._authority.issue("broker"), path.parent
        (folder / "broker.pem").write_text(server.key + server.certificate)
        (folder / "authority.pem").write_text(self._authority.certificate)
        ours = f"SSL://{self.by_certificate},TLS://{self.by_tls},SASL_SSL://{self.by_sasl}"
        ours += f",PLAINTEXT://{self.place.address}"
        protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,TLS:SSL,SASL_SSL:SASL_SSL"
        settings = {
            "listeners": f"{ours},CONTROLLER://{self.place.controller}",
            "advertised.listeners": ours,
            "listener.security.protocol.map": protocols,
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": folder / "broker.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": folder / "authority.pem",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{_KAFKA}.scram.ScramLoginModule required;",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f'{_KAFKA}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            ),
            "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
                f"{_KAFKA}.oauthbearer.OAuthBearerLoginModule required;"
            ),
            "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class": (
                f"{_KAFKA}.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            "sasl.oauthbearer.jwks.endpoint.url": self._tokens.jwks_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            # A connection ends with the token that opened it, unless the client shows a new one.
            "listener.name.sasl_ssl.oauthbearer.connections.max.reauth.ms": 3_600_000,
        }
        with path.open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in settings.items())  # the last one of a name counts
        return str(path)

    def _java_options(self) -> list[str]:
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._tokens.jwks_url}"
        return [*super()._java_options(), allowed]


class SecuredCluster(KafkaCluster):
    """A cluster of one such broker."""

    def __init__(self, *, folder: Path, authority: Authority, tokens: TokenServer, alias: str = "eu-west") -> None:
        """Choose its addresses."""
        super().__init__(alias=alias, folder=folder, kind=partial(SecuredBroker, authority=authority, tokens=tokens))
        (secured,) = self.brokers
        assert isinstance(secured, SecuredBroker)
        self.by_certificate, self.by_tls, self.by_sasl = secured.by_certificate, secured.by_tls, secured.by_sasl

    def add_scram_user(self) -> None:
        """Let `USER` in by SCRAM; PLAIN knows it from the settings."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
        user = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
        admin.alter_user_scram_credentials([user])[USER].result(20)


SECRETS = pytest.mark.soak(
    "tests/unit/adapters/test_kafka_client.py::test_a_refused_client_says_where_and_why_and_secrets_are_read_anew"
)

SCOPE = "api://kafka/.default all"
SHORT_S = 3.0
GONE = "Could not connect|Recv failure"
"""In the answers of clients where a server has stopped: its socket is closed, or was waiting to be taken."""
"""The life of a token that ends while a test waits."""


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.new()


@pytest.fixture(scope="module")
def provider(authority: Authority) -> Iterator[TokenServer]:
    server = TokenServer(authority)
    yield server
    server.stop()


@pytest.fixture
def tokens(provider: TokenServer) -> Iterator[TokenServer]:
    """The token server, up and generous again after the test."""
    yield provider
    provider.lifetime_s = 3600.0
    provider.bring_up()


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, provider: TokenServer
) -> Iterator[SecuredCluster]:
    cluster = SecuredCluster(folder=tmp_path_factory.mktemp("secured"), authority=authority, tokens=provider)
    with running(cluster):
        cluster.add_scram_user()
        yield cluster


@pytest.fixture(scope="module")
def secrets() -> Iterator[Any]:
    """Secrets Manager; one for all tests, because the function's client of it lives as long as its process."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    with pytest.MonkeyPatch.context() as environment:
        host, port = server.get_host_and_port()
        environment.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", f"http://{host}:{port}")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("AWS_ACCESS_KEY_ID", "lab")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "lab")
        yield boto3.client("secretsmanager")
    server.stop()


@pytest.fixture
def root(secrets: Any, authority: Authority) -> str:
    """The secret of the brokers' authority."""
    return keep(secrets, certificate=authority.certificate)


@pytest.fixture
def by_tokens(secrets: Any, authority: Authority, tokens: TokenServer, root: str) -> Authentication:
    """The authentication of a client that the token server knows."""
    secret = keep(secrets, **credentials(authority, tokens))
    return Authentication(type="oauthbearer", secret=secret, ca=root, scope=SCOPE, logical_cluster="lkc-1")


Ways = dict[str, tuple[str, Authentication]]
"""An address and its authentication, by type."""


@pytest.fixture
def ways(secured: SecuredCluster, secrets: Any, authority: Authority, root: str, by_tokens: Authentication) -> Ways:
    """Every way to authenticate."""
    client = authority.issue("mirrorless")
    by_certificate = keep(secrets, certificate=client.certificate, privateKey=client.key)
    by_password = keep(secrets, username=USER, password=PASSWORD)
    return {
        "mtls": (secured.by_certificate, Authentication(type="mtls", secret=by_certificate, ca=root)),
        "tls": (secured.by_tls, Authentication(type="tls", ca=root)),
        "scram": (secured.by_sasl, Authentication(type="scram", secret=by_password, ca=root)),
        "plain": (secured.by_sasl, Authentication(type="plain", secret=by_password, ca=root)),
        "oauthbearer": (secured.by_sasl, by_tokens),
    }


def credentials(authority: Authority, tokens: TokenServer, **changes: str) -> dict[str, str]:
    """The members of an OAuth secret, by AWS's names."""
    return {
        "oauthTokenEndpointUrl": tokens.token_url,
        "oauthClientId": CLIENT,
        "oauthClientSecret": tokens.client_secret,
        "oauthIdpCaCertificate": authority.certificate,
        **changes,
    }


def keep(secrets: Any, **members: str) -> str:
    """Put a secret where the function looks for it; its name."""
    name = f"AmazonMSK_{uuid4().hex[:8]}"
    secrets.create_secret(Name=name, SecretString=json.dumps(members))
    return name


def prepare(stage: LaneStage, secured: SecuredCluster, bootstrap: str, authentication: Authentication) -> None:
    """Two records on the source of a flow whose target is reached this way."""
    target = ClusterSettings(alias="eu-west", bootstrap=bootstrap, region="us-east-1", authentication=authentication)
    stage.target = secured
    stage.settings = msgspec.structs.replace(stage.settings, target=target)
    stage.create(stage.source, stage.topic)
    stage.write(b"one", b"two")


def replicate(
    stage: LaneStage, secured: SecuredCluster, bootstrap: str, authentication: Authentication, *, seconds: float = 15
) -> None:
    """Two records through a flow whose target is reached this way."""
    prepare(stage, secured, bootstrap, authentication)
    stage.replicate(stage.environment(), stage.event(), seconds=seconds)
    stage.assert_mirrored()


def pass_through(cluster: ClusterSettings, topic: str) -> list[Any]:
    """A batch written and read by whole batches, with this authentication; the values that came back."""
    end = time.monotonic() + 15
    writer = RawWriter(
        cluster, flow="a->b", transactional_id=topic, timeout_ms=10_000, deadline=lambda: end - time.monotonic()
    )
    some = [Record(i, 1_763_700_000_000, [], None, bytes(20_000)) for i in range(20)]
    writer.write({(topic, 0): [*packed(some, "none", max_bytes=10**6)]}, lambda: end - time.monotonic())
    writer.commit(lambda: end - time.monotonic())
    writer.close()
    log = KafkaRawLog(cluster, flow="a->b")
    log.follow({(topic, 0): 0})
    while not (found := log.arrivals(1.0, records=10**6, size=10**6)).records:
        assert time.monotonic() < end
    log.close()
    return [record.value for batch in found.records[topic, 0] for record in records(batch)]


# Certificates and passwords


@pytest.mark.parametrize("kind", ["mtls", "tls", "scram", "plain", "oauthbearer"])
def test_records_and_whole_batches_pass_by_every_way_to_authenticate(
    stage: LaneStage, secured: SecuredCluster, ways: Ways, tokens: TokenServer, kind: str
) -> None:
    bootstrap, authentication = ways[kind]

    replicate(stage, secured, bootstrap, authentication)

    assert kind != "oauthbearer" or tokens.requests[-1] == {"grant_type": "client_credentials", "scope": SCOPE}
    batches = create_topic(secured.bootstrap, f"{stage.topic}-batches")
    assert pass_through(stage.settings.target, batches) == [bytes(20_000)] * 20


@pytest.mark.parametrize("kind", some_of(("scram", "plain"), "scram", others=SECRETS))
def test_a_wrong_password_is_an_error_and_nothing_arrives(
    stage: LaneStage, secured: SecuredCluster, secrets: Any, root: str, kind: Any
) -> None:
    """By the client, and by our own connections."""
    secret = keep(secrets, username=USER, password="guessed")  # noqa: S106 -- wrong on purpose
    refused = r"eu-west at .* turned us away: .*[Aa]uthentication failed"
    with pytest.raises(MirrorlessError, match=refused):
        replicate(stage, secured, secured.by_sasl, Authentication(type=kind, secret=secret, ca=root))
    with pytest.raises(Retriable, match=refused):
        pass_through(stage.settings.target, stage.topic)


def test_a_broker_of_another_authority_is_not_trusted(stage: LaneStage, secured: SecuredCluster, secrets: Any) -> None:
    root = keep(secrets, certificate=Authority.new().certificate)
    with pytest.raises(MirrorlessError, match=r"turned us away: .*certificate"):
        replicate(stage, secured, secured.by_tls, Authentication(type="tls", ca=root))
    with pytest.raises(Retriable, match=r"turned us away: .*certificate"):
        pass_through(stage.settings.target, stage.topic)


# Tokens


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("secret", "unknown client, or wrong secret"),
        ("server", GONE),
        pytest.param("life", "unexpired token", marks=SECRETS),
    ],
)
def test_a_flow_without_a_token_says_why_and_goes_on_once_that_is_mended(  # noqa: PLR0917 -- fixtures
    stage: LaneStage,
    secured: SecuredCluster,
    secrets: Any,
    authority: Authority,
    tokens: TokenServer,
    by_tokens: Authentication,
    wrong: str,
    why: str,
) -> None:
    """In one environment: what it has read of secrets does not outlive a refusal."""
    if wrong == "secret":
        changed = credentials(authority, tokens, oauthClientSecret="guessed")
        secrets.put_secret_value(SecretId=by_tokens.secret, SecretString=json.dumps(changed))
    elif wrong == "server":
        tokens.take_down()
    else:
        tokens.lifetime_s = -5.0
    prepare(stage, secured, secured.by_sasl, by_tokens)
    environment, event = stage.environment(), stage.event()

    with pytest.raises(Retriable) as refused:
        stage.replicate(environment, event)

    assert refused.value.where == f"us-east->eu-west eu-west at {secured.by_sasl}"
    assert "turned us away" in refused.value.what
    assert re.search(why, refused.value.what)
    assert "the token server is up" in refused.value.hint
    secrets.put_secret_value(SecretId=by_tokens.secret, SecretString=json.dumps(credentials(authority, tokens)))
    tokens.lifetime_s = 3600.0
    tokens.bring_up()
    stage.replicate(environment, event)
    stage.assert_mirrored()


def test_a_warm_writer_renews_its_token_and_outlives_the_token_server(
    stage: LaneStage, secured: SecuredCluster, tokens: TokenServer, by_tokens: Authentication
) -> None:
    tokens.lifetime_s = SHORT_S
    prepare(stage, secured, secured.by_sasl, by_tokens)
    environment = stage.environment()
    stage.replicate(environment, stage.event(p0=[0]))
    given = len(tokens.requests)
    eventually(lambda: len(tokens.requests) > given)  # the writer's: there is no other client of tokens
    stage.replicate(environment, stage.event(p0=[1]))

    tokens.take_down()
    until = time.monotonic() + SHORT_S + 1
    eventually(lambda: time.monotonic() > until)
    stage.write(b"three")
    with pytest.raises(Retriable, match=rf"turned us away: .*({GONE})"):
        stage.replicate(environment, stage.event(p0=[2]), seconds=3)

    tokens.lifetime_s = 3600.0
    tokens.bring_up()
    stage.replicate(environment, stage.event(p0=[2]))
    stage.assert_mirrored()


def test_scheduled_functions_and_jobs_reach_a_cluster_by_tokens(
    stage: LaneStage, secured: SecuredCluster, tokens: TokenServer, by_tokens: Authentication
) -> None:
    stage.create(secured, stage.topic)
    stage.write_to(secured, stage.topic, b"one", b"two")
    cluster = ClusterSettings(alias="eu-west", bootstrap=secured.by_sasl, authentication=by_tokens)
    end = time.monotonic() + 20

    log = KafkaLaneLog(cluster, flow="us-east->eu-west")
    (chunk,) = log.read(stage.topic, 0, OffsetRange(0, 2), lambda: end - time.monotonic())
    assert [record.value for record in chunk.records] == [b"one", b"two"]

    tokens.take_down()
    topics = KafkaTopics(cluster, flow="us-east->eu-west", role="topics")
    with pytest.raises(Retriable, match=rf"us-east->eu-west eu-west at .* turned us away: .*({GONE})"):
        topics.topic_ids([stage.topic], lambda: end - time.monotonic())
    tokens.bring_up()
    assert list(topics.topic_ids([stage.topic], lambda: end - time.monotonic())) == [stage.topic]
