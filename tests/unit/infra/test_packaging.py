"""Bundles of functions and the archive of jobs: our package and the locked wheels, the same bytes whoever builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from infra.packaging import bundle, spark_archive, wheels
from mirrorless.transforms.rules import Rule

LOCKS = [
    spark_archive.LOCK_WITH_RULES,
    bundle.LOCK,
    bundle.LOCK_WITH_RULES,
    spark_archive.LOCK,
    bundle.REPOSITORY / "lab" / "requirements-runtime.txt",
]
ROOT = bundle.REPOSITORY
PYTHON = wheels.running_python()


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "forward.py").write_text("import library\nfrom mirrorless.chain import lane\n")
    return folder


@pytest.fixture
def dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two small libraries in the place of 25 MB of wheels, and a copy of the package, which stays as it is."""
    package = shutil.copytree(bundle.PACKAGE, tmp_path / "mirrorless")
    monkeypatch.setattr(bundle, "PACKAGE", package)
    folder = tmp_path / "deps-0"
    for name in ("library/a.py", "library-1.dist-info/METADATA", "unneeded.libs/a.so", "unneeded-1.dist-info/METADATA"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("answer = 42\n")
    monkeypatch.setattr(wheels, "install", lambda *_, **__: folder)
    return folder


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: f"{lock.parent.name}-{lock.name}")
def test_a_lock_pins_every_wheel_by_hash_and_names_no_registry(lock: Path) -> None:
    """A host in it would tie every builder to it; a wheel without a hash could be anybody's."""
    text = lock.read_text()

    assert "://" not in text
    assert not re.search(r"^--", text, re.MULTILINE)
    entries = re.split(r"\n(?=[a-z])", text)
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)


@pytest.mark.usefixtures("dependencies")
def test_a_bundle_holds_the_function_the_core_and_what_is_not_left_out(
    functions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "_NOT_NEEDED", {"forward": {"unneeded"}})

    built = bundle.build("forward", out=tmp_path / "out", functions=functions)

    files = {path.relative_to(built).as_posix() for path in wheels.files(built)}
    assert {file for file in files if not file.startswith("mirrorless/") and "__pycache__" not in file} == {
        "forward.py",
        "library-1.dist-info/METADATA",
        "library/a.py",
    }
    assert {
        "mirrorless/chain/lane.py",
        f"mirrorless/chain/__pycache__/lane.{sys.implementation.cache_tag}.pyc",
    } <= files
    assert not [file for file in files if file.startswith(("mirrorless/config/", "mirrorless/adapters/archive"))]
    # Another Python on the builder's machine must not make another asset.
    for_lambda = bundle.build("forward", platform="manylinux arm64", out=tmp_path / "lambda", functions=functions)
    assert not list(for_lambda.rglob("*.pyc"))


