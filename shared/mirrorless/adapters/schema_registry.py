"""The schemas that a cluster's records were written by: of a registry with Confluent's interface, or of AWS Glue.

(https://docs.confluent.io/platform/current/schema-registry/develop/api.html)
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec

from mirrorless.adapters.aws.secrets import forget_secrets, secret_member
from mirrorless.errors import Retriable
from mirrorless.flow.settings import SchemaRegistry
from mirrorless.transforms.avro_fields import SchemaId, WriterSchemas
from mirrorless.transforms.masks import TransformFailed

SECONDS: Final = 5
"""For a registry to answer."""

UNKNOWN: Final = 40403
"""There is no such schema. What does not know the path, a proxy for one, has status 404 too, and another code."""

_OK, _REFUSED = 200, (401, 403)


class _Reference(msgspec.Struct):
    subject: str
    version: int


class _Answer(msgspec.Struct):
    definition: str = msgspec.field(default="", name="schema")
    kind: str = msgspec.field(default="AVRO", name="schemaType")
    references: tuple[_Reference, ...] | None = ()
    error_code: int = 0


def writer_schemas(registry: SchemaRegistry | None, region: str | None) -> WriterSchemas | None:
    """What reads the schemas, where there is a registry; nothing connects here. Args: region: of Glue."""
    if registry is None:
        return None
    return ConfluentSchemas(registry) if registry.type == "confluent" else GlueSchemas(region)


class ConfluentSchemas:
    """Of Confluent's registry, and of those with its interface: Apicurio, Karapace, Redpanda."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    def definitions(self, schema_id: SchemaId) -> tuple[str, ...]:
        """See `WriterSchemas`."""
        if not isinstance(schema_id, int):
            raise TransformFailed("value has the frame of AWS Glue, and the source has another registry")
        found = self._get(f"/schemas/ids/{schema_id}")
        if found.error_code:
            raise _unknown(schema_id)
        _check_kind(schema_id, found.kind)
        behind: dict[str, str] = {}
        self._refer(found, behind)
        return (*behind.values(), found.definition)

    def _refer(self, schema: _Answer, behind: dict[str, str]) -> None:
        """Note what a schema refers to, each behind what it refers to itself."""
        for each in schema.references or ():
            path = f"/subjects/{quote(each.subject, safe='')}/versions/{each.version}"
            if path not in behind:
                found = self._get(path)
                self._refer(found, behind)
                behind[path] = found.definition

    def _get(self, path: str) -> _Answer:
        registry, where = self._registry, f"{self._registry.url.rstrip('/')}{path}"
        address, headers = urlsplit(where), {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if registry.secret:
            pair = f"{secret_member(registry.secret, 'username')}:{secret_member(registry.secret, 'password')}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        connection = HTTPConnection(str(address.hostname), address.port, timeout=SECONDS)
        if address.scheme == "https":
            trusted = ssl.create_default_context(
                cadata=secret_member(registry.ca, "certificate") if registry.ca else None
            )
            connection = HTTPSConnection(str(address.hostname), address.port, timeout=SECONDS, context=trusted)
        try:
            connection.request("GET", address.path, headers=headers)
            answer = connection.getresponse()
            status, body = answer.status, answer.read()
            found = msgspec.json.decode(body, type=_Answer)
        except (OSError, HTTPException, msgspec.DecodeError) as exc:
            raise _silent(where, repr(exc)) from exc
        finally:
            connection.close()
        if (status == _OK and found.definition) or found.error_code == UNKNOWN:
            return found
        if status in _REFUSED:
            forget_secrets()
        raise _silent(where, f"status {status}")


class GlueSchemas:
    """Of AWS Glue, in one region and the account of whoever asks."""

    def __init__(self, region: str | None) -> None:
        self._region = region

    def definitions(self, schema_id: SchemaId) -> tuple[str, ...]:
        """See `WriterSchemas`."""
        import boto3  # noqa: PLC0415 -- another registry needs no client of AWS
        from botocore.config import Config  # noqa: PLC0415 -- same
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 -- same

        if isinstance(schema_id, int):
            raise TransformFailed(
                "value has the frame of Confluent's serializers, and the source's registry is AWS Glue"
            )
        config = Config(connect_timeout=2, read_timeout=SECONDS, retries={"mode": "standard", "total_max_attempts": 2})
        try:
            glue = boto3.client("glue", region_name=self._region, config=config)
            found: dict[str, Any] = glue.get_schema_version(SchemaVersionId=str(schema_id))
        except ClientError as exc:
            if exc.response["Error"]["Code"] == "EntityNotFoundException":
                raise _unknown(schema_id) from None
            raise _silent(f"Glue in {self._region}", str(exc)) from exc
        except BotoCoreError as exc:
            raise _silent(f"Glue in {self._region}", str(exc)) from exc
        _check_kind(schema_id, found["DataFormat"])
        return (str(found["SchemaDefinition"]),)


def _unknown(schema_id: SchemaId) -> TransformFailed:
    return TransformFailed(f"value names schema {schema_id}, which the source's registry does not have")


def _check_kind(schema_id: SchemaId, kind: str) -> None:
    if kind != "AVRO":
        raise TransformFailed(f"value names schema {schema_id}, which is of {kind}, where the rule is for AVRO")


def _silent(where: str, answer: str) -> Retriable:
    return Retriable(
        f"the schema registry did not give what was asked for: {answer}",
        where=where,
        hint="check that the functions' network reaches it, and the credentials; their lanes go on by themselves then",
    )
