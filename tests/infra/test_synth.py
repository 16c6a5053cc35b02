"""Templates: made from the tree alone, accepted by CloudFormation, as frozen; their assets, and their names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, FileSystem, Stack
from aws_cdk.aws_lambda import AssetCode

from infra import cdk, synth
from infra.deployment import ALIAS, plan
from infra.packaging import bundle, spark_archive, wheels
from infra.packaging.assets import HOLLOW, LOCAL, function_code, spark_artifacts
from infra.validation import validated
from mirrorless.config import InvalidConfiguration, load
from tests.frozen.golden import difference, written
from tests.frozen.templates import name_of, text_of
from tests.support.assembly import EXAMPLES, REPOSITORY, Assembly, assemble
from tests.support.yaml_text import dump_yaml, load_yaml


def test_make_synth_without_a_configuration_takes_every_example() -> None:
    assert set(synth.EXAMPLES) == set(EXAMPLES.values())


def test_a_module_that_is_run_is_read_to_its_end_before() -> None:
    """What is defined behind the call of `main` would not be there yet: `make synth` made no example for that."""
    for path in (REPOSITORY / "infra").glob("**/*.py"):
        if "__main__" in (text := path.read_text()) and "node_modules" not in path.parts:
            assert text.endswith(('"__main__":\n    main()\n', '"__main__":\n    sys.exit(main())\n')), path


def test_cloudformation_accepts_every_resource_and_property_of_every_example(
    assembled: Callable[[str], Assembly],
) -> None:
    """A template in which nothing stands that a larger one has not is linted by `make synth` alone."""
    assemblies = [assembled(example) for example in EXAMPLES]
    templates = {path: set(properties(path)) for each in assemblies for path in each.folder.glob("*.template.json")}
    chosen, held = list[Path](), set[tuple[str, ...]]()
    for path in sorted(templates, key=lambda path: (-path.stat().st_size, path)):
        if templates[path] - held:
            chosen.append(path)
            held |= templates[path]
    assert len(chosen) > 5

    synth.lint(
        chosen, (place.region for each in assemblies for place in (*each.deployment.homes, *each.deployment.states))
    )


def properties(template: Path) -> Iterator[tuple[str, ...]]:
    """Each property that resources of a template have, below the resource's type; and the template's other parts."""

    def below(place: tuple[str, ...], value: object) -> Iterator[tuple[str, ...]]:
        yield place
        if isinstance(value, dict | list):
            for name, each in value.items() if isinstance(value, dict) else (("", each) for each in value):
                yield from below((*place, name), each)

    for part, contents in json.loads(template.read_text()).items():
        for entry in contents.values() if isinstance(contents, dict) else ():
            yield from below((part, entry["Type"] if part == "Resources" else ""), entry)


def test_a_property_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    """The check above would also pass if nothing were read."""
    template = tmp_path / "x.template.json"
    template.write_text(json.dumps({"Resources": {"T": {"Type": "AWS::SQS::Queue", "Properties": {"Colour": "red"}}}}))

    with pytest.raises(synth.NotSynthesized, match="Colour"):
        synth.lint([template], ["eu-west-1"])


def test_the_command_line_takes_what_was_synthesized_before(
    tmp_path: Path, assembled: Callable[[str], Assembly]
) -> None:
    """So that what was reviewed is what is deployed: the CDK takes one `--app` and no more."""
    built = assembled("self-managed-to-msk")
    cdk.install()

    listed = subprocess.run(
        cdk.argv("list", "--app", str(built.folder)),
        env=cdk.environment(),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    ).stdout

    assert "mirrorless-state-eu-west-1" in listed.split()


def test_a_region_is_prepared_before_there_is_a_configuration(tmp_path: Path) -> None:
    """A newcomer's first command of the CDK: it would run the app, which has no replication.yaml yet."""
    cdk.install()

    done = subprocess.run(
        cdk.argv("bootstrap", "aws://111122223333/us-east-1"),
        env={"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "CDK_DISABLE_CLI_TELEMETRY": "true"},
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )

    assert "Need to perform AWS calls for account 111122223333" in done.stderr, done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What is in the repository, and nothing else: no git, no virtual environment; with what was built before."""
    cdk.install()
    tree = tmp_path / "tree"
    hidden = shutil.ignore_patterns(".*", "node_modules", "cdk.out", "tests", "lab")
    shutil.copytree(REPOSITORY, tree, ignore=hidden)
    (tree / "infra" / "node_modules").symlink_to((REPOSITORY / "infra" / "node_modules").resolve())
    (tree / ".bundles").symlink_to(wheels.CACHE.resolve())
    return tree


def test_synth_needs_no_credentials_no_network_and_no_git(
    tree: Path, tmp_path: Path, assembled: Callable[[str], Assembly]
) -> None:
    """As on a machine without a network: each way out leads to a closed port."""
    built = assembled("cross-account")  # its bundles are there now
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    closed = "http://127.0.0.1:9"
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), closed)
    environment = {
        **nowhere,
        "HOME": str(home),
        "PATH": "/nowhere",
        "PIP_INDEX_URL": f"{closed}/simple",
        "npm_config_registry": closed,
        "AWS_EC2_METADATA_DISABLED": "true",
        # What jsii unpacks from the CDK's wheel, which it would else do again for this home: seven seconds of CPU.
        "JSII_RUNTIME_PACKAGE_CACHE_ROOT": str(Path.home() / ".cache" / "aws" / "jsii" / "package-cache"),
        "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "shared")]),
    }

    done = subprocess.run(
        [sys.executable, "-m", "infra.cdk", "synth", "-q", "-c", "config=docs/examples/cross-account.yaml", "-o", out],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.name.removesuffix(".template.json") for path in out.glob("*.template.json")}
    assert names == set(built.templates)
    assert not (tree / ".git").exists()


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_is_deployed_is_as_it_was_frozen(example: str, assembled: Callable[[str], Assembly]) -> None:
    if changes := difference(name_of(example), text_of(assembled(example))):
        pytest.fail(changes, pytrace=False)


def test_every_frozen_template_is_of_an_example() -> None:
    assert written("templates") == sorted(map(name_of, EXAMPLES))


# Assets

PLATFORMS: dict[str, wheels.Platform] = {"arm64": "manylinux arm64", "x86_64": "manylinux x86_64"}


@pytest.mark.parametrize("example", ["long-tail", "aggregation"])  # arm64 and x86_64
def test_a_function_is_deployed_from_its_bundle_which_is_published_before(
    example: str, assembled: Callable[[str], Assembly]
) -> None:
    """The hash of an asset is the hash of the folder's contents: built twice, it is deployed once."""
    assembly, files = assembled(example), set()
    for function in assembly.resources("AWS::Lambda::Function"):
        properties = function.properties
        files.add(file := properties["Handler"].removesuffix(".handler"))
        key = properties["Code"]["S3Key"].removesuffix(".zip")
        manifest = json.loads((assembly.folder / f"{function.stack}.assets.json").read_text())
        source = manifest["files"][key]["source"]

        assert source["packaging"] == "zip"
        assert (assembly.folder / source["path"] / f"{file}.py").is_file()
        folder = bundle.build(file, platform=PLATFORMS[properties["Architectures"][0]])
        assert key == FileSystem.fingerprint(str(folder)), file
    assert files == set(bundle.names()) - (set() if example == "long-tail" else {"pull"})


def test_assets_for_this_machine_are_the_folder_that_the_lab_runs_and_an_archive_of_its_own() -> None:
    app = App(context={LOCAL: True})
    archive = spark_archive.environment(python=wheels.running_python())

    code = function_code(app, "forward", "arm64")

    assert isinstance(code, AssetCode)
    assert code.path == str(bundle.build("forward"))
    assert spark_artifacts(app, "arm64")["environment"] == archive


def test_templates_that_are_only_compared_have_one_code_whatever_python_writes_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "FUNCTIONS", tmp_path)

    def code_of() -> str:
        stack = Stack(App(context={HOLLOW: True, "aws:cdk:disable-asset-staging": True}), "one")
        location = function_code(stack, "forward", "arm64").bind(stack).s3_location
        assert location is not None
        return location.object_key

    (tmp_path / "forward.py").write_text("one")
    before = code_of()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "forward.pyc").write_text("compiled")

    assert code_of() == before
    (tmp_path / "forward.py").write_text("another")
    assert code_of() != before


