"""Records that fastavro wrote by schemas of a real registry, changed by a rule and read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import fastavro
import msgspec
import pytest

from mirrorless.adapters.schema_registry import writer_schemas
from mirrorless.flow.settings import SchemaRegistry
from mirrorless.records.record import Record
from mirrorless.transforms.ciphers import opened, pseudonym
from mirrorless.transforms.rules import KeyRing, Rule, RuleInForce
from mirrorless.transforms.transform import TransformFailed, make_ready
from tests.support.apicurio import ADDRESS, COUNTRY, CUSTOMER, RECORDED, REGISTERED, Apicurio

pytestmark = pytest.mark.integration

PII = KeyRing(1, {1: bytes(range(32))})


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    server = Apicurio(tmp_path_factory.mktemp("apicurio"))
    server.start()
    yield server
    server.stop()


@pytest.mark.soak(
    "tests/unit/adapters/test_schema_registry.py::test_what_a_schema_refers_to_comes_before_it_and_once",
    "tests/unit/transforms/test_avro_fields.py::test_a_rule_changes_its_fields_and_no_other_byte",
)
def test_records_are_changed_by_the_schemas_of_apicurio(apicurio: Apicurio) -> None:
    ids = [apicurio.register(subject, schema) for subject, schema in REGISTERED]
    customer: dict[str, Any] = {
        "email": "ada@example.com",
        "address": {"street": "12 St James's Square", "country": "GB"},
        "born": "AT",
    }
    known: dict[str, Any] = {}
    for definition in (COUNTRY, ADDRESS):
        fastavro.parse_schema(json.loads(definition), named_schemas=known)
    schema = fastavro.parse_schema(json.loads(CUSTOMER), named_schemas=known)
    body = BytesIO()
    fastavro.schemaless_writer(body, schema, customer)
    fields = {"email": {"hmac": "pii"}, "address.street": {"encrypt": "pii"}}
    rule = msgspec.convert(
        {"topics": ["customers"], "format": "avro", "fields": fields, "keep": "value.born == 'AT'"}, Rule
    )
    schemas = writer_schemas(SchemaRegistry(url=apicurio.url), None)
    ready = make_ready(RuleInForce(rule, {"pii": 1}), {"pii": PII}, "customers", schemas)

    def copy(schema_id: int) -> bytes:
        framed = b"\0" + schema_id.to_bytes(4, "big") + body.getvalue()
        copied = ready.apply(Record(1, 2, [], None, framed), 0)
        assert copied is not None
        assert copied.value is not None
        return copied.value

    assert {path: apicurio.ask("GET", path) for path in RECORDED} == RECORDED
    value = copy(ids[3])
    found: Any = fastavro.schemaless_reader(BytesIO(value[5:]), schema, None)
    assert value[:5] == b"\0\0\0\0\4"
    assert opened(found["address"].pop("street"), PII.material).decode() == customer["address"].pop("street")
    assert found == customer | {"email": pseudonym(PII, b"ada@example.com")}
    for unfit, words in ((77, "registry does not have"), (ids[4], "which is of PROTOBUF"), (ids[2], "has not written")):
        with pytest.raises(TransformFailed, match=words):
            copy(unfit)
