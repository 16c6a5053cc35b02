"""Apicurio, a schema registry with Confluent's interface, and what it answered once to who reads schemas."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

from lab.servers.artifacts import java_command, resolve
from lab.servers.process import Server, free_port

VERSION: Final = "2.6.13.Final"
PATH: Final = "/apis/ccompat/v7"
_POM = Path(__file__).parents[1] / "java" / "apicurio-pom.xml"

COUNTRY = '{"type":"enum","name":"Country","namespace":"geo","symbols":["AT","GB"]}'
OLD_ADDRESS = '{"type":"record","name":"Address","namespace":"geo","fields":[]}'
ADDRESS = (
    '{"type":"record","name":"Address","namespace":"geo",'
    '"fields":[{"name":"street","type":"string"},{"name":"country","type":"geo.Country"}]}'
)
CUSTOMER = (
    '{"type":"record","name":"Customer","namespace":"shop","fields":[{"name":"email","type":"string"},'
    '{"name":"address","type":"geo.Address"},{"name":"born","type":"geo.Country"}]}'
)
_OF_ADDRESS = [{"name": "geo.Country", "subject": "geo/country", "version": 1}]
REGISTERED: Final = (
    ("geo%2Fcountry", {"schema": COUNTRY}),
    ("address", {"schema": OLD_ADDRESS}),
    ("address", {"schema": ADDRESS, "references": _OF_ADDRESS}),
    (
        "customers-value",
        {
            "schema": CUSTOMER,
            "references": [{"name": "geo.Address", "subject": "address", "version": 2}, *_OF_ADDRESS],
        },
    ),
    ("other", {"schema": 'syntax = "proto3"; message A { string b = 1; }', "schemaType": "PROTOBUF"}),
)
"""Subjects and their schemas, whose ids count from 1."""

RECORDED: Final[dict[str, tuple[int, Any]]] = {
    path: (status, answer)
    for path, (status, answer) in json.loads(Path(__file__).with_name("recorded_registry.json").read_text()).items()
}
"""By path: what an Apicurio that has these answered, status and JSON."""


class Apicurio(Server):
    """A registry in memory."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}{PATH}"
        super().__init__(title=f"Apicurio at {self.url}", folder=folder, log="apicurio.log")

    def register(self, subject: str, schema: Mapping[str, Any]) -> int:
        """The id of a new version."""
        status, answer = self.ask("POST", f"{PATH}/subjects/{subject}/versions", json.dumps(schema))
        assert status == 200, answer
        return int(answer["id"])

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        connection.request(method, path, body, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        return answer.status, found

    def _command(self) -> list[str]:
        program = self._folder / "program"
        if not program.exists():
            (archive,) = resolve(f"apicurio-{VERSION}", str(_POM), VERSION).glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(program, filter="data")
        return [
            java_command(),
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dquarkus.http.host=127.0.0.1",
            f"-Dquarkus.http.port={self._port}",
            "-jar",
            str(program / f"apicurio-registry-app-{VERSION}-runner.jar"),
        ]

    def _probe(self) -> Callable[[], str]:
        def obstacle() -> str:
            try:
                self.ask("GET", f"{PATH}/subjects")
            except (OSError, HTTPException, ValueError) as exc:
                return repr(exc)
            return ""

        return obstacle
