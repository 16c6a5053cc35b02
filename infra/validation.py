"""The one validation of a configuration that is to be deployed: for the command, synthesis and deployment alike.

AWS's limits on what it deploys are counted before anything is made. Each count is an upper bound: a test holds those of
resources to the templates of the examples.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, get_args

from infra.deployment import Deployment, plan
from infra.iam import Part, are_too_many, characters, divided
from infra.iam.kafka_names import fewest_prefixes
from infra.iam.statements import rights_of
from mirrorless.config.loading import examine
from mirrorless.config.problems import InvalidConfiguration, Problem
from mirrorless.flow.naming import PULL, STANDBY
from mirrorless.scheduled.functions import LONGEST_INPUT

if TYPE_CHECKING:
    from pathlib import Path

    from infra.deployment import FlowDeployment, Location


def validated(source: Path | str) -> Deployment:
    """The plan of a configuration. Args: source: a file, or the text itself with a line break.

    Raises:
        InvalidConfiguration: with everything that is wrong: values, what a deployment needs, what AWS would refuse.
        ConfigurationError: the file cannot be read.
    """
    found = examine(source, trial=True)
    if found.configuration is None:
        raise found.as_error()
    try:
        deployment = plan(found.configuration)
    except InvalidConfiguration as exc:
        raise found.with_problems(exc.problems).as_error() from None
    found = found.with_problems(limit_problems(deployment))
    if found.problems:
        raise found.as_error()
    return deployment


RESOURCES: Final = 500
"""Resources of a stack (https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cloudformation-limits.html)."""

TABLE_WRITES: Final = 40_000
"""Write units a second of a table on demand, unless the account asked for more."""

NEW_TABLE_WRITES: Final = 4_000
"""Write units a second of a table that is new, or was never busier.
(https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/ServiceQuotas.html)"""

MOST_STACKS: Final = 32
"""The largest value of `mapping.stacks`."""

_PREFIXES: Final = 30
"""Beginnings of names that are proposed, at most."""

_STORAGE: Final = 2_400
"""Characters of the rights that jobs have beside Kafka, tables and secrets: files, logs, a key."""

_OF_STACK: Final = {"replication": 6, "control": 1, "monitoring": 3, "pull": 10, "standby": 10, "state": 2, "spark": 4}
"""Resources of a stack whatever its flows: a group of schedules, a topic of alarms, endpoints of a VPC, the bucket."""

_OF_FLOW: Final = {
    "replication": 6,
    "control": 25,
    "monitoring": 18,
    "pull": 20,
    "standby": 16,
    "state": 6,
    "spark": 6,
}
"""Resources of a flow in a stack, apart from mappings and managed policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCounts:
    """What a flow brings, of that which AWS limits.

    Attributes:
        mappings: of literal topics, in templates.
        input_bytes: of the longest input of its schedules.
        policies: of the role that has most: the inline one and the managed ones.
        policy_characters: of that role's rights.
        part: whose role that is.
    """

    mappings: int
    input_bytes: int
    policies: int
    policy_characters: int
    part: Part


def flow_counts(deployment: Deployment, flow: FlowDeployment) -> FlowCounts:
    """Count what a flow brings."""
    most = {part: rights_of(deployment, flow, part) for part in get_args(Part) if flow.has(part)}
    part = max(most, key=lambda each: sum(map(characters, most[each])))
    return FlowCounts(
        mappings=len(flow.flow.template_topics),
        input_bytes=flow.longest_input(),
        policies=len(divided(most[part], reserved=_reserved(part))),
        policy_characters=sum(map(characters, most[part])) + _reserved(part),
        part=part,
    )


def stack_sizes(deployment: Deployment) -> dict[tuple[str, Location], int]:
    """The resources of each stack, at most, by its kind and place."""
    sizes: Counter[tuple[str, Location]] = Counter()
    stacks = deployment.settings.mapping_stacks
    for flow in deployment.flows:
        kinds = {"replication": flow.home, "control": flow.home, "monitoring": flow.home, "state": flow.state}
        kinds |= {"pull": flow.pull} if flow.pull else {}
        kinds |= {"standby": flow.state} if flow.has(STANDBY) else {}
        kinds |= {"spark": flow.jobs} if deployment.settings.spark.enabled else {}
        for kind, place in kinds.items():
            sizes[kind, place] += _OF_FLOW[kind] + (0 if sizes[kind, place] else _OF_STACK[kind])
        if deployment.settings.spark.enabled and not sizes["state", flow.jobs]:
            sizes["state", flow.jobs] = _OF_STACK["state"]  # the bucket alone
        if flow.has(PULL) and flow.pull:
            sizes["pull", flow.pull] += flow.flow.settings.schedule.shards
        for part, kind in _STACK_OF.items():
            if flow.has(part) and (kind != "spark" or deployment.settings.spark.enabled):
                managed = len(divided(rights_of(deployment, flow, part), reserved=_reserved(part))) - 1
                sizes[kind, flow.place_of(part)] += managed
        for number in range(stacks):
            kind = f"mappings-{number}" if number else "replication"
            sizes[kind, flow.home] += len(deployment.topics_of_stack(flow, number))
    return dict(sizes)


