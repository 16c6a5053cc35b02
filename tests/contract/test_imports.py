"""The walls of the house: what may import what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CORE = sorted(
    f"mirrorless.{path.stem}" for path in (ROOT / "shared" / "mirrorless").glob("*.py") if path.stem != "__init__"
)

WITHOUT_CLIENTS = """
import sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {
            "boto3", "botocore", "confluent_kafka", "pyspark", "pydantic", "aws_lambda_powertools", "yaml"
        }:
            raise ImportError(f"{name} is imported by the core")

sys.meta_path.insert(0, Wall())
for module in sys.argv[1:]:
    __import__(module)
"""


def test_the_import_contracts_of_the_project_hold() -> None:
    linted = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_every_core_module_imports_without_any_client_library() -> None:
    """A cold start, a Spark executor and a test pay for what they use only; and the core cannot open a socket."""
    imported = subprocess.run(
        [sys.executable, "-c", WITHOUT_CLIENTS, *CORE],
        env={"PYTHONPATH": str(ROOT / "shared")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert imported.returncode == 0, imported.stderr


@pytest.mark.parametrize("library", ["boto3", "confluent_kafka.admin"])
def test_the_wall_of_these_tests_stands(library: str) -> None:
    """A check that lets everything pass would prove nothing."""
    imported = subprocess.run(
        [sys.executable, "-c", WITHOUT_CLIENTS, library], capture_output=True, text=True, check=False, timeout=60
    )

    assert "is imported by the core" in imported.stderr
