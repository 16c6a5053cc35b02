"""Jobs run with what was locked, and with our package: the same files whoever builds them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from infra.packaging import spark_archive, wheels
from infra.packaging.bundle import LOCK as FUNCTIONS_LOCK

ELF = b"\x7fELF"
AARCH64 = 183
"""e_machine of an ELF file, two bytes at offset 18: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html"""


@pytest.fixture
def dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small folder in the place of 180 MB of wheels."""
    folder = tmp_path / "deps-0"
    (folder / "library").mkdir(parents=True)
    (folder / "library" / "__init__.py").write_text("answer = 42\n")
    (folder / "library" / "native.so").write_bytes(ELF)
    monkeypatch.setattr(wheels, "install", lambda *_, **__: folder)
    return folder


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of this machine, as Spark unpacks it beside a job."""
    folder = tmp_path_factory.mktemp("job") / "environment"
    with tarfile.open(spark_archive.environment(python=wheels.running_python()).path) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_an_archive_is_the_same_bytes_whoever_builds_it_and_when(dependencies: Path, tmp_path: Path) -> None:
    one = spark_archive.environment(out=tmp_path / "one")
    before = os.umask(0o077)
    try:
        for path in wheels.files(dependencies):
            os.utime(path, (1, 1))
        two = spark_archive.environment(out=tmp_path / "two")
    finally:
        os.umask(before)

    assert one.path.read_bytes() == two.path.read_bytes()
    assert one.hash == two.hash
    (dependencies / "library" / "__init__.py").write_text("answer = 43\n")
    assert spark_archive.environment(out=tmp_path / "three").hash != one.hash


def test_a_package_is_the_same_bytes_whoever_builds_it(tmp_path: Path) -> None:
    one = spark_archive.package(out=tmp_path / "one")
    before = os.umask(0o077)
    try:
        two = spark_archive.package(out=tmp_path / "two")
    finally:
        os.umask(before)

    assert one.path.read_bytes() == two.path.read_bytes()
    assert one.hash == two.hash
    with zipfile.ZipFile(one.path) as wheel:  # two builds of one moment would agree about any other date
        assert {entry.date_time for entry in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_bare_python_finds_the_libraries_in_the_archive_and_our_package_beside_it(unpacked: Path) -> None:
    imports = (
        "import boto3, confluent_kafka, msgspec, pyarrow, sys; "
        "import mirrorless.protocol.replicate, mirrorless.adapters.kafka.source; "
        "boto3.client('s3', region_name='eu-west-1'); boto3.client('dynamodb', region_name='eu-west-1'); "
        "import pandas, pyarrow.compute, pyarrow.parquet, pyarrow.dataset, pyarrow.fs; "
        "assert pyarrow.Table.from_pandas(pandas.DataFrame({'a': [1]})).to_pydict() == {'a': [1]}; "
        "table = pyarrow.table({'offset': [1, 2, 3], 'value': [b'a', None, b'']}); "
        "assert table.to_pylist()[1] == {'offset': 2, 'value': None}; "
        "from mirrorless.reports.page import render; from mirrorless.reports.report import Report; "
        "assert '<h1>a report</h1>' in render(Report(title='a report', verdict='', tone='')); "
        "print(mirrorless.protocol.replicate.__file__, *(m.__file__ for m in (confluent_kafka, pyarrow, msgspec)))"
    )
    package = spark_archive.package().path
    done = subprocess.run(
        [sys.executable, "-S", "-c", imports],  # without site-packages: EMR's Python has none of these
        cwd=unpacked.parent,
        env={"PYTHONPATH": f"{package}:./environment", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    ours, *theirs = done.stdout.split()
    assert ours.startswith(str(package))
    assert all(Path(path).is_relative_to(unpacked) for path in theirs)


def test_pip_takes_the_package_for_a_wheel(tmp_path: Path) -> None:
    package = spark_archive.package().path
    wheel = tmp_path / f"{package.stem}.whl"
    wheel.write_bytes(package.read_bytes())
    argv = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "there"),
    ]
    done = subprocess.run([*argv, str(wheel)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there" / "mirrorless" / "protocol" / "replicate.py").is_file()


def test_the_archive_for_arm64_has_no_other_machines_code() -> None:
    with tarfile.open(spark_archive.environment(platform="manylinux arm64").path) as archive:
        heads = {
            entry.name: (archive.extractfile(entry) or pytest.fail(entry.name)).read(20)
            for entry in archive
            if ".so" in Path(entry.name).name
        }

    assert len(heads) > 20
    assert all(head.startswith(ELF) for head in heads.values())
    assert {int.from_bytes(head[18:20], "little") for head in heads.values()} == {AARCH64}


def test_an_archive_stays_small() -> None:
    """Every executor of every job fetches it and unpacks it before its first task."""
    assert spark_archive.environment(platform="manylinux arm64").path.stat().st_size < 65_000_000


def test_the_jobs_lock_pins_every_wheel_by_hash_and_names_no_registry() -> None:
    text = spark_archive.LOCK.read_text()

    assert "://" not in text
    assert not re.search(r"^--", text, re.MULTILINE)
    assert all("==" in entry and "--hash=sha256:" in entry for entry in re.split(r"\n(?=[a-z])", text))


def test_jobs_and_functions_have_the_same_version_of_what_they_share() -> None:
    pins = [
        dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE))
        for lock in (FUNCTIONS_LOCK, spark_archive.LOCK)
    ]
    functions, jobs = pins

    assert {name: jobs.get(name) for name in functions} == functions
    assert "pyspark" not in jobs
