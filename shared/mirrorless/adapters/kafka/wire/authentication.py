"""TLS and SASL of our own connections, from the settings that librdkafka takes: one configuration serves both.

PLAIN, SCRAM and OAUTHBEARER; MSK IAM is OAUTHBEARER with a token of our own making.
(https://www.rfc-editor.org/rfc/rfc5802, https://www.rfc-editor.org/rfc/rfc7628)
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from mirrorless.adapters.kafka.client import ClientConfig

TOKEN_SERVER_SECONDS: Final = 10.0
RENEW_AT: Final = 0.8
"""Of a token's life, after which the next connection gets another one: as librdkafka does."""

Exchange = Generator[bytes, bytes, None]
"""The client's side of a SASL exchange: yields what it says, and is sent what the broker says."""


class TurnedAwayError(ConnectionError):
    """The broker, or the server of its tokens, does not accept who we are."""


def tls_context(config: ClientConfig) -> ssl.SSLContext | None:
    """The TLS of a cluster's connections; None where they are plain."""
    if not config["security.protocol"].endswith("SSL"):
        return None
    context = ssl.create_default_context(cadata=config.get("ssl.ca.pem"))
    if "ssl.certificate.pem" in config:
        # The module reads a chain from files only.
        with tempfile.TemporaryDirectory() as folder:
            pem = Path(folder) / "client.pem"
            pem.touch(0o600)
            pem.write_text(config["ssl.key.pem"] + "\n" + config["ssl.certificate.pem"])
            context.load_cert_chain(pem, password=config.get("ssl.key.password"))
    return context


class Credentials:
    """What the connections of one cluster authenticate with; a token is kept for most of its life."""

    def __init__(self, config: ClientConfig) -> None:
        """Args: config: of `client_config`."""
        self.mechanism: str = config.get("sasl.mechanisms", "")
        self._config = config
        self._token = ""
        self._renew_at = 0.0

    def exchange(self) -> Exchange:
        """A new exchange by the cluster's mechanism.

        Raises:
            TurnedAwayError: the token server does not give a token.
        """
        if self.mechanism == "PLAIN":
            return _plain(self._config["sasl.username"], self._config["sasl.password"])
        if self.mechanism.startswith("SCRAM-"):
            return _scram(self.mechanism, self._config["sasl.username"], self._config["sasl.password"])
        return _bearer(self._fresh_token(), self._config.get("sasl.oauthbearer.extensions", ""))

    def forget_token(self) -> None:
        """Get another token next time."""
        self._renew_at = 0.0

    def _fresh_token(self) -> str:
        now = time.time()
        if now >= self._renew_at:
            own: Callable[[str], tuple[str, float]] | None = self._config.get("oauth_cb")
            self._token, ends = own("") if own is not None else _token_of_server(self._config)
            self._renew_at = now + (ends - now) * RENEW_AT
        return self._token


def _plain(user: str, password: str) -> Exchange:
    yield f"\0{user}\0{password}".encode()


def _bearer(token: str, extensions: str) -> Exchange:
    told = "".join(f"{each}\x01" for each in extensions.split(",") if each)
    yield f"n,,\x01auth=Bearer {token}\x01{told}\x01".encode()


def _scram(mechanism: str, user: str, password: str, nonce: str | None = None) -> Exchange:
    algorithm = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    nonce = nonce or secrets.token_urlsafe(24)
    name = user.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    challenge = (yield f"n,,{first}".encode()).decode()
    told = dict(each.split("=", 1) for each in challenge.split(","))
    if "e" in told or not told["r"].startswith(nonce):
        raise TurnedAwayError(f"SCRAM was refused: {told.get('e', 'the nonce is not ours')}")

    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), base64.b64decode(told["s"]), int(told["i"]))
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    without_proof = f"c=biws,r={told['r']}"
    signed = f"{first},{challenge},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(algorithm, client_key).digest(), signed, algorithm)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    verdict = (yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()).decode()

    server_key = hmac.digest(salted, b"Server Key", algorithm)
    expected = base64.b64encode(hmac.digest(server_key, signed, algorithm)).decode()
    if not hmac.compare_digest(verdict.partition(",")[0], f"v={expected}"):
        raise TurnedAwayError("SCRAM failed: the broker does not prove that it holds our password")


def _token_of_server(config: ClientConfig) -> tuple[str, float]:
    """A token for client credentials, and when it ends in seconds since the epoch."""
    form = {"grant_type": "client_credentials"}
    if "sasl.oauthbearer.scope" in config:
        form["scope"] = config["sasl.oauthbearer.scope"]
    client = f"{config['sasl.oauthbearer.client.id']}:{config['sasl.oauthbearer.client.secret']}"
    request = urllib.request.Request(  # noqa: S310 -- `client_config` takes https alone
        config["sasl.oauthbearer.token.endpoint.url"],
        data=urlencode(form).encode(),
        headers={
            "Authorization": f"Basic {base64.b64encode(client.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        },
    )
    context = ssl.create_default_context(cadata=config.get("https.ca.pem"))
    try:
        with urllib.request.urlopen(request, timeout=TOKEN_SERVER_SECONDS, context=context) as answer:  # noqa: S310 -- same
            told: dict[str, Any] = json.load(answer)
        token: str = told["access_token"]
        return token, _end(token, told)
    except urllib.error.HTTPError as exc:
        raise TurnedAwayError(f"the token server answered {exc.code}: {exc.read(500)!r}") from exc
    except (OSError, ValueError, KeyError) as exc:
        raise TurnedAwayError(f"the token server gave no token: {exc!r}") from exc


def _end(token: str, told: dict[str, Any]) -> float:
    """By the answer, or by the claim of the token itself."""
    if "expires_in" in told:
        return time.time() + float(told["expires_in"])
    claims = token.split(".")[1]
    return float(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"])
