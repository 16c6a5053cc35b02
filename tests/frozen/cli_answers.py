"""The `--json` answer of every command of `mirrorless`, on a small flow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from cli.jobs.emr import _more
from cli.main import main
from mirrorless.adapters.aws.emr_serverless import JobRunThere
from mirrorless.jobs.progress import JobProgress
from mirrorless.jobs.submission import Submission
from tests.frozen.key_tree import tree
from tests.frozen.small_flow import FLOW, small_flow

LANE = (str(FLOW), "orders")
LOCAL = ("--local", "--folder", "jobs")

ANSWERS: dict[str, Sequence[Sequence[str]]] = {
    "error": [["status", "us-east->mars"]],
    "config-check": [["config", "check", "replication.yaml"], ["config", "check", "wrong.yaml"]],
    "status": [["status"]],
    "translate": [
        ["translate", *LANE, "0", "3"],
        ["translate", str(FLOW), "us-east.orders", "0", "102", "--reverse"],
        ["translate", *LANE, "3", "3"],
    ],
    "losses": [["losses"]],
    "groups": [["groups", str(FLOW)], ["groups", "silent->eu-west"], ["groups", str(FLOW), "--group", "shop"]],
    "topics": [["topics", str(FLOW)], ["topics", "silent->eu-west"]],
    "plan": [["plan", str(FLOW), "--rates", "rates.csv"], ["plan", str(FLOW), "--rates", "small.csv"]],
    "acl-plan": [["acl", "plan", str(FLOW)]],
    "acl-apply": [["acl", "apply", str(FLOW)], ["acl", "apply", str(FLOW), "--execute"]],
    "acl-apply-failover": [["acl", "apply", str(FLOW), "--failover", "--execute"]],
    "acl-revoke-failover": [["acl", "revoke", str(FLOW), "--failover"]],
    "flow-pause": [["flow", "pause", str(FLOW)]],
    "flow-resume": [["flow", "resume", str(FLOW)]],
    "failover": [["failover", str(FLOW), "--drill"]],
    "lanes-stopped": [["lanes", "stopped"]],
    "lanes-hold": [["lanes", "hold", *LANE, "2", "--execute"], ["lanes", "hold", *LANE, "1"]],
    "lanes-hold-many": [["lanes", "hold", *LANE]],
    "lanes-resume": [["lanes", "resume", *LANE, "1"]],
    "lanes-resume-many": [["lanes", "resume", *LANE]],
    "lanes-release": [["lanes", "release", *LANE, "2"]],
    "lanes-release-many": [["lanes", "release", *LANE]],
    "lanes-quarantine": [["lanes", "quarantine", *LANE, "1", "10"]],
    "lanes-reset": [["lanes", "reset", *LANE, "1", "--to", "15", "--reason", "because"]],
    "job-dry-run": [[kind, "start", *LANE, *LOCAL, "--dry-run"] for kind in ("verify", "reconcile")],
    "job-start": [["verify", "start", *LANE, *LOCAL]],
    "job-list": [["verify", "list", *LOCAL]],
}
"""The commands of each golden file, in this order: a lane that is held stays held."""


RUN: Sequence[tuple[str, Any]] = [("progress", JobProgress | None), ("clean", bool | None)]
"""What a run says or does not say, depending on how soon it is looked at."""


class ShownFinding(msgspec.Struct):
    """A finding of a dry run."""

    severity: str
    text: str
    where: str


class ShownBytes(msgspec.Struct):
    """The size of a lane, or of all, in a dry run; null where it is not known."""

    bytes: int | None


TYPES: Mapping[str, Sequence[tuple[str, Any]]] = {
    "job-dry-run": [("", ShownBytes), ("findings[]", ShownFinding), ("lanes[]", ShownBytes)],
    "job-start": RUN,
    "job-list": [(f"runs[].{path}", type_) for path, type_ in RUN],
    "job-follow": RUN,
    "job-cancel": RUN,
}
"""What stands somewhere below an answer, where a small flow has not all of it."""

THERE = JobRunThere(job_run_id="1", name="verify-1", state="SUCCESS", vcpu_hours=1.0, gb_hours=1.0)
SUBMISSION = Submission(application_id="1", role_arn="", bucket="", prefix="", jobs={}, confs={}, log_group="x")


def texts() -> dict[str, str]:
    """The key tree of each answer, by the golden file's name."""
    found = {}
    with TemporaryDirectory() as folder, small_flow(Path(folder)):
        Path("wrong.yaml").write_text("flows: 1")
        for name, commands in ANSWERS.items():
            found[name] = [answer for words in commands for answer in _answers(words)]
            if name != "error" and (errors := [each for each in found[name] if isinstance(each.get("error"), dict)]):
                raise AssertionError(f"{name}: {errors}")
        (run,) = found["job-list"][0]["runs"]
        for command in ("follow", "cancel"):
            found[f"job-{command}"] = list(_answers(["verify", command, run["run_id"], *LOCAL]))
    found["job-on-emr-serverless"] = [dict(_more(THERE, SUBMISSION))]
    return {f"cli/{name}.txt": tree(*answers, types=TYPES.get(name, ())) for name, answers in found.items()}


def _answers(words: Sequence[str]) -> Iterator[Any]:
    """What a command prints: one JSON value, or one on each line."""
    place = [] if words[0] == "config" else ["--lab", "lab.json"]
    with StringIO() as out, redirect_stdout(out):
        main([*words, *place, "--json"])
        text = out.getvalue()
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        yield value
        text = text[end:]
