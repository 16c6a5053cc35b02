"""Records whose fields are masked, beside the same records copied as they are, in one run: what a rule costs.

A value is an order of 1 KB, as JSON or as Avro; of its fields one becomes a pseudonym, one is cut, and one is dropped,
or emptied, for Avro has no value without its fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from io import BytesIO
from statistics import median
from typing import Any

import fastavro
import msgspec

from infra.packaging import bundle
from lab.cloud import LabKeys
from lab.servers.http_server import HttpConnection, HttpServer
from mirrorless.flow.naming import FLOW_VARIABLE, KEYS_VARIABLE
from mirrorless.flow.settings import SchemaRegistry
from mirrorless.transforms.rules import KeySettings, Rule
from tests.benchmarks.forwarder import compare, in_turn
from tests.benchmarks.ground import grounded
from tests.benchmarks.harness import Outcome
from tests.benchmarks.scheduled import TIMEOUT_S, pull_stage

FIELDS = {"email": {"hmac": "pii"}, "card": {"keep.last": 4}, "customer.name": "drop"}
VALUE_BYTES = 1_000
MASKED, PLAIN, BY_RECORDS = "masked", "plain", "by-records"
ORDER: dict[str, Any] = {
    "id": 4711,
    "email": "ada.lovelace@example.com",
    "card": "4111111111111111",
    "customer": {"name": "Ada Lovelace", "since": 1815, "street": "12 St James's Square"},
    "lines": [{"article": f"article-{number:04}", "count": number, "price": 9.99} for number in range(12)],
    "rest": "",
}
_TYPES = {int: "long", str: "string", float: "double"}


def order() -> bytes:
    """An order of 1 KB in JSON; two thirds of them are its lines."""
    short = len(json.dumps(ORDER, separators=(",", ":")))
    return json.dumps(ORDER | {"rest": "." * (VALUE_BYTES - short)}, separators=(",", ":")).encode()


def avro_order() -> bytes:
    """The same as Avro, by the only schema of `schemas`."""
    body = BytesIO()
    schema = fastavro.parse_schema(_schema_of("Order", ORDER))
    fastavro.schemaless_writer(body, schema, ORDER)
    short = 5 + len(body.getvalue())
    fastavro.schemaless_writer(whole := BytesIO(), schema, ORDER | {"rest": "." * (VALUE_BYTES - short - 1)})
    return b"\0\0\0\0\1" + whole.getvalue()


def _schema_of(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        fields = [{"name": each, "type": _schema_of(each, found)} for each, found in value.items()]
        return {"type": "record", "name": name, "fields": fields}
    if isinstance(value, list):
        return {"type": "array", "items": _schema_of(f"{name}_each", value[0])}
    return _TYPES[type(value)]


class _Schemas(HttpConnection):
    """A registry with one schema."""

    def do_GET(self) -> None:  # noqa: N802 -- the server looks for this name
        """Answer as Confluent's does."""
        self.answer(HTTPStatus.OK, json.dumps({"schema": json.dumps(_schema_of("Order", ORDER))}).encode())


@contextmanager
def registry() -> Iterator[SchemaRegistry]:
    """The address of a registry."""
    server = HttpServer(_Schemas, name="registry")
    yield SchemaRegistry(url=f"http://{server.address}")
    server.close()


def mapped(
    *, events: int = 40, shapes: tuple[str, ...] = ("1KBx1", "1KBx6"), formats: tuple[str, ...] = ("json", "avro")
) -> Outcome:
    """CPU of the forwarder per event whose orders are masked, beside one whose are not. Args: events: of each shape."""
    figures: dict[str, float] = {}
    with grounded() as ground, registry() as schemas:
        keys = LabKeys(folder=ground.folder / "keys")
        keys.make("pii", 1)
        for kind in formats:
            rule = msgspec.convert({"topics": [".*"], "format": kind, "fields": FIELDS}, Rule)
            ruled = {"transforms": (rule,), "keys": {"pii": KeySettings(secret="bench")}, "schema_registry": schemas}  # noqa: S106 -- its name
            ways = {
                f"{kind}-{name}": (
                    bundle.build("forward", own={} if settings.transforms else None),
                    {FLOW_VARIABLE: msgspec.json.encode(settings).decode(), KEYS_VARIABLE: str(keys.folder)},
                )
                for name, settings in ((PLAIN, ground.settings()), (MASKED, ground.settings(**ruled)))
            }
            with in_turn(ground, ways) as variants:
                for shape in shapes:
                    compare(ground, variants, shape, order() if kind == "json" else avro_order(), events)
                    pairs = zip(*(each.cpu_ms[shape] for each in variants), strict=True)
                    figures[f"{kind} {shape}"] = round(median(masked / plain for plain, masked in pairs), 2)
    return Outcome(figures)


def pulled(*, records: int = 90_000, rounds: int = 3) -> Outcome:
    """CPU of runs of scheduled topics per record, masked, and plain by records and by whole batches.

    Args:
        records: of a run, on six lanes.
        rounds: of all three, in turns.
    """
    taken: dict[str, list[float]] = {MASKED: [], BY_RECORDS: [], PLAIN: []}
    rule = f", transforms: [{{topics: ['{MASKED}|unused'], fields: {json.dumps(FIELDS)}}}]"
    rest = "keys: {pii: {secret: bench}}"
    with pull_stage(timeout_seconds=TIMEOUT_S, memory_mb=1024, more=rule, rest=rest) as stage:
        for number in range(rounds + 1):
            for way, found in taken.items():
                topic = {MASKED if way == MASKED else PLAIN: 6}
                stage.schedule(topic)
                idle = stage.run()
                stage.fill(topic, records // 6, order())
                settings = msgspec.to_builtins(stage.flow.pull_settings(0).flow)
                took = stage.run(flow=settings | {"copying": "records" if way == BY_RECORDS else "auto"})
                if took.report["records"] != records:
                    raise RuntimeError(f"{way}: not {records} records: {took.report}")
                if number:  # the first round is cold
                    found.append((took.cpu_seconds - idle.cpu_seconds) / records * 1e6)
    figures = {way: round(median(found), 2) for way, found in taken.items()}
    for way, found in taken.items():
        print(f"{way:>10}: {figures[way]:.2f} us of CPU a record [{min(found):.2f} to {max(found):.2f}]", flush=True)
    return Outcome(figures)