# Names

NAMED = {
    *("TableName", "FunctionName", "RoleName", "BucketName", "LogGroupName", "AlarmName", "DashboardName"),
    *("Name", "TopicName", "PollerGroupName", "GroupName", "Namespace", "Path"),
}
"""Properties by which AWS finds a resource; a function is called by an ARN in a mapping."""


def names(value: Any) -> Iterator[str]:
    """Every name in a template that a deployment chose."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key in NAMED and isinstance(each, str) and not each.startswith(("AWS/", "arn:")):
                if each != ALIAS:
                    yield each
            elif key != "Dimensions":
                yield from names(each)
    elif isinstance(value, list):
        for each in value:
            yield from names(each)


def with_name(name: str, example: str = "long-tail") -> str:
    document = load_yaml(EXAMPLES[example].read_text())
    document.setdefault("deployment", {})["name"] = name
    document["deployment"]["permissions.boundary"] = f"{name}-boundary"
    document["deployment"].setdefault("alarms", {})["email"] = "on-call@example.com"
    return dump_yaml(document)


@pytest.fixture(scope="module")
def staging(tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    folder = tmp_path_factory.mktemp("staging")
    (config := folder / "staging.yaml").write_text(with_name("staging"))
    return assemble(config, folder / "out", **{HOLLOW: True})


def test_no_name_of_a_deployment_is_one_of_another(staging: Assembly, assembled: Callable[[str], Assembly]) -> None:
    def chosen(assembly: Assembly) -> set[str]:
        return {each for template in assembly.templates.values() for each in names(template["Resources"])}

    ours, theirs = chosen(assembled("long-tail")), chosen(staging)

    assert ours & theirs == set()
    assert len(theirs) > 30
    assert not {each for each in theirs if "staging" not in each}
    manifest = json.loads((staging.folder / "manifest.json").read_text())["artifacts"]
    stacks = [each["properties"] for each in manifest.values() if each["type"] == "aws:cloudformation:stack"]
    assert {each.get("stackName", "staging-").split("-")[0] for each in stacks} == {"staging"}


def test_every_role_has_the_deployments_boundary_and_metrics_its_name(staging: Assembly) -> None:
    roles = list(staging.resources("AWS::IAM::Role"))
    functions = [each.properties["Environment"]["Variables"] for each in staging.resources("AWS::Lambda::Function")]

    assert len(roles) > 5
    assert all(":policy/staging-boundary" in json.dumps(each.properties["PermissionsBoundary"]) for each in roles)
    assert {each["MIRRORLESS_NAMESPACE"] for each in functions} == {"Mirrorless/staging"}


def test_no_right_of_a_deployment_is_about_another(staging: Assembly) -> None:
    """But those in Kafka: two deployments between the same clusters need other aliases."""
    text = json.dumps([each.body for each in staging.resources("AWS::IAM::Policy")])

    assert {*re.findall(r"mirrorless-(\w+)", text)} <= {"look", "gaps", "job", "pull"}


@pytest.mark.parametrize("name", ["a", "Staging", "my-name", "x" * 21, "9lives", "awsmirror", "ssm1", "sthree"])
def test_a_name_that_aws_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"deployment\.name"):
        validated(with_name(name))


def test_a_stack_keeps_its_name_when_another_account_joins() -> None:
    """Its tables would be in no stack any more."""
    alone = load_yaml(EXAMPLES["active-passive"].read_text())
    region = "us-west-2"
    joined = load_yaml(EXAMPLES["active-passive"].read_text())
    joined["clusters"]["other"] = {
        "bootstrap.servers": ["b-1.example.com:9098"],
        "region": region,
        "account": "999988887777",
        "authentication": {"type": "iam"},
    }
    joined["flows"]["us-east->other"] = {"topics": ["orders"]}

    before, after = (validated(dump_yaml(each)) for each in (alone, joined))

    (place,) = before.states
    assert len([each for each in after.states if each.region == region]) == 2
    for kind in ("state", "spark", "standby"):
        assert before.stack_name(kind, place) == after.stack_name(kind, place) == f"mirrorless-{kind}-{region}"
        assert before.artifact_id(kind, place) == after.artifact_id(kind, place)
    ids = {after.artifact_id("state", each) for each in after.states}
    assert len(ids) == len(after.states)


def test_only_stacks_of_another_account_than_the_first_flows_have_it_in_their_ids() -> None:
    text = """
