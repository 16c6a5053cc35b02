"""Synthesis of configurations by the CDK, with lint of the templates and an inventory of their resources.

    python -m infra.synth replication.yaml        into cdk.out, which `cdk deploy --app cdk.out` takes as it is
    python -m infra.synth                         every example, each into cdk.out/<its name>

Needs no credentials, no network and no git once the bundles are built.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import cdk
from infra.deployment import Deployment, Location
from infra.validation import validated
from mirrorless.errors import MirrorlessError

REPOSITORY = Path(__file__).parent.parent
EXAMPLES = (
    REPOSITORY / "replication.example.yaml",
    *sorted((REPOSITORY / "docs" / "examples").glob("*.yaml")),
)
COUNTED = {
    "AWS::DynamoDB::GlobalTable": "tables",
    "AWS::Lambda::Function": "functions",
    "AWS::Lambda::EventSourceMapping": "mappings",
    "AWS::Scheduler::Schedule": "schedules",
    "AWS::EMRServerless::Application": "applications",
    "AWS::IAM::Role": "roles",
    "AWS::CloudWatch::Dashboard": "dashboards",
    "AWS::CloudWatch::Alarm": "alarms",
}
"""What is counted by its type; the rest is one number."""

IGNORED = "W3005"
"""A dependency that CloudFormation would have inferred: the CDK writes it out."""


class NotSynthesized(MirrorlessError):
    """Templates were not made, or are not sound."""


def synth(config: Path, out: Path) -> Deployment:
    """Synthesize a configuration into a folder, by the CDK's command line.

    Raises:
        ConfigurationError: the configuration is not valid.
        NotSynthesized: a rule is broken, or an asset cannot be built; the error names it.
    """
    deployment = validated(config)
    out.mkdir(parents=True, exist_ok=True)
    for former in (out / "validation-report.json", out / "manifest.json", *out.glob("*.template.json")):
        former.unlink(missing_ok=True)  # the CDK leaves the template of a stack that the app has no longer
    if not deployment.flows:  # the CDK takes an app without stacks for a mistake
        (out / "manifest.json").write_text(json.dumps({"artifacts": {}}))
        return deployment
    argv = cdk.argv("synth", "--quiet", "--context", f"config={config.resolve()}", "--output", str(out.resolve()))
    done = subprocess.run(argv, cwd=REPOSITORY, env=cdk.environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        output = "\n".join(violations(out)) or (done.stderr or done.stdout).strip()
        raise NotSynthesized(output, where=str(config), hint="correct it, or excuse it where it is made, with a reason")
    return deployment


def lint(templates: Iterable[Path], regions: Iterable[str]) -> None:
    """Hold templates to CloudFormation's resource schemas.

    Raises:
        NotSynthesized: a template breaks a rule.
    """
    command = Path(sys.executable).with_name("cfn-lint")
    argv = [str(command), "--ignore-checks", IGNORED, "--regions", *sorted(set(regions))]
    argv += ["--", *map(str, templates)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotSynthesized(done.stdout.strip() or done.stderr.strip(), where="cfn-lint", hint="correct the construct")


def violations(out: Path) -> Iterator[str]:
    """The broken rules in the CDK's report, one line for each place."""
    report = out / "validation-report.json"
    if not report.is_file():
        return
    for plugin in json.loads(report.read_text()).get("pluginReports", []):
        for violation in plugin.get("violations", []):
            for place in violation.get("violatingConstructs") or [{}]:
                yield f"{violation.get('ruleName')}: {place.get('constructPath', '')}: {violation.get('description')}"


@dataclass(frozen=True, slots=True)
class SynthesizedStack:
    """One stack of a folder.

    Attributes:
        id: what the CDK calls it.
        name: its name in its place.
        place: where it goes.
        template: the file.
    """

    id: str
    name: str
    place: Location
    template: Path


def stacks_in(out: Path, deployment: Deployment) -> Iterator[SynthesizedStack]:
    """The stacks of a folder, in the order in which they are deployed."""
    manifest: Mapping[str, Any] = json.loads((out / "manifest.json").read_text())["artifacts"]
    places = {str(place): place for place in deployment.places}
    for id_, artifact in manifest.items():
        if artifact["type"] == "aws:cloudformation:stack":
            properties = artifact["properties"]
            place = places[artifact["environment"].removeprefix("aws://")]
            yield SynthesizedStack(id_, properties.get("stackName", id_), place, out / properties["templateFile"])


def inventory(out: Path, deployment: Deployment) -> list[tuple[str, Location, str]]:
    """Each stack, where it goes and what is in it, in the order in which they are deployed."""
    return [
        (each.id, each.place, _contents(json.loads(each.template.read_text()))) for each in stacks_in(out, deployment)
    ]


def _contents(template: Mapping[str, Any]) -> str:
    types = Counter(resource["Type"] for resource in template.get("Resources", {}).values())
    counted = [f"{types[type_]} {name}" for type_, name in COUNTED.items() if types[type_]]
    others = sum(count for type_, count in types.items() if type_ not in COUNTED)
    return ", ".join([*counted, f"{others} others"])


def main() -> None:
    """Synthesize, lint, and print what was made."""
    parser = argparse.ArgumentParser(prog="python -m infra.synth", description="Synthesize configurations.")
    parser.add_argument("config", nargs="?", type=Path, help="replication.yaml; left out, every example")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "cdk.out", help="folder to write to")
    given = parser.parse_args()
    wanted = {given.config: given.out} if given.config else {each: given.out / each.stem for each in EXAMPLES}
    try:
        cdk.install()
        for config, out in wanted.items():
            deployment = synth(config, out)
            stacks = inventory(out, deployment)
            if stacks:
                lint((out / f"{name}.template.json" for name, _, _ in stacks), (place.region for _, place, _ in stacks))
            print(f"{config} -> {out}" if stacks else f"{config}: no flow is enabled, and there are no stacks")
            width = max((len(name) for name, _, _ in stacks), default=0)
            for name, place, contents in stacks:
                print(f"  {name:<{width}}  {place}  {contents}", flush=True)
    except MirrorlessError as error:
        sys.exit(f"synth: {error}")


if __name__ == "__main__":
    main()