@pytest.mark.usefixtures("dependencies")
def test_a_folder_unused_for_a_month_is_removed_when_another_is_built(functions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    used, forgotten = (out / f"forward-{digit * 16}" for digit in "ab")
    foreign = out / "photographs"
    for folder in (used, forgotten, foreign):
        folder.mkdir(parents=True)
        os.utime(folder, (0, 0))
    assert wheels.once(used, lambda _: pytest.fail("it is there")) == used

    bundle.build("forward", out=out, functions=functions)

    assert used.is_dir()
    assert foreign.is_dir()
    assert not forgotten.exists()
    assert not list(out.glob(".*"))


@pytest.mark.usefixtures("dependencies")
def test_a_changed_source_makes_another_bundle_and_an_unchanged_one_does_not(functions: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = bundle.build("forward", out=out, functions=functions)
    again = bundle.build("forward", out=out, functions=functions)
    (functions / "forward.py").write_text("import library\n")
    changed = bundle.build("forward", out=out, functions=functions)

    assert again == first
    assert changed != first
    assert (first / "forward.py").read_text() != "import library\n"


def test_a_function_that_is_not_there_is_an_error_that_names_the_others(functions: Path, tmp_path: Path) -> None:
    with pytest.raises(wheels.BuildError, match=r"refresh: there is no such function.*forward"):
        bundle.build("refresh", out=tmp_path, functions=functions)


def test_a_local_folder_for_another_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(wheels.BuildError, match=r"Python 3\.99"):
        wheels.install(bundle.LOCK, python="3.99", platform="local", cache=tmp_path)

    assert not list(tmp_path.iterdir())


def test_the_tree_hash_covers_names_contents_and_executable_bits(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    seen = {wheels.tree_hash(tmp_path)}

    file.write_text("2")
    seen.add(wheels.tree_hash(tmp_path))
    file.chmod(0o755)
    seen.add(wheels.tree_hash(tmp_path))
    file.rename(tmp_path / "b")
    seen.add(wheels.tree_hash(tmp_path))

    assert len(seen) == 4


def test_a_folder_that_fails_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no network")

    with pytest.raises(RuntimeError):
        wheels.once(tmp_path / "deps", fill)

    assert not list(tmp_path.iterdir())


def test_dependencies_stay_below_what_a_cold_start_can_bear(tmp_path: Path) -> None:
    """35 MB of AWS service models would be three quarters of it; a scanner still finds what is inside."""
    installed = wheels.install(bundle.LOCK, python=PYTHON, platform="local")

    assert sum(path.stat().st_size for path in wheels.files(installed)) < 40_000_000
    services = {path.name for path in (installed / "botocore" / "data").iterdir() if path.is_dir()}
    assert services == {"dynamodb", "lambda", "secretsmanager", "sts"}
    assert (installed / "confluent_kafka-2.16.1.dist-info" / "METADATA").is_file()
    assert not [path for path in wheels.files(installed) if path.name in {"RECORD", "INSTALLER"}]
    with zipfile.ZipFile(tmp_path / "zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for path in wheels.files(installed):
            packed.write(path)
    assert (tmp_path / "zip").stat().st_size < 15_000_000


def test_a_bundle_built_anew_on_another_machine_is_the_same_bytes_and_the_same_asset(tmp_path: Path) -> None:
    """Another folder, umask, hash seed, time zone and language; installed again, wheel by wheel.

    On one platform: they differ in which wheels are installed, not in what is done with them.
    """
    platform: wheels.Platform = "manylinux arm64"
    here = bundle.build("forward", platform=platform)
    program = "import os, sys; os.umask(0o077); from infra.packaging import bundle; from pathlib import Path; "
    program += f"print(bundle.build('forward', platform={platform!r}, out=Path(sys.argv[1])))"
    elsewhere = {"PYTHONHASHSEED": "7", "TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8", "SOURCE_DATE_EPOCH": "1"}

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "away")],
        env={**os.environ, **elsewhere, "PYTHONPATH": f"{bundle.PACKAGE.parent}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )

    there = Path(done.stdout.strip())
    assert there.name == here.name
    assert wheels.tree_hash(there) == wheels.tree_hash(here)
    assert {path.stat().st_mode & 0o777 for path in wheels.files(there)} == {0o644}
    assert {path.stat().st_mode & 0o777 for path in there.rglob("*") if path.is_dir()} == {0o755}


ALONE = """
import dis, importlib.util, sys, types
bundle, function, services, left_out = sys.argv[1:]
sys.path[:] = [path for path in sys.path if "site-packages" not in path and "dist-packages" not in path] + [bundle]

def imported(code, package):
    stack = list(dis.get_instructions(code))
    for at, each in enumerate(stack):
        if each.opname == "IMPORT_NAME":
            level, wanted = stack[at - 2].argval, stack[at - 1].argval or ()
            yield importlib.util.resolve_name("." * level + each.argval, package), wanted
    yield from late(code, package)

def late(code, package):
    # What functions import when they run; no `if TYPE_CHECKING` stands in one.
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from imported(constant, package)

def compiled(file):
    return compile(open(file, "rb").read(), file, "exec")

# The function itself would look for its flow: it is compiled, and what it imports is followed.
waiting, seen = list(imported(compiled(f"{bundle}/{function}.py"), "")), set()
while waiting:
    for name, wanted in waiting:
        if name.startswith("awslambdaric") or name in left_out.split():
            continue  # the runtime's own, and its absence is caught; and what flows without rules never load
        holder = importlib.import_module(name)
        for attribute in wanted:
            hasattr(holder, attribute) or importlib.import_module(f"{name}.{attribute}")
        print(name)
    fresh = {name: module for name, module in sys.modules.items() if name.startswith("mirrorless") and name not in seen}
    assert all(module.__file__.startswith(bundle) for module in fresh.values())
    waiting = [each for module in fresh.values() for each in late(compiled(module.__file__), module.__spec__.parent)]
    seen |= fresh.keys()
print(*seen)

import boto3
for service in services.split():
    boto3.client(service, region_name="eu-west-1")
"""


OWN = {"masks/own.py": b"from masks.parts import other\n", "masks/parts/other.py": b"import jmespath\n"}
BUNDLES = [
    *((function, None) for function in bundle.names()),
    *((function, OWN) for function in ("control", "forward", "pull")),
]
"""Of flows without rules, and with rules and a function of one's own."""
OF_RULES = "mirrorless.adapters.schema_registry mirrorless.protocol.flow_rules mirrorless.transforms.transform"
"""Where the way to rules begins."""


@pytest.mark.parametrize(("function", "own"), BUNDLES)
def test_every_import_of_a_function_and_every_client_of_aws_is_found_in_the_bundle_alone(
    function: str, own: Mapping[str, bytes] | None
) -> None:
    """A late import that was left out would fail at night: the byte code of all that a function reaches is followed."""
    built = bundle.build(function, own=own)
    services = sorted(wheels.SERVICES if own is None else wheels.SERVICES | {"kms"})
    left_out = OF_RULES if own is None else ""

    done = subprocess.run(
        [
            Path(sys.base_prefix, "bin", f"python{PYTHON}"),
            "-I",
            "-B",
            "-c",
            ALONE,
            built,
            function,
            " ".join(services),
            left_out,
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""
    found = set(done.stdout.split())
    assert "mirrorless.adapters.dynamodb.client" in found
    if "mirrorless.adapters.kafka.client" in found:
        assert "botocore.session" in found  # the latest import there is
    assert (built / "cryptography").is_dir() == (built / "masks" / "own.py").is_file() == (own is not None)


MACHINES = {"manylinux arm64": 0xB7, "manylinux x86_64": 0x3E}


@pytest.mark.parametrize("platform", MACHINES)
@pytest.mark.parametrize(("function", "own"), BUNDLES)
def test_a_bundle_for_lambda_holds_machine_code_of_its_architecture_only(
    function: str, own: Mapping[str, bytes] | None, platform: wheels.Platform
) -> None:
    """ELF says its machine in two bytes at 18: 183 is AArch64, 62 is x86-64."""
    built = bundle.build(function, platform=platform, own=own)

    contents = (path.read_bytes() for path in wheels.files(built))
    machines = {int.from_bytes(code[18:20], "little") for code in contents if code[:4] == b"\x7fELF"}
    assert machines == {MACHINES[platform]}
    assert bool(list(built.glob("cryptography/**/*.so"))) == (own is not None)


@pytest.mark.usefixtures("dependencies")
@pytest.mark.parametrize("name", ["mirrorless/x.py", "forward.py", "library.py"])
def test_a_module_of_ones_own_takes_no_name_that_is_taken(name: str, functions: Path, tmp_path: Path) -> None:
    with pytest.raises(wheels.BuildError, match=rf"{name}: a module of our own or of a library has this name"):
        bundle.build("forward", own={name: b""}, out=tmp_path / "out", functions=functions)


def test_the_modules_of_rules_lie_beside_the_configuration(tmp_path: Path) -> None:
    own, configuration = Rule(("a",), function="masks.own:mask"), str(tmp_path / "replication.yaml")
    with pytest.raises(wheels.BuildError, match=r"masks/own\.py: it cannot be read: No such file"):
        bundle.own_modules([own], configuration)

    for name, content in OWN.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content)

    assert bundle.own_modules([Rule(("a",)), own], configuration) == OWN
    assert bundle.own_modules([Rule(("a",))], configuration) == {}
    assert bundle.own_modules([], configuration) is None
    with zipfile.ZipFile(spark_archive.package(own=OWN, out=tmp_path / "out").path) as wheel:
        assert wheel.read("masks/own.py") == OWN["masks/own.py"]


# What jobs are made of


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of this machine, as Spark unpacks it beside a job."""
    folder = tmp_path_factory.mktemp("job") / "environment"
    with tarfile.open(spark_archive.environment(python=wheels.running_python()).path) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_an_archive_and_a_package_are_the_same_bytes_whoever_builds_them_and_when(
    dependencies: Path, tmp_path: Path
) -> None:
    def built(name: str) -> list[tuple[str, bytes]]:
        made = (make(out=tmp_path / name) for make in (spark_archive.environment, spark_archive.package))
        return [(each.hash, each.path.read_bytes()) for each in made]

    one = built("one")
    before = os.umask(0o077)
    try:
        for path in wheels.files(dependencies):
            os.utime(path, (1, 1))
        assert built("two") == one
    finally:
        os.umask(before)
    with zipfile.ZipFile(spark_archive.package().path) as wheel:  # one moment would agree about any other date
        assert {entry.date_time for entry in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    (dependencies / "library" / "a.py").write_text("answer = 43\n")
    assert built("three")[0] != one[0]


def test_a_bare_python_finds_the_libraries_in_the_archive_and_our_package_beside_it(unpacked: Path) -> None:
    imports = (
        "import boto3, confluent_kafka, msgspec, pyarrow, sys; "
        "import mirrorless.protocol.replicate, mirrorless.adapters.kafka.source; "
        "boto3.client('s3', region_name='eu-west-1'); boto3.client('dynamodb', region_name='eu-west-1'); "
        "import numpy, pyarrow.compute, pyarrow.parquet, pyarrow.dataset, pyarrow.fs; "
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
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(tmp_path / "there")]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there" / "mirrorless" / "protocol" / "replicate.py").is_file()


@pytest.mark.parametrize(("rules", "largest"), [(False, 65_000_000), (True, 70_000_000)])
def test_the_archive_for_arm64_has_no_other_machines_code_and_stays_small(rules: bool, largest: int) -> None:  # noqa: FBT001
    """Every executor of every job fetches it and unpacks it before its first task."""
    path = spark_archive.environment(platform="manylinux arm64", rules=rules).path
    with tarfile.open(path) as archive:
        heads = {
            entry.name: (archive.extractfile(entry) or pytest.fail(entry.name)).read(20)
            for entry in archive
            if ".so" in Path(entry.name).name
        }

    assert path.stat().st_size < largest
    assert len(heads) > 20
    assert any(name.startswith("cryptography/") for name in heads) == rules
    assert all(head.startswith(b"\x7fELF") for head in heads.values())
    assert {int.from_bytes(head[18:20], "little") for head in heads.values()} == {MACHINES["manylinux arm64"]}


def test_jobs_and_functions_have_the_same_version_of_what_they_share_with_rules_and_without() -> None:
    of_functions, of_jobs = (bundle.LOCK, bundle.LOCK_WITH_RULES), (spark_archive.LOCK, spark_archive.LOCK_WITH_RULES)

    for smaller, larger in (of_functions, of_jobs, *zip(of_functions, of_jobs, strict=True)):
        assert pins(smaller).items() <= pins(larger).items()
    assert "pyspark" not in pins(spark_archive.LOCK_WITH_RULES)


def pins(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE))
