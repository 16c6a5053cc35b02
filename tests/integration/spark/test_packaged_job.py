"""A job runs from what is deployed, and from nothing else: the archive of dependencies, our package, the submission.

Everything is as EMR Serverless has it: its Python has no packages of its own, Spark unpacks the archive beside each
executor, and settings come from `submit_confs`. The one difference: the test unpacks the archive for the driver.
"""

from __future__ import annotations

import json
import stat
import sys
import tarfile
from pathlib import Path

import pytest

from infra import spark_settings
from infra.packaging import spark_archive, wheels
from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.jobs.request import BackfillOptions, JobRequest, encode_request
from tests.support.lane_stage import LaneStage
from tests.support.spark_cluster import submitted

pytestmark = pytest.mark.integration

JOB = """
import json, sys
from spark.backfill import backfill
from spark.jobs.driver import drive
from spark.jobs.lane_tasks import run_lanes

def origins(task, attempt):
    import confluent_kafka, mirrorless.protocol.replicate, msgspec, numpy, os, pyarrow, sys
    modules = (mirrorless.protocol.replicate, confluent_kafka, msgspec, numpy, pyarrow)
    return json.dumps({"here": os.getcwd(), "path": sys.path, "files": [each.__file__ for each in modules]}).encode()

def job(run):
    run.files.write("origins-worker.json", run_lanes(run.context, origins, [b""])[0])
    run.files.write("origins-driver.json", origins(b"", None))
    return backfill(run)

sys.exit(drive(job))
"""


def bare_python(folder: Path) -> Path:
    """A folder for PATH whose Python has no site-packages, under the name that jobs are submitted with."""
    real = Path(sys.base_prefix) / "bin" / f"python{wheels.running_python()}"
    folder.mkdir()
    script = folder / f"python{spark_archive.PYTHON}"
    script.write_text(f'#!/bin/sh\nexec {real} -S "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return folder


def test_a_backfill_runs_from_the_deployed_archive_and_from_nothing_of_this_machine(
    stage: LaneStage, dynamodb: DynamoDbLocal, tmp_path: Path
) -> None:
    stage.create(stage.source, stage.topic, 2)
    for partition in (0, 1):
        stage.write(
            *(b"%d" % number for number in range(200)), None, b"", partition=partition, headers=[("h", b"\xff")]
        )
    run = tmp_path / "backfill-packaged"
    run.mkdir()
    request = JobRequest(
        run_id=run.name, flow=stage.settings, topics=(stage.topic,), options=BackfillOptions(handover_seconds=2)
    )
    (run / "request.json").write_bytes(encode_request(request))
    environment = spark_archive.environment(python=wheels.running_python()).path
    confs = dict(spark_settings.submit_confs(package=str(spark_archive.package().path), environment=str(environment)))
    folder = tmp_path / "driver"
    with tarfile.open(environment) as archive:
        archive.extractall(folder / spark_settings.UNPACKED, filter="data")
    (folder / "job.py").write_text(JOB)
    prefix = "spark.emr-serverless.driverEnv."
    driver = {name.removeprefix(prefix): value for name, value in confs.items() if name.startswith(prefix)}
    aws = {
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb.endpoint,
        "AWS_ACCESS_KEY_ID": "lab",
        "AWS_SECRET_ACCESS_KEY": "lab",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    path = {"PATH": f"{bare_python(tmp_path / 'bin')}:/usr/bin:/bin"}

    with submitted(folder / "job.py", run, folder=folder, confs=confs, environment={**aws, **path, **driver}) as job:
        code = job.driver.wait(400)
        assert code == 0, job.log_text()[-5_000:]

    report = json.loads((run / "report.json").read_bytes())
    assert report["totals"] | {"records": 404, "written": 404, "done": 2} == report["totals"]
    stage.assert_mirrored()
    for side in ("worker", "driver"):
        found = json.loads((run / f"origins-{side}.json").read_bytes())
        ours, *theirs = (Path(found["here"], each).resolve() for each in found["files"])
        assert spark_archive.package().path.name in ours.parts, (side, found)
        assert all(each.is_relative_to(Path(found["here"], spark_settings.UNPACKED).resolve()) for each in theirs), (
            side,
            found,
        )
        assert not [each for each in found["path"] if each.rstrip("/").endswith("site-packages")], (side, found)