def limit_problems(deployment: Deployment) -> Iterator[Problem]:
    """What AWS would refuse."""
    for flow in deployment.flows:
        yield from _long_input(flow)
        yield from _too_many_rights(deployment, flow)
    yield from _too_large_stacks(deployment)


_STACK_OF: Final[dict[Part, str]] = {
    "forward": "replication",
    "control": "control",
    "refresh_topics": "control",
    "remove_mappings": "control",
    "pull": "pull",
    "standby": "standby",
    "jobs": "spark",
}
"""The kind of stack that a part's role is in."""


def _reserved(part: Part) -> int:
    return _STORAGE if part == "jobs" else 0


def _long_input(flow: FlowDeployment) -> Iterator[Problem]:
    if (length := flow.longest_input()) > LONGEST_INPUT:
        what = f"its scheduled functions' settings have {length:,} bytes, and a schedule's input has {LONGEST_INPUT:,}"
        hint = "name topics and groups by patterns, or divide them among two flows with an alias of the source each"
        yield Problem(path=("flows", flow.name, "topics"), what=what, hint=hint)


def _too_many_rights(deployment: Deployment, flow: FlowDeployment) -> Iterator[Problem]:
    """A role that names more topics and groups than its policies can hold: it is refused, and never widened."""
    left_out = () if deployment.settings.spark.enabled else ("jobs",)

    def refused(wanted: FlowDeployment) -> Part | None:
        parts = (part for part in get_args(Part) if wanted.has(part) and part not in left_out)
        of = {part: divided(rights_of(deployment, wanted, part), reserved=_reserved(part)) for part in parts}
        return next((part for part, policies in of.items() if are_too_many(policies)), None)

    if (part := refused(flow)) is None:
        return
    what = f"the role of `{part}` would name more topics and groups one by one than IAM's policies of a role hold"
    choices = list(fewest_prefixes(flow.flow.literal_topics))
    # They become fewer and wider, so the rights become less.
    enough = bisect_left(choices, 1, key=lambda found: refused(flow.with_prefixes(found)) is None)
    prefixes = next((few for few in choices[enough:] if len(few) <= _PREFIXES), ())
    hint = "name groups by patterns, or divide topics and groups among two flows with an alias of the source each"
    if prefixes:
        hint = f"write `topics.rights.prefixes: [{', '.join(map(repr, prefixes))}]`, which widens the roles to all "
        hint += "topics that begin so; or divide the topics among two flows with an alias of the source each"
    yield Problem(path=("flows", flow.name, "topics"), what=what, hint=hint)


def _too_large_stacks(deployment: Deployment) -> Iterator[Problem]:
    sizes = stack_sizes(deployment)
    for (kind, place), size in sorted(sizes.items()):
        if size <= RESOURCES:
            continue
        name = deployment.stack_name(kind, place)
        what = f"{name} would have {size:,} resources, and CloudFormation takes {RESOURCES} in a stack"
        if kind == "replication" or kind.startswith("mappings-"):
            if enough := _enough_stacks(deployment):
                yield Problem(
                    path=("deployment", "mapping.stacks"), what=what, hint=f"write `mapping.stacks: {enough}`"
                )
                return
            hint = "name topics by patterns: the mappings of found topics are in no stack"
        else:
            hint = "deploy some of the flows by a file of their own, with another `deployment: {name: …}`"
        yield Problem(path=("flows",), what=what, hint=hint)


def _enough_stacks(deployment: Deployment) -> int | None:
    """The fewest stacks among which the mappings fit; None where no number is enough."""
    stacks: int = deployment.settings.mapping_stacks
    while (stacks := stacks * 2) <= MOST_STACKS:
        sizes = stack_sizes(deployment.with_mapping_stacks(stacks))
        if all(size <= RESOURCES for (kind, _), size in sizes.items() if kind.startswith(("replication", "mappings"))):
            return stacks
    return None
