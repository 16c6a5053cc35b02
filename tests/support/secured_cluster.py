"""A cluster of one broker that also listens with TLS, once for each way to authenticate."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from lab.servers.kafka import KafkaBroker, KafkaCluster
from lab.servers.process import free_port
from tests.support.certificates import Authority
from tests.support.token_server import AUDIENCE, TokenServer

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
