"""What a template deploys is the very folder that the bundle is, and here the one that the lab runs out of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aws_cdk import FileSystem

from infra.packaging import bundle, wheels
from tests.support.assembly import Assembly

PLATFORMS: dict[str, wheels.Platform] = {"arm64": "manylinux arm64", "x86_64": "manylinux x86_64"}


def deployed(assembly: Assembly) -> dict[str, tuple[str, str]]:
    """The asset hash and the architecture of each function, by its file in `functions/` and its name."""
    found = {}
    for function in assembly.resources("AWS::Lambda::Function"):
        properties = function.properties
        key = properties["Code"]["S3Key"].removesuffix(".zip")
        found[f"{properties['Handler'].removesuffix('.handler')} {properties['FunctionName']}"] = (
            key,
            properties["Architectures"][0],
        )
    return found


@pytest.mark.parametrize("example", ["long-tail", "aggregation"])  # arm64 and x86_64
def test_a_function_is_deployed_from_its_bundle(example: str, assembled: Callable[[str], Assembly]) -> None:
    """The hash of an asset is the hash of the folder's contents: built twice, it is deployed once."""
    found = deployed(assembled(example))

    scheduled = {"pull"} if example == "long-tail" else set()
    assert {name.partition(" ")[0] for name in found} == set(bundle.names()) - ({"pull"} - scheduled)
    for name, (key, architecture) in found.items():
        folder = bundle.build(name.partition(" ")[0], platform=PLATFORMS[architecture])
        assert key == FileSystem.fingerprint(str(folder)), name


def test_every_asset_of_a_template_is_published_before_it(assembled: Callable[[str], Assembly]) -> None:
    assembly = assembled("active-active")

    for function in assembly.resources("AWS::Lambda::Function"):
        manifest = json.loads((assembly.folder / f"{function.stack}.assets.json").read_text())
        key = function.properties["Code"]["S3Key"].removesuffix(".zip")
        source = manifest["files"][key]["source"]
        assert source["packaging"] == "zip"
        assert (assembly.folder / source["path"] / f"{function.properties['Handler'].split('.')[0]}.py").is_file()


def test_a_template_for_this_machine_deploys_the_folder_that_the_lab_runs(assembled_here: Assembly) -> None:
    found = deployed(assembled_here)

    assert found
    for name, (key, _) in found.items():
        assert key == FileSystem.fingerprint(str(bundle.build(name.partition(" ")[0]))), name


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
        env={
            **os.environ,
            **elsewhere,
            "PYTHONPATH": f"{bundle.PACKAGE.parent}{os.pathsep}{bundle.REPOSITORY}",
        },
        capture_output=True,
        text=True,
        check=True,
    )

    there = Path(done.stdout.strip())
    assert there.name == here.name
    assert wheels.tree_hash(there) == wheels.tree_hash(here)
    assert FileSystem.fingerprint(str(there)) == FileSystem.fingerprint(str(here))