clusters:
  a: {bootstrap.servers: a:9092, region: us-east-1, account: "111122223333"}
  b: {bootstrap.servers: b:9092, region: us-east-1, account: "444455556666"}
flows:
  a->b: {topics: [orders], function: {run.in: source}}
  b->a: {topics: [bills], function: {run.in: source}}
"""
    deployment = plan(load(text))

    ids = [deployment.artifact_id("replication", flow.home) for flow in deployment.flows]

    assert ids == ["mirrorless-replication-us-east-1", "mirrorless-replication-us-east-1-444455556666"]


# Pages


def test_every_service_that_the_templates_use_stands_in_the_deployers_table(
    assembled: Callable[[str], Assembly],
) -> None:
    page = (REPOSITORY / "docs" / "how-to" / "deploy.md").read_text()
    listed = set(re.findall(r"^\| `(AWS::\w+::)` \|", page, re.MULTILINE))

    used = {re.sub(r"\w+$", "", r.type) for example in EXAMPLES for r in assembled(example).resources()}

    assert {service for service in used if service.startswith("AWS::")} <= listed


def test_every_example_stands_in_the_list_of_examples() -> None:
    page = (REPOSITORY / "docs" / "examples" / "README.md").read_text()

    assert set(re.findall(r"^\| \[[^]]*\]\(([\w./-]+\.yaml)\)", page, re.MULTILINE)) == {
        path.relative_to(REPOSITORY / "docs" / "examples").as_posix()
        if path.parent.name == "examples"
        else f"../../{path.name}"
        for path in EXAMPLES.values()
    }
