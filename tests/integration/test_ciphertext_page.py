"""The programs of docs/reference/ciphertext.md, as they stand there, on what the product seals."""

from __future__ import annotations

import os
import re
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag

from lab.servers.artifacts import classpath, compiled, java_command, resolve
from mirrorless.transforms.ciphers import Sealer, sealed_text
from mirrorless.transforms.rules import KeyRing

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ciphertext.md"
POM = Path(__file__).parents[1] / "java" / "bouncycastle-pom.xml"
BOUNCY_CASTLE = "1.82"

RING = KeyRing(2, {1: bytes(range(32)), 2: bytes(range(32, 64))})
VALUES = (b"", b'"na\xc3\xafve"', b"12345678901234567890", bytes(1000))
SEALED = [Sealer(RING.of(version), "t").seal(each, 0, 1, "a") for version in (1, 2) for each in VALUES]
SEALED += [sealed_text(each).encode() for each in SEALED]
NUMBER, QUOTED = (sealed_text(Sealer(RING, "t").seal(each, 0, 2, "b")) for each in (VALUES[2], VALUES[1]))
DOCUMENT = f'{{"{NUMBER}" : ["{NUMBER}", "{QUOTED}"], "c": "\\"{NUMBER}", "d": 1.0}}'
OPENED = f'{{"{NUMBER}" : [12345678901234567890, "naïve"], "c": "\\"{NUMBER}", "d": 1.0}}'
CHANGED = SEALED[1][:-1] + bytes([SEALED[1][-1] ^ 1])

MAIN = """
    public static void main(String[] args) throws Exception {
        Base64.Decoder given = Base64.getDecoder();
        Map<Integer, byte[]> key = Map.of(1, given.decode(args[0]), 2, given.decode(args[1]));
        new java.io.PrintStream(System.out, true, UTF_8).println(openDocument(args[2], key));
        for (int each = 3; each < args.length; each++) {
            try {
                System.out.println(Base64.getEncoder().encodeToString(open(given.decode(args[each]), key)));
            } catch (InvalidCipherTextException changed) {
                System.out.println("changed");
            }
        }
    }
}
"""


def program(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


def test_the_python_of_the_page_opens_what_is_sealed() -> None:
    names: dict[str, Any] = {}
    exec(program("python"), names)  # noqa: S102 -- the page's own

    assert [names["open_sealed"](each, RING.material) for each in SEALED] == [*VALUES] * 4
    assert names["open_document"](DOCUMENT.encode(), RING.material).decode() == OPENED
    with pytest.raises(InvalidTag):
        names["open_sealed"](CHANGED, RING.material)


def test_the_java_of_the_page_opens_what_is_sealed(tmp_path: Path) -> None:
    """Another cipher of other people's, and another HMAC: the format does not hang on one library."""
    source = tmp_path / "Sealed.java"
    source.write_text(program("java").rpartition("}")[0] + MAIN)
    jars = resolve(f"bouncycastle-{BOUNCY_CASTLE}", str(POM), BOUNCY_CASTLE)
    path = os.pathsep.join((str(compiled(source, jars)), classpath(jars)))
    given = [b64encode(each).decode() for each in (*SEALED, CHANGED)]
    keys = [b64encode(each).decode() for each in RING.material.values()]

    done = subprocess.run(
        [
            java_command(),
            "-Dfile.encoding=UTF-8",
            "-Dsun.jnu.encoding=UTF-8",
            "-cp",
            path,
            "Sealed",
            *keys,
            DOCUMENT,
            *given,
        ],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )

    assert done.returncode == 0, done.stderr
    document, *values, changed = done.stdout.splitlines()
    assert document == OPENED
    assert [b64decode(each) for each in values] == [*VALUES] * 4
    assert changed == "changed"
