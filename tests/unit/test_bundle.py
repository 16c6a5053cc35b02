"""A bundle is the function, our package and the locked wheels, the same bytes whoever builds it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from infra import bundle, locked

LOCKS = [bundle.LOCK, bundle.REPOSITORY / "lab" / "requirements-runtime.txt"]
PYTHON = locked.running_python()


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "forward.py").write_text("def handler(event, context):\n    return {'batchItemFailures': []}\n")
    return folder


@pytest.fixture
def dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small folder in the place of 25 MB of wheels, and a package that nobody edits meanwhile."""
    package = shutil.copytree(bundle.PACKAGE, tmp_path / "package")
    monkeypatch.setattr(bundle, "PACKAGE", package)
    folder = tmp_path / "deps-0"
    (folder / "library").mkdir(parents=True)
    (folder / "library" / "__init__.py").write_text("answer = 42\n")
    monkeypatch.setattr(locked, "install", lambda *_, **__: folder)
    return folder


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_pins_every_wheel_by_hash_and_names_no_registry(lock: Path) -> None:
    """A host in it would tie every builder to it; a wheel without a hash could be anybody's."""
    text = lock.read_text()

    assert "://" not in text
    assert not re.search(r"^--", text, re.MULTILINE)
    entries = re.split(r"\n(?=[a-z])", text)
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)


@pytest.mark.usefixtures("dependencies")
def test_a_bundle_is_the_same_bytes_whatever_the_builders_umask(functions: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        one = bundle.build("forward", out=tmp_path / "one", functions=functions)
    finally:
        os.umask(before)
    two = bundle.build("forward", out=tmp_path / "two", functions=functions)

    assert one.name == two.name
    assert locked.tree_hash(one) == locked.tree_hash(two)
    assert {path.stat().st_mode & 0o777 for path in locked.files(one / "mirrorless")} == {0o644}


@pytest.mark.usefixtures("dependencies")
def test_a_bundle_holds_the_function_the_package_and_the_dependencies(functions: Path, tmp_path: Path) -> None:
    built = bundle.build("forward", out=tmp_path / "out", functions=functions)

    assert sorted(path.name for path in built.iterdir()) == ["__pycache__", "forward.py", "library", "mirrorless"]
    assert (built / "mirrorless" / "lane.py").read_bytes() == (bundle.PACKAGE / "lane.py").read_bytes()
    assert (built / "mirrorless" / "__pycache__" / f"lane.{sys.implementation.cache_tag}.pyc").is_file()


@pytest.mark.usefixtures("dependencies")
def test_a_changed_source_makes_another_bundle_and_an_unchanged_one_does_not(functions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = bundle.build("forward", out=out, functions=functions)
    again = bundle.build("forward", out=out, functions=functions)
    (functions / "forward.py").write_text("handler = None\n")
    changed = bundle.build("forward", out=out, functions=functions)

    assert again == first
    assert changed != first
    assert (first / "forward.py").read_text() != "handler = None\n"


def test_a_function_that_is_not_there_is_an_error_that_names_the_others(functions: Path, tmp_path: Path) -> None:
    with pytest.raises(locked.BuildError, match=r"refresh: there is no such function.*forward"):
        bundle.build("refresh", out=tmp_path, functions=functions)


def test_a_local_folder_for_another_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(locked.BuildError, match=r"Python 3\.99"):
        locked.install(bundle.LOCK, python="3.99", platform="local", cache=tmp_path)

    assert not list(tmp_path.iterdir())


def test_the_tree_hash_knows_names_contents_and_executable_bits(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    seen = {locked.tree_hash(tmp_path)}

    file.write_text("2")
    seen.add(locked.tree_hash(tmp_path))
    file.chmod(0o755)
    seen.add(locked.tree_hash(tmp_path))
    file.rename(tmp_path / "b")
    seen.add(locked.tree_hash(tmp_path))

    assert len(seen) == 4


def test_a_folder_that_fails_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no network")

    with pytest.raises(RuntimeError):
        locked.once(tmp_path / "deps", fill)

    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="session")
def wheels() -> Path:
    """The real dependencies, installed once into the cache that the lab uses too."""
    return locked.install(bundle.LOCK, python=PYTHON, platform="local")


def test_what_was_pruned_is_not_missed(wheels: Path) -> None:
    """Everything that our functions import, and every AWS client that they make, without a virtual environment."""
    program = """
import aws_lambda_powertools.metrics, aws_lambda_powertools.logging, aws_lambda_powertools.utilities.parameters
import aws_lambda_powertools.utilities.batch, aws_lambda_powertools.utilities.typing
import boto3, confluent_kafka, confluent_kafka.admin, msgspec.json, sys
for service in ("dynamodb", "lambda", "secretsmanager", "sts"):
    boto3.client(service, region_name="eu-west-1")
print(confluent_kafka.__file__)
"""
    interpreter = Path(sys.base_prefix, "bin", f"python{PYTHON}")

    done = subprocess.run(
        [interpreter, "-S", "-s", "-c", program],
        env={"PYTHONPATH": str(wheels), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    assert done.stdout.startswith(str(wheels))


def test_dependencies_stay_below_what_a_cold_start_can_bear(wheels: Path, tmp_path: Path) -> None:
    """35 MB of AWS service models would be three quarters of it; a scanner still finds what is inside."""
    assert sum(path.stat().st_size for path in locked.files(wheels)) < 40_000_000
    services = {path.name for path in (wheels / "botocore" / "data").iterdir() if path.is_dir()}
    assert services == {"dynamodb", "lambda", "secretsmanager", "sts"}
    assert (wheels / "confluent_kafka-2.16.1.dist-info" / "METADATA").is_file()
    assert not [path for path in locked.files(wheels) if path.name in {"RECORD", "INSTALLER"}]
    with zipfile.ZipFile(tmp_path / "zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for path in locked.files(wheels):
            packed.write(path)
    assert (tmp_path / "zip").stat().st_size < 15_000_000
