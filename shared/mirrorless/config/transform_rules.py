"""Rules on `keys` and `transforms`: what they name must be there, decide something, and work at the source."""

from __future__ import annotations

import base64
import binascii
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path as File
from typing import TYPE_CHECKING, Final

import msgspec

from mirrorless.config.authentication_rules import problems_with_secret_arns
from mirrorless.config.problems import FlowPaths, Path, Problem
from mirrorless.errors import ConfigurationError
from mirrorless.flow.filters import NameFilter, is_literal
from mirrorless.flow.policy import HEARTBEATS_TOPIC
from mirrorless.transforms.rules import Mask

if TYPE_CHECKING:
    from mirrorless.config.cluster import Cluster
    from mirrorless.config.flow import Flow
    from mirrorless.config.schema import KeySection
    from mirrorless.transforms.rules import Action, Rule
    from mirrorless.transforms.trial import TrialAnswer


def problems_with_keys(keys: Mapping[str, KeySection]) -> Iterator[Problem]:
    """Find keys without a place, or without the version in use."""
    for name, key in keys.items():
        path: Path = ("keys", name)
        yield from problems_with_secret_arns(path, {"secret": key.secret})
        if (key.secret is None) == (key.kms_key_arn is None) or bool(key.data_keys) != bool(key.kms_key_arn):
            what = "a key is in a secret, or it is `data.keys` and what opens them"
            hint = "write `secret: NAME` alone, or `kms.key.arn: ARN` with `data.keys: {'1': BASE64}`"
            yield Problem(path=path, what=what, hint=hint)
            continue
        for version, text in key.data_keys.items():
            if not version.isdecimal() or not _is_base64(text):
                what = "a data key is written as its version, a number, with the base64 text that KMS gave"
                yield Problem(path=(*path, "data.keys", version), what=what, hint="write `'1': AQIDAH…`")
        if key.data_keys and str(key.version) not in key.data_keys:
            what = f"version {key.version} is in use, and `data.keys` has {', '.join(key.data_keys)}"
            yield Problem(path=(*path, "version"), what=what, hint="add the data key, or write a version that is there")


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except binascii.Error:
        return False


def problems_with_registry(cluster: Cluster) -> Iterator[Problem]:
    """Find a registry without an address, with more than it takes, or whose password could be read on its way."""
    registry = cluster.schema_registry
    if registry is None:
        return
    path: Path = ("clusters", cluster.alias, "schema.registry")
    yield from problems_with_secret_arns(path, {"secret": registry.secret, "ca": registry.ca})
    if registry.type == "glue":
        for key, value in (("url", registry.url), ("secret", registry.secret), ("ca", registry.ca)):
            if value:
                what = "AWS Glue is asked by the role of whoever asks, in the cluster's region"
                yield Problem(path=(*path, key), what=what, hint="remove it, or write `type: confluent`")
    elif registry.url is None:
        what = "nothing says where the registry is"
        yield Problem(path=path, what=what, hint="add `url: https://…`; or write `type: glue` for AWS Glue's")
    elif registry.secret and not registry.url.startswith("https:"):
        what = "the password would be readable on its way"
        yield Problem(path=(*path, "url"), what=what, hint="write an https:// address, or remove `secret`")


def problems_with_rules(flow: Flow, paths: FlowPaths) -> Iterator[Problem]:
    """Find rules that cannot be applied, and what a flow with rules may not do."""
    if not flow.rules:
        return
    path = paths.of(flow, "transforms")
    for number, rule in enumerate(flow.rules):
        for where, name in _named_keys(rule):
            if name not in flow.keys:
                known = f"write one of {', '.join(sorted(flow.keys))}" if flow.keys else "add it"
                hint = f"{known} under `keys`, at the top of the document"
                yield Problem(path=(*path, number, *where), what=f"there is no key {name!r}", hint=hint)
        yield from _wrong_by_itself(rule, (*path, number))
        if rule.format == "avro" and flow.registry is None:
            what = f"nothing says where the schemas of records of {flow.name.source} are"
            hint = f"add `schema.registry: {{url: https://…}}` to the cluster `{flow.name.source}`, or `{{type: glue}}`"
            yield Problem(path=(*path, number, "format"), what=what, hint=hint)
        for index, entry in enumerate(rule.topics):
            if topic := _like_heartbeats(flow, entry):
                what = f"no rule holds for {topic!r}: by its name its records are heartbeats, and copied as they are"
                hint = "name it in no rule; where its records are others, rename the topic"
                yield Problem(path=(*path, number, "topics", index), what=what, hint=hint)
    yield from _out_of_reach(flow)
    yield from _across_the_border(flow, paths)


def _like_heartbeats(flow: Flow, entry: str) -> str | None:
    """A topic that the flow names and the entry matches, and that no rule holds for; the flow's own by name only."""
    separator, settings = flow.settings.replication_policy_separator, flow.all_settings()
    prefixed = {f"{prefix}{separator}{HEARTBEATS_TOPIC}" for prefix in flow.prefixes.values()}
    ours = set() if is_literal(entry) else {HEARTBEATS_TOPIC, *prefixed}
    named = (topic for topic in flow.literal_topics if NameFilter(include=(entry,)).accepts(topic))
    return next((topic for topic in named if topic not in ours and settings.rule_of(topic) is None), None)


