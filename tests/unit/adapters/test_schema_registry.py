"""Schemas of registries. What the server here says Apicurio said once; tests/integration/test_avro.py asks it anew."""

from __future__ import annotations

import json
import ssl
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import boto3
import pytest
from moto import mock_aws

from lab.servers.http_server import HttpConnection, HttpServer
from mirrorless.adapters import schema_registry
from mirrorless.adapters.schema_registry import writer_schemas
from mirrorless.errors import Retriable
from mirrorless.flow.settings import SchemaRegistry
from mirrorless.transforms.avro_fields import WriterSchemas
from mirrorless.transforms.masks import TransformFailed
from tests.support.apicurio import ADDRESS, COUNTRY, CUSTOMER, PATH, RECORDED
from tests.support.certificates import Authority

PLAIN = {"schema": '"string"'}
"""By Confluent's page of the interface: without a type it is Avro's, and it refers to nothing."""

ANSWERS = {
    **RECORDED,
    "/schemas/ids/1": (200, PLAIN),
    "/redirected/schemas/ids/1": (301, {}),
    "/broken/schemas/ids/1": (500, {"error_code": 50001, "message": "Error in the backend data store"}),
    "/guarded/schemas/ids/1": (401, {"error_code": 401, "message": "Unauthorized"}),
    "/empty/schemas/ids/1": (200, {}),
    "/lost/schemas/ids/1": (200, PLAIN | {"references": [{"name": "n", "subject": "none", "version": 1}]}),
    "/lost/subjects/none/versions/1": RECORDED[f"{PATH}/subjects/none/versions/1"],
}
NO_SUCH_PATH = (404, {"error_code": 404, "message": "HTTP 404 Not Found"})


def schemas_of(registry: SchemaRegistry, region: str | None = None) -> WriterSchemas:
    found = writer_schemas(registry, region)
    assert found is not None
    return found


class Registry:
    """It gives the recorded answers, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        outer = self

        class Connection(HttpConnection):
            def do_GET(self) -> None:  # noqa: N802 -- http.server's name
                outer.asked.append((self.path, self.headers.get("Authorization", "")))
                status, answer = ANSWERS.get(self.path, NO_SUCH_PATH)
                self.answer(status, json.dumps(answer).encode())

        self.server = HttpServer(Connection, name="registry")

    @property
    def url(self) -> str:
        """Of its interface."""
        return f"http://{self.server.address}"

    @property
    def paths(self) -> list[str]:
        """What was asked for."""
        return [path for path, _ in self.asked]


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.server.close()


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """Secrets by name; the word forgotten, once they are."""
    known: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(schema_registry, "secret_member", lambda name, member: known[name][member])
    monkeypatch.setattr(schema_registry, "forget_secrets", lambda: known.setdefault("forgotten", {}))
    return known


def test_what_a_schema_refers_to_comes_before_it_and_once(registry: Registry) -> None:
    schemas = schemas_of(SchemaRegistry(url=f"{registry.url}{PATH}/"))

    assert schemas.definitions(1) == (COUNTRY,)
    assert schemas.definitions(4) == (COUNTRY, ADDRESS, CUSTOMER)
    assert registry.paths == [
        f"{PATH}/schemas/ids/1",
        f"{PATH}/schemas/ids/4",
        f"{PATH}/subjects/address/versions/2",
        f"{PATH}/subjects/geo%2Fcountry/versions/1",
    ]
    assert schemas_of(SchemaRegistry(url=registry.url)).definitions(1) == ('"string"',)


@pytest.mark.parametrize(
    ("path", "schema_id", "error"),
    [
        (PATH, 77, TransformFailed("value names schema 77, which the source's registry does not have")),
        (
            PATH,
            5,
            TransformFailed("value names schema 5, which is of PROTOBUF, where the rule is for AVRO"),
        ),
        ("", UUID(int=1), TransformFailed("value has the frame of AWS Glue, and the source has another registry")),
        ("/wrong", 1, Retriable("status 404")),
        ("/redirected", 1, Retriable("status 301")),
        ("/broken", 1, Retriable("status 500")),
        ("/empty", 1, Retriable("status 200")),
        ("/lost", 1, Retriable("status 404")),
        ("/guarded", 1, Retriable("status 401")),
    ],
)
def test_only_a_registry_that_says_so_does_not_have_a_schema(
    registry: Registry, secrets: dict[str, dict[str, str]], path: str, schema_id: int | UUID, error: Exception
) -> None:
    """What is no schema stops a lane, or has a record dropped. A registry that is out of order must do neither."""
    with pytest.raises(type(error), match=str(getattr(error, "what", error))):
        schemas_of(SchemaRegistry(url=registry.url + path)).definitions(schema_id)

    assert ("forgotten" in secrets) == (path == "/guarded")


def test_a_registry_that_is_not_there_or_speaks_no_json_is_tried_again(registry: Registry) -> None:
    registry.server.close()

    with pytest.raises(Retriable, match="ConnectionRefusedError"):
        schemas_of(SchemaRegistry(url=registry.url)).definitions(1)


def test_credentials_and_a_private_authority_are_of_secrets(
    registry: Registry, secrets: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    authority = Authority.new()
    proof = authority.issue("registry")
    (tmp_path / "pair.pem").write_text(proof.certificate + proof.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair.pem")
    registry.server.socket = context.wrap_socket(registry.server.socket, server_side=True)
    secrets |= {"user": {"username": "ada", "password": "söcret"}, "ca": {"certificate": authority.certificate}}
    url = registry.url.replace("http:", "https:")

    trusted = schemas_of(SchemaRegistry(url=url, secret="user", ca="ca"))  # noqa: S106 -- its name

    assert trusted.definitions(1) == ('"string"',)
    assert registry.asked == [("/schemas/ids/1", f"Basic {b64encode('ada:söcret'.encode()).decode()}")]
    with pytest.raises(Retriable, match="CERTIFICATE_VERIFY_FAILED"):
        schemas_of(SchemaRegistry(url=url)).definitions(1)


def test_glue_is_asked_for_the_version_of_a_schema() -> None:
    glue_schemas = schemas_of(SchemaRegistry(type="glue"), "eu-west-1")
    with mock_aws():
        glue = boto3.client("glue", region_name="eu-west-1")
        glue.create_registry(RegistryName="shop")
        versions = {
            kind: glue.create_schema(
                RegistryId={"RegistryName": "shop"},
                SchemaName=kind,
                DataFormat=kind,
                Compatibility="NONE",
                SchemaDefinition=definition,
            )["SchemaVersionId"]
            for kind, definition in (("AVRO", COUNTRY), ("JSON", "{}"))
        }

        assert glue_schemas.definitions(UUID(versions["AVRO"])) == (COUNTRY,)
        for schema_id, words in (
            (UUID(versions["JSON"]), "which is of JSON"),
            (UUID(int=7), "which the source's registry does not have"),
            (7, "value has the frame of Confluent's serializers"),
        ):
            with pytest.raises(TransformFailed, match=words):
                glue_schemas.definitions(schema_id)
    with pytest.raises(Retriable, match="You must specify a region"):
        schemas_of(SchemaRegistry(type="glue")).definitions(UUID(int=7))
