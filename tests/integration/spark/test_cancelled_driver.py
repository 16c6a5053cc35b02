"""A driver that gets SIGTERM while Spark works ends the work and lets go of its lanes.

Under `spark-submit`, as EMR Serverless starts it, the signal reaches Java alone; on this machine the driver.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pyspark
import pytest

from mirrorless.flow.naming import SPARK_MASTER_VARIABLE
from mirrorless.jobs.progress import JobProgress
from mirrorless.jobs.request import BackfillOptions, JobRequest, encode_request
from tests.support.flows import make_flow

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
WITHIN_S = 120.0

JOB = """
import sys, time
from spark.jobs.driver import drive

def job(run):
    place = run.files.place
    def endless(_):
        open(place + "/working", "w").close()
        time.sleep(600)
    try:
        run.context.parallelize([1], 1).map(endless).collect()
    finally:
        time.sleep(2)  # for longer than Java takes to end by itself: as many leases to end
        run.files.write("let-go", b"")

sys.exit(drive(job))
"""


HELD = pytest.mark.soak(
    "tests/unit/jobs/test_driver.py::test_a_signal_inside_a_call_of_spark_ends_its_jobs_and_the_answer_is_read"
)
SUBMIT = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit")]


@pytest.mark.parametrize(
    "start",
    [pytest.param(SUBMIT, id="submitted", marks=HELD), pytest.param([sys.executable], id="local")],
)
def test_a_driver_that_is_ended_ends_its_work_and_lets_its_lanes_go(start: list[str], tmp_path: Path) -> None:
    """Java, the first process of a container, waits for that."""
    flow = make_flow(source="source:9092", target="target:9092")
    request = JobRequest("backfill-1", flow, ("orders",), BackfillOptions())
    (tmp_path / "request.json").write_bytes(encode_request(request))
    (tmp_path / "job.py").write_text(JOB)
    log = tmp_path / "log"
    with log.open("wb") as out:
        submitted = subprocess.Popen(
            [*start, str(tmp_path / "job.py"), str(tmp_path)],
            env=os.environ
            | {
                SPARK_MASTER_VARIABLE: "local[1,4]",
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": os.pathsep.join((str(ROOT / "shared"), str(ROOT))),
            },
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + WITHIN_S
        while not (tmp_path / "working").exists():
            assert submitted.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)  # between two looks at a condition with a deadline
        submitted.send_signal(signal.SIGTERM)
        submitted.wait(WITHIN_S)
        assert (tmp_path / "let-go").exists(), log.read_text()
        progress = msgspec.json.decode((tmp_path / "progress.json").read_bytes(), type=JobProgress)
        assert progress.state == "cancelled", log.read_text()
    finally:
        if submitted.poll() is None:
            os.killpg(submitted.pid, signal.SIGKILL)
