"""The deployment of a configuration: synthesis, the guard against what is deployed, then the CDK's command line.

    python -m infra.deploy replication.yaml                    all stacks
    python -m infra.deploy replication.yaml --stacks 'mirrorless-state-*' --accept LOGICAL_ID

What is deployed is read by the lookup role that `cdk bootstrap` made: templates, stacks that the configuration has no
longer, applications that would have to be stopped first, the networks that pollers, functions and jobs reach brokers
from, and quotas of the accounts. What the guard refuses is not deployed. Stacks that have left are deleted first,
whatever `--stacks` says; so are those whose creation failed.
Exit codes: 0 AWS has what the file says, changed or not; 1 AWS failed or refused, or its rights did not suffice;
2 the configuration or the command is wrong; 3 the guard refuses. With 2 and 3 nothing was changed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Collection, Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from infra import cdk
from infra.deployed import DeployedStack, Lookups, halted_findings, left_stacks, replications_elsewhere
from infra.deployment import Location
from infra.guard.change_rules import findings
from infra.guard.diff_guard import report
from infra.guard.flow_rules import doubled
from infra.guard.verdict import ChangeFinding, accepted, check_accepted
from infra.networks import Networks, network_findings
from infra.quotas import quota_findings
from infra.synth import REPOSITORY, NotSynthesized, SynthesizedStack, stacks_in, synth
from mirrorless.errors import ConfigurationError, MirrorlessError
from mirrorless.reports.format import visible_lines

FAILED: Final = 1
WRONG: Final = 2
REFUSED: Final = 3


def changes_of(
    stacks: Collection[SynthesizedStack],
    left: Collection[DeployedStack],
    accept: Collection[str],
    deployed: Lookups,
    never_made: Collection[tuple[str, Location]] = (),
) -> list[ChangeFinding]:
    """Compare stacks with what is deployed, and print what changes.

    Args:
        stacks: those of the configuration.
        left: those that are deployed and that it has no longer.
        accept: logical ids of refusals that are meant, and names of stacks.
        deployed: what AWS has.
        never_made: the name and the place of each of which it has a template that was never in force.

    Raises:
        Retriable: it cannot be read.
    """
    places = {each.id: each.place for each in stacks}
    made = [each for each in stacks if (each.name, each.place) not in never_made]
    old = {each.id: body for each in made if (body := deployed.template(each.name, each.place)) is not None}
    for each in left:
        known = {*places, *old}
        name = each.name if each.name not in known else f"{each.name}-{each.place.account}"
        old[name] = deployed.template(each.name, each.place) or {}
    if not old:
        print("nothing is deployed yet")
        return []
    new = {each.id: json.loads(each.template.read_text()) for each in stacks}
    found = accepted(findings(old, new, lambda each: deployed.application(each.name, places[each.stack])), accept)
    print(report(found, old, new), flush=True)
    return found


def judged(found: Iterable[ChangeFinding], accept: Collection[str]) -> list[ChangeFinding]:
    """Print what keeps connections or stacks from being made, or from replicating alone."""
    found = accepted(found, accept)
    for each in found:
        print(each)
    return found


def is_chosen(stack: str, patterns: Collection[str]) -> bool:
    """Whether patterns are about a stack, or there are none."""
    return not patterns or any(fnmatch(stack, each) for each in patterns)


def main() -> int:
    """Synthesize, compare, and deploy what nothing is refused of."""
    parser = argparse.ArgumentParser(prog="python -m infra.deploy", description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="replication.yaml")
    parser.add_argument("--stacks", nargs="*", default=[], metavar="PATTERN", help="some of the stacks; left out, all")
    parser.add_argument("--accept", nargs="*", default=[], metavar="LOGICAL_ID", help="a refusal that is meant")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "cdk.out", help="folder to write to")
    parser.add_argument(
        "--require-approval",
        choices=("never", "any-change", "broadening"),
        default="broadening",
        help="what the CDK asks a person about: rights that grow (broadening), all, or nothing, as in a pipeline",
    )
    given = parser.parse_args()
    try:
        cdk.install()
        deployment = synth(given.config, given.out)
        lookups = Lookups()
        stacks = list(stacks_in(given.out, deployment))
        left = left_stacks(deployment, [(each.name, each.place) for each in stacks], lookups)
        apart = [(each.name, each.place) for each in stacks if not is_chosen(each.id, given.stacks)]
        halted = list(halted_findings(left, lookups, apart=apart))
        found = changes_of(stacks, left.stacks, given.accept, lookups, left.never_made)
        known = [(each.name, each.place) for each in stacks] + [(each.name, each.place) for each in left.stacks]
        elsewhere, unread = replications_elsewhere(deployment, known, lookups)
        doubles = doubled({each.id: json.loads(each.template.read_text()) for each in stacks}, elsewhere)
        lacking = [*network_findings(deployment, Networks(lookups)), *quota_findings(deployment, lookups)]
        found += judged([*halted, *left.findings(), *unread, *doubles, *lacking], given.accept)
        check_accepted(found, given.accept)
        allowed = not any(each.refused for each in found)
        for each in left.to_be_removed if allowed else ():
            print(f"deleting the stack {each.name} in {each.place}: some minutes", flush=True)
            lookups.destroy(each)
    except MirrorlessError as error:
        print(visible_lines(f"deploy: {error}"), file=sys.stderr)
        return WRONG if isinstance(error, ConfigurationError | NotSynthesized) else FAILED
    if not allowed:
        print("deploy: nothing was deployed; the guard refuses what is named above", file=sys.stderr)
        return REFUSED
    if not stacks:
        print("no flow is enabled: there is nothing to deploy")
        return 0
    # Tables and a bucket that a flow left behind are taken back by their names; what does not exist is made.
    chosen = given.stacks or ["--all"]
    argv = cdk.argv("deploy", *chosen, "--import-existing-resources", "--app", str(given.out.resolve()))
    argv += ["--require-approval", given.require_approval]
    done = subprocess.run(argv, cwd=REPOSITORY, env=cdk.environment(), check=False)
    return FAILED if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