def _wrong_by_itself(rule: Rule, path: Path) -> Iterator[Problem]:
    from mirrorless.transforms.transform import check_rule  # noqa: PLC0415 -- flows without rules need no JMESPath

    try:
        check_rule(rule)
    except ConfigurationError as exc:
        yield Problem(path=(*path, *exc.where.split(": ", 1)), what=exc.what, hint=exc.hint)


TRIALS: Final = ("1", "2")
"""Seeds of hashes: each process orders its sets in another way."""

TRIAL_SECONDS: Final = 60.0
"""Of one trial; an import that takes longer would take the time of an invocation."""


def problems_with_functions(flow: Flow, paths: FlowPaths, folder: File) -> Iterator[Problem]:
    """Find functions of the operator's own that cannot be used, or do not do the same each time.

    A batch that is tried again, and a proof of it later, must see the same bytes.
    """
    for number, rule in enumerate(flow.rules):
        if not rule.function:
            continue
        place = (*paths.of(flow, "transforms"), number, "function")
        answers = [_trial(rule, folder, seed) for seed in TRIALS]
        if error := next((each.error for each in answers if each.error), ""):
            hint = f"put its module into {folder}, with what it imports, and let it take a record and return one"
            yield Problem(path=place, what=error, hint=hint)
        elif len({tuple(results) for each in answers for results in each.rounds}) > 1:
            what = f"{rule.function} gave different results for the same record"
            hint = "let it use nothing but the record: no clock, no chance, no counter, no order of a set"
            yield Problem(path=place, what=what, hint=hint)


def _trial(rule: Rule, folder: File, seed: str) -> TrialAnswer:
    from mirrorless.transforms import trial  # noqa: PLC0415 -- flows without functions need it not

    command = [sys.executable, "-m", trial.__name__, str(folder), msgspec.json.encode(rule).decode()]
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
            timeout=TRIAL_SECONDS,
        )
        return msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=trial.TrialAnswer)
    except subprocess.TimeoutExpired:
        return trial.TrialAnswer(error=f"{rule.function} took more than {TRIAL_SECONDS:g} s for some records")
    except msgspec.DecodeError:
        last = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        return trial.TrialAnswer(error=f"{rule.function} ended its process: {last}")


def _named_keys(rule: Rule) -> Iterator[tuple[Path, str]]:
    """The names of keys, each with its place in the rule."""
    actions: list[tuple[Path, Action | None]] = [(("value",), rule.value), (("key",), rule.key)]
    actions += [(("fields", path), action) for path, action in rule.fields.items()]
    actions += [(("headers", name), action) for name, action in rule.headers.items()]
    for place, action in actions:
        if isinstance(action, Mask) and (name := action.hmac or action.encrypt):
            yield place, name


def _out_of_reach(flow: Flow) -> Iterator[Problem]:
    """Find keys, and secrets of the registry, in another region than the source's.

    Beside the copies, keys would open them; and rules are applied at the source.
    """
    region = flow.source.region
    for field in ("secret", "ca"):
        arn = getattr(flow.registry, field, None) or ""
        if region and arn.startswith("arn:") and (there := arn.split(":")[3]) != region:
            what = f"the secret is in {there}, and the rules of {flow.name} are applied in {region}"
            path: Path = ("clusters", flow.name.source, "schema.registry", field)
            yield Problem(path=path, what=what, hint=f"write its name alone and replicate it to {region}")
    for name, key in flow.keys_of_rules.items():
        field, arn = ("kms.key.arn", key.kms_key_arn) if key.kms_key_arn else ("secret", key.secret or "")
        if region and arn.startswith("arn:") and (there := arn.split(":")[3]) != region:
            what = f"the key is in {there}, and records of {flow.name} are masked in {region}"
            hint = f"name one in {region}; of a multi-region key or a replicated secret, the one there"
            yield Problem(path=("keys", name, field), what=what, hint=hint)


def _across_the_border(flow: Flow, paths: FlowPaths) -> Iterator[Problem]:
    """Find what would bring records as they are to the target's region, or masked ones back to the source."""
    for section, run_in in (("function", flow.settings.function.run_in), ("schedule", flow.settings.schedule.run_in)):
        if run_in == "target":
            what = f"records of {flow.name} would be masked in the target's region, and arrive there as they are"
            hint = "remove it, or write `run.in: source`; or remove `transforms`"
            yield Problem(path=paths.of(flow, section, "run.in"), what=what, hint=hint)
    if flow.settings.loop_prevention:
        what = f"what `transforms` leave out is nowhere on {flow.name.target}: nothing may come back from there"
        hint = "remove it, and let no other flow bring these topics back; or remove `transforms`"
        yield Problem(path=paths.of(flow, "loop.prevention"), what=what, hint=hint)
