"""What AWS would refuse is found before anything is made: each number at its edge."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from cli.forecast import throttled
from infra import validation as limits
from infra.iam import ATTACHED, INLINE, MANAGED, Right, are_too_many, divided
from infra.iam.kafka_names import fewest_prefixes
from infra.validation import flow_counts, stack_sizes, validated
from mirrorless.config import InvalidConfiguration
from tests.support.assembly import EXAMPLES, Assembly
from tests.support.yaml_text import dump_yaml, load_yaml

UNLIKE = tuple(f"{number * 7919 % 2000:04}-of-team-{number % 7}" for number in range(2_000))
"""Names that begin as unlike as names can."""


def many_topics(
    *,
    topics: Sequence[str],
    mode: str = "provisioned",
    stacks: int = 1,
    iam: bool = False,
    keys: Mapping[str, Any] | None = None,
    cluster: Mapping[str, Any] | None = None,
    deployment: Mapping[str, Any] | None = None,
) -> str:
    """The text of a configuration.

    Args:
        topics: of the flow.
        mode: of its mappings.
        stacks: `mapping.stacks`.
        iam: whether its clusters authenticate by IAM, otherwise by secrets.
        keys: more of the flow.
        cluster: more of the source.
        deployment: more of the deployment.
    """
    document = load_yaml(EXAMPLES["active-passive" if iam else "active-active"].read_text())
    name = next(iter(document["flows"]))
    document["defaults"] = {"mapping": {"mode": mode}}
    document["flows"] = {name: {"topics": list(topics), "heartbeats.replication.enabled": not iam, **(keys or {})}}
    document["clusters"][name.split("->")[0]] |= cluster or {}
    document["deployment"] = {"mapping.stacks": stacks, **(deployment or {})}
    return dump_yaml(document)


Refused = Callable[..., str]


@pytest.fixture
def refused() -> Refused:
    """The problems of a configuration with so many topics."""

    def of(**given: Any) -> str:
        with pytest.raises(InvalidConfiguration) as caught:
            validated(many_topics(**given))
        return str(caught.value)

    return of


# Policies


def written(policy: list[Right]) -> str:
    statements = [right.written() for right in policy]
    return json.dumps({"Statement": statements, "Version": "2012-10-17"}, separators=(",", ":"))


def topics_right(count: int) -> Right:
    return Right(actions=("kafka-cluster:ReadData",), resources=tuple(f"arn:topic/{each:030}" for each in range(count)))


def test_rights_are_divided_among_policies_none_of_which_iam_refuses_and_none_is_lost() -> None:
    rights = [topics_right(count) for count in (3, 900, 1, 70)]

    inline, *managed = divided(rights)

    assert len(written(inline)) <= INLINE
    assert max(len(written(each)) for each in managed) <= MANAGED
    # No policy is added while the one before it has room for another topic.
    assert min(len(written(each)) for each in managed[:-1]) > MANAGED - 50
    granted = Counter(arn for policy in (inline, *managed) for right in policy for arn in right.resources)
    assert granted == Counter(arn for right in rights for arn in right.resources)


def test_a_role_has_one_inline_policy_and_ten_managed_ones_at_most() -> None:
    most = bisect_left(range(5_000), True, key=lambda count: are_too_many(divided([topics_right(count)]))) - 1  # noqa: FBT003 -- what is looked for

    assert len(divided([topics_right(most)])) == 1 + ATTACHED
    assert INLINE + ATTACHED * MANAGED - most * len(f'"arn:topic/{0:030}",') < 2_500


def test_topics_that_no_role_can_name_are_refused_with_the_beginnings_that_could(refused: Refused) -> None:
    said = refused(topics=sorted(UNLIKE)[:200], iam=True)

    assert "the role of `jobs` would name more topics" in said
    assert "topics.rights.prefixes: ['000', '001'" in said
    assert "divide the topics among two flows" in said


def test_topics_without_common_beginnings_are_refused_rather_than_widened_to_all(refused: Refused) -> None:
    said = refused(topics=UNLIKE[:200], iam=True)

    assert "divide topics and groups among two flows" in said
    assert "prefixes" not in said


def test_the_beginnings_that_are_proposed_are_enough() -> None:
    prefixes = [f"{number:03}" for number in range(20)]

    deployment = validated(
        many_topics(topics=sorted(UNLIKE)[:200], iam=True, keys={"topics.rights.prefixes": prefixes})
    )

    assert flow_counts(deployment, deployment.flows[0]).policies <= 1 + ATTACHED


def test_names_without_a_common_beginning_are_not_drawn_together() -> None:
    assert list(fewest_prefixes(["orders-eu", "orders-us", "payments"])) == [("orders-",)]
    assert list(fewest_prefixes(["a-1-x", "a-1-y", "a-2"])) == [("a-1-",)]
    assert list(fewest_prefixes(["ab", "ac", "b"])) == []


# Stacks


@pytest.mark.parametrize("mode", ["provisioned", "on-demand"])
def test_a_stack_has_five_hundred_resources_at_most(mode: str, refused: Refused) -> None:
    most = 488
    deployment = validated(many_topics(topics=UNLIKE[:most], mode=mode))
    assert max(stack_sizes(deployment).values()) == limits.RESOURCES

    said = refused(topics=UNLIKE[: most + 1], mode=mode)

    assert "mirrorless-replication-us-east-1 would have 50" in said
    assert "write `mapping.stacks: 2`" in said


def test_two_thousand_topics_fit_in_as_many_stacks_as_are_asked_for(refused: Refused) -> None:
    topics = [f"team-{number % 20:02}.event-{number}" for number in range(2_000)]

    said = refused(topics=topics, stacks=4)
    assert "write `mapping.stacks: 8`" in said
    assert said.count("What to do") == 1

    deployment = validated(many_topics(topics=topics, stacks=8))
    flow = deployment.flows[0]
    mapped = [topic for number in range(8) for topic in deployment.topics_of_stack(flow, number)]
    assert sorted(mapped) == sorted(topics)


def test_a_topic_never_moves_to_a_stack_that_is_deployed_before_its_own() -> None:
    """The new mapping would be made while the old one is there."""
    small = validated(many_topics(topics=UNLIKE[:100]))

    def stack_of(stacks: int) -> dict[str, int]:
        deployment, flow = small.with_mapping_stacks(stacks), small.flows[0]
        return {topic: number for number in range(stacks) for topic in deployment.topics_of_stack(flow, number)}

    before = stack_of(1)
    for stacks in (2, 4, 8, 16, 32):
        after = stack_of(stacks)
        assert all(after[topic] in {number, number + stacks // 2} for topic, number in before.items())
        before = after


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_stack_has_more_resources_than_are_counted(example: str, assembled: Callable[[str], Assembly]) -> None:
    built = assembled(example)

    counted = {built.deployment.artifact_id(*which): size for which, size in stack_sizes(built.deployment).items()}

    actual = {name: len(template["Resources"]) for name, template in built.templates.items()}
    assert actual.keys() == counted.keys()
    assert not {name: (size, counted[name]) for name, size in actual.items() if size > counted[name]}
    # And not so many more that flows are refused which CloudFormation would take.
    assert not {name: (size, counted[name]) for name, size in actual.items() if counted[name] > 2 * size + 12}


# Schedules


@pytest.mark.parametrize("keys", [{}, {"trigger": "schedule"}])
def test_settings_that_no_schedule_can_carry_are_refused(
    keys: dict[str, str], monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """An input holds all topics; that of `pull` is the longest where there is one."""
    deployment = validated(many_topics(topics=UNLIKE[:10], keys=keys))
    length = flow_counts(deployment, deployment.flows[0]).input_bytes

    monkeypatch.setattr(limits, "LONGEST_INPUT", length)
    validated(many_topics(topics=UNLIKE[:10], keys=keys))
    monkeypatch.setattr(limits, "LONGEST_INPUT", length - 1)
    assert "a schedule's input has" in refused(topics=UNLIKE[:10], keys=keys)


def test_topics_that_fill_the_input_of_a_schedule_are_refused(refused: Refused) -> None:
    """256 KB, and not a byte more."""
    names = [f"{number:04}{'x' * 180}" for number in range(1_450)]

    said = refused(topics=names, mode="on-demand", stacks=4)

    assert "and a schedule's input has 262,144" in said


# Tables


@pytest.mark.parametrize(
    ("writes", "said"), [(4_000, ""), (4_001, "a new table takes 4,000"), (40_000, "a new table"), (40_001, "40,000")]
)
def test_write_units_that_a_table_does_not_take_are_said(writes: int, said: str) -> None:
    assert said in "".join(throttled(writes))
    assert bool(said) == bool(throttled(writes))


# All at once


def test_everything_that_is_wrong_is_said_at_once(refused: Refused) -> None:
    """A value that does not fit, values that do not go together, and what a deployment lacks, none hides another."""
    said = refused(
        topics=UNLIKE[:3],
        keys={"replication.factor": 0, "mapping": {"minimum.pollers": 9, "maximum.pollers": 3}, "start": "backfill"},
        cluster={"region": "us-west-1", "authentication": {"type": "scram", "secret": "AmazonMSK_x"}},
        deployment={"spark": {"enabled": False}, "alarms": {"topic.arns": ["on-call"], "email": "on-call@example.com"}},
    )

    for problem in (
        "0 replicas cannot hold a record",
        "9 pollers at least are more than the 3 at most",
        "'us-west-1' is not what `msk.cluster.arn` says",
        "MSK takes only secrets under a key of one's own",
        "begins with a Spark job, and there are to be none",
        "on-call is not the ARN of an SNS topic",
    ):
        assert problem in said, said
    assert said.startswith("replication.yaml: 6 problems")
