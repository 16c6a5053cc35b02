"""A cluster behind TLS takes our records when we prove who we are, and only then: certificates, and SCRAM passwords.

A real broker, certificates made here, and the secrets in Secrets Manager's own form (moto: AWS has no local one).
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import msgspec
import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from moto.server import ThreadedMotoServer

from lab.servers.kafka import KafkaCluster
from lab.servers.kafka_broker import KafkaBroker
from lab.servers.process import free_port
from mirrorless.errors import MirrorlessError
from mirrorless.settings import Authentication, ClusterSettings
from tests.support.lane_stage import LaneStage

pytestmark = pytest.mark.integration

Key = ec.EllipticCurvePrivateKey
PASSWORD = "open sesame, she said"  # noqa: S105 -- of a broker that lives for a minute


@dataclass(frozen=True, slots=True)
class Proof:
    """A certificate with its key, both PEM."""

    certificate: str
    key: str


@dataclass(frozen=True, slots=True)
class Authority:
    """Who signs them."""

    name: x509.Name
    key: Key
    certificate: str

    @classmethod
    def new(cls) -> Authority:
        """An authority that trusts itself."""
        key, name = ec.generate_private_key(ec.SECP256R1()), _name("test authority")
        return cls(name, key, _pem(_certificate(name, key, issuer=name, signer=key, authority=True)))

    def issue(self, common_name: str) -> Proof:
        """A certificate for 127.0.0.1, of a server or of a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(_name(common_name), key, issuer=self.name, signer=self.key, authority=False)
        plain = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode()
        return Proof(_pem(certificate), pem)


class SecuredBroker(KafkaBroker):
    """A broker that also listens with TLS: once for certificates, once for passwords."""

    def __init__(self, *, authority: Authority, **rest: Any) -> None:
        """Write its certificate; the rest is as ever."""
        super().__init__(**rest)
        self.by_certificate, self.by_password = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._authority = authority

    def _write_settings(self) -> str:
        path = Path(super()._write_settings())
        server, folder = self._authority.issue("broker"), path.parent
        (folder / "broker.pem").write_text(server.key + server.certificate)
        (folder / "authority.pem").write_text(self._authority.certificate)
        ours = f"SSL://{self.by_certificate},SASL_SSL://{self.by_password},PLAINTEXT://{self.place.address}"
        settings = {
            "listeners": f"{ours},CONTROLLER://{self.place.controller}",
            "advertised.listeners": ours,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": folder / "broker.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": folder / "authority.pem",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
        }
        with path.open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in settings.items())  # the last one of a name counts
        return str(path)


class SecuredCluster(KafkaCluster):
    """A cluster of one such broker."""

    def __init__(self, *, folder: Path, authority: Authority) -> None:
        """Choose its addresses."""
        super().__init__(alias="eu-west", folder=folder, kind=partial(SecuredBroker, authority=authority))
        (secured,) = self.brokers
        assert isinstance(secured, SecuredBroker)
        self.by_certificate, self.by_password = secured.by_certificate, secured.by_password


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.new()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SecuredCluster]:
    cluster = SecuredCluster(folder=tmp_path_factory.mktemp("secured"), authority=authority)
    try:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
        user = UserScramCredentialUpsertion("mirrorless", credential, PASSWORD.encode())
        admin.alter_user_scram_credentials([user])["mirrorless"].result(20)
        yield cluster
    finally:
        cluster.stop()


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


def keep(secrets: Any, **members: str) -> str:
    """Put a secret where the function looks for it; its name."""
    name = f"AmazonMSK_{uuid4().hex[:8]}"
    secrets.create_secret(Name=name, SecretString=json.dumps(members))
    return name


def replicate(
    stage: LaneStage, secured: SecuredCluster, bootstrap: str, authentication: Authentication, *, seconds: float = 15
) -> None:
    """Two records through a flow whose target is reached this way."""
    target = ClusterSettings(alias="eu-west", bootstrap=bootstrap, region="us-east-1", authentication=authentication)
    stage.target = secured
    stage.settings = msgspec.structs.replace(stage.settings, target=target)
    stage.create(stage.source, stage.topic)
    stage.write(b"one", b"two")
    stage.replicate(stage.environment(), stage.event(), seconds=seconds)
    stage.assert_mirrored()


def test_a_flow_writes_to_a_cluster_that_requires_certificates(
    stage: LaneStage, secured: SecuredCluster, secrets: Any, authority: Authority
) -> None:
    client = authority.issue("mirrorless")
    secret = keep(secrets, certificate=client.certificate, privateKey=client.key)
    root = keep(secrets, certificate=authority.certificate)
    replicate(stage, secured, secured.by_certificate, Authentication(type="mtls", secret=secret, ca=root))


def test_a_flow_writes_to_a_cluster_that_requires_passwords(
    stage: LaneStage, secured: SecuredCluster, secrets: Any, authority: Authority
) -> None:
    secret = keep(secrets, username="mirrorless", password=PASSWORD)
    root = keep(secrets, certificate=authority.certificate)
    replicate(stage, secured, secured.by_password, Authentication(type="scram", secret=secret, ca=root))


def test_a_wrong_password_is_an_error_and_nothing_arrives(
    stage: LaneStage, secured: SecuredCluster, secrets: Any, authority: Authority
) -> None:
    secret = keep(secrets, username="mirrorless", password="guessed")  # noqa: S106 -- wrong on purpose
    root = keep(secrets, certificate=authority.certificate)
    with pytest.raises(MirrorlessError, match=r"turned us away: .*[Aa]uthentication failed"):
        replicate(stage, secured, secured.by_password, Authentication(type="scram", secret=secret, ca=root), seconds=5)


def test_a_broker_of_another_authority_is_not_trusted(stage: LaneStage, secured: SecuredCluster, secrets: Any) -> None:
    secret = keep(secrets, username="mirrorless", password=PASSWORD)
    root = keep(secrets, certificate=Authority.new().certificate)
    with pytest.raises(MirrorlessError, match=r"turned us away: .*certificate"):
        replicate(stage, secured, secured.by_password, Authentication(type="scram", secret=secret, ca=root), seconds=5)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _certificate(name: x509.Name, key: Key, *, issuer: x509.Name, signer: Key, authority: bool) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(signer, hashes.SHA256())
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
