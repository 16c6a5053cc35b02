"""Java's client.properties, read for librdkafka: every spelling that Java takes, and nothing that is left to chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mirrorless.adapters.kafka.client import client_config
from mirrorless.adapters.kafka.client_properties import read_client_properties
from mirrorless.errors import ConfigurationError
from mirrorless.flow.settings import Authentication, ClusterSettings

BROKERS = "bootstrap.servers=b-1.a.kafka.eu-west-1.amazonaws.com:9098\n"
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="a\\\\"b;c";'
AUTHENTICATION = ("security.", "sasl.", "ssl.")


def config_of(tmp_path: Path, text: str) -> dict[str, Any]:
    """What librdkafka authenticates by."""
    path = tmp_path / "client.properties"
    path.write_text(BROKERS + text)
    how = Authentication(type="properties", secret=str(path))
    bootstrap = read_client_properties(str(path))["bootstrap.servers"]
    config = client_config(ClusterSettings(alias="source", bootstrap=bootstrap, authentication=how), "audit|job")
    return {name: value for name, value in config.items() if name.startswith(AUTHENTICATION)} | (
        {"oauth_cb": "signs"} if "oauth_cb" in config else {}
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", {"security.protocol": "PLAINTEXT"}, id="nothing"),
        pytest.param(
            f"!\nsecurity.protocol : sasl_ssl\nsasl.mechanism SCRAM-SHA-512\nsasl.jaas.config=\\\n   {SCRAM}",
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanisms": "SCRAM-SHA-512",
                "sasl.username": "me",
                "sasl.password": 'a"b;c',
            },
            id="SCRAM, in Java's ways to write it",
        ),
        pytest.param(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=P x password=p username=u;",
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "p",
            },
            id="PLAIN without quotes and without TLS",
        ),
        pytest.param(
            "security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\nssl.keystore.type=PKCS12\n"
            "ssl.keystore.location=/me.p12\nssl.keystore.password=p\nssl.endpoint.identification.algorithm=\n",
            {
                "security.protocol": "SSL",
                "ssl.ca.location": "/ca.pem",
                "ssl.keystore.location": "/me.p12",
                "ssl.keystore.password": "p",
                "ssl.endpoint.identification.algorithm": "none",
            },
            id="certificates in files",
        ),
        pytest.param(
            "security.protocol=SSL\nssl.truststore.certificates=C\nssl.keystore.certificate.chain=M\nssl.keystore.key=K\n",
            {"security.protocol": "SSL", "ssl.ca.pem": "C", "ssl.certificate.pem": "M", "ssl.key.pem": "K"},
            id="certificates in the file itself",
        ),
        pytest.param(
            "security.protocol=SASL_SSL\nsasl.mechanism=AWS_MSK_IAM\nsasl.jaas.config=x.IAMLoginModule required;",
            {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER", "oauth_cb": "signs"},
            id="IAM, in the region of the brokers",
        ),
    ],
)
def test_what_java_connects_by_is_what_librdkafka_gets(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    assert config_of(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("security.protocol=SASL_SSL", "sasl.mechanism=GSSAPI is not known here"),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=P required username=u;",
            "no username and",
        ),
        ("security.protocol=SSL\nssl.truststore.location=/ca.jks", "a truststore of type JKS cannot be read"),
        ("sasl.jaas.config=${file:/secrets:jaas}", "a configuration provider fills in sasl.jaas.config"),
        ("bootstrap.servers=", "it names no brokers"),
        ("bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=AWS_MSK_IAM", "IAM signs for a region"),
        ("a=\\u12", "no four digits"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        config_of(tmp_path, text)

    assert "client.properties" in str(refused.value.where)


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_client_properties("/nowhere/client.properties")
