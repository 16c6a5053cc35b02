"""Templates are made from the tree alone, by the command line that deploys them; CloudFormation accepts each word."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra import cdk, synth
from infra.packaging import wheels
from infra.synth import cases
from infra.validation import validated
from tests.frozen.golden import difference, written
from tests.frozen.templates import name_of, text_of
from tests.support.assembly import EXAMPLES, REPOSITORY, Assembly


def test_make_synth_without_a_configuration_takes_every_example() -> None:
    assert set(synth.EXAMPLES) == set(EXAMPLES.values())


def test_a_second_deployment_and_two_thousand_topics_are_synthesized_with_the_examples() -> None:
    """Their templates are linted by `make synth` alone: a minute."""
    found = {name: validated(text) for name, text in cases(synth.EXAMPLES[0]).items()}

    assert sum(len(flow.flow.template_topics) for flow in found["many-topics"].flows) == 2_000
    assert {flow.flow.deployment for flow in found["second-deployment"].flows} == {"second"}


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
