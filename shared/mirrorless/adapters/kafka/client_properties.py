"""Java's client.properties as the settings of librdkafka: what the tools that come with Kafka connect by.

Passwords stay in the file, which every process of a command reads for itself. Java's own stores of keys (JKS) cannot be
read here; PEM can, and PKCS12 for the client's key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mirrorless.errors import ConfigurationError
from mirrorless.flow.java_properties import read_properties

_IN_JAAS: Final = re.compile(r"""(username|password)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s;"]+))""")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MSK_IAM: Final = "AWS_MSK_IAM"

_RENAMED: Final = {
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.key.password": "ssl.key.password",
}
"""By Java's names."""

_STORES: Final = {
    ("truststore", "PEM"): ("ssl.ca.location",),
    ("keystore", "PEM"): ("ssl.certificate.location", "ssl.key.location"),
    ("keystore", "PKCS12"): ("ssl.keystore.location",),
}
"""The settings that take the file of a store, by its type."""


def read_client_properties(path: str) -> dict[str, str]:
    """Read the file.

    Raises:
        ConfigurationError: it cannot be read, names no brokers, or has values that a configuration provider fills in.
    """
    try:
        found = read_properties(Path(path).read_bytes(), origin=path)
    except OSError as exc:
        raise ConfigurationError(f"the file cannot be read: {exc.strerror}", where=path) from exc
    if unfilled := [key for key, value in found.items() if value.startswith("${")]:
        hint = "write the values themselves"
        raise ConfigurationError(f"a configuration provider fills in {', '.join(unfilled)}", where=path, hint=hint)
    if not found.get("bootstrap.servers"):
        hint = "add bootstrap.servers=host:port,… to the file"
        raise ConfigurationError("it names no brokers", where=path, hint=hint)
    return found


def librdkafka_authentication(given: Mapping[str, str], path: str) -> dict[str, str]:
    """What librdkafka authenticates by; of MSK IAM all but the token.

    Raises:
        ConfigurationError: it needs what librdkafka does not have.
    """
    protocol, mechanism = given.get("security.protocol", "PLAINTEXT").upper(), given.get("sasl.mechanism", "")
    found = {"security.protocol": protocol}
    if protocol.endswith("SSL"):
        found |= _tls(given, path)
    if not protocol.startswith("SASL_"):
        return found
    if mechanism == MSK_IAM:
        return found | {"sasl.mechanisms": "OAUTHBEARER"}
    if mechanism not in _MECHANISMS:
        hint = f"use a listener with {', '.join(_MECHANISMS)} or {MSK_IAM}, or with client certificates"
        raise ConfigurationError(f"sasl.mechanism={mechanism or 'GSSAPI'} is not known here", where=path, hint=hint)
    jaas = {name: quoted or plain for name, quoted, plain in _IN_JAAS.findall(given.get("sasl.jaas.config", ""))}
    if len(jaas) < len(("username", "password")):
        raise ConfigurationError("sasl.jaas.config has no username and password", where=path)
    unescaped = {f"sasl.{name}": re.sub(r"\\(.)", r"\1", value) for name, value in jaas.items()}
    return found | {"sasl.mechanisms": mechanism} | unescaped


def _tls(given: Mapping[str, str], path: str) -> dict[str, str]:
    found = {ours: given[theirs] for theirs, ours in _RENAMED.items() if given.get(theirs)}
    if given.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl.endpoint.identification.algorithm"] = "none"
    for store in ("truststore", "keystore"):
        location, kind = given.get(f"ssl.{store}.location"), given.get(f"ssl.{store}.type", "JKS").upper()
        if location and (store, kind) not in _STORES:
            hint = f"export it as PEM, and set ssl.{store}.type=PEM; public authorities need no store"
            raise ConfigurationError(f"a {store} of type {kind} cannot be read", where=path, hint=hint)
        if location:
            found |= dict.fromkeys(_STORES[store, kind], location)
    if password := given.get("ssl.keystore.password"):
        found["ssl.keystore.password"] = password
    return found
