"""A cluster of one broker that also listens with TLS, once for each way to authenticate, and its token server.

The token server is an OAuth 2.0 identity provider on loopback: `/token` over TLS for clients, `/jwks` for brokers.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from lab.servers.kafka import KafkaBroker, KafkaCluster
from lab.servers.process import free_port
from tests.support.certificates import Authority

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
