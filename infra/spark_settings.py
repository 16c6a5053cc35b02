"""EMR Serverless settings: application names and limits, and the parameters of every job submission.

There is one application for each cluster beside which jobs run: a network belongs to an application, and a cluster has
one. Idle, it costs nothing. Code is no part of it: an application can be changed only while it is stopped, a job takes
what is deployed when it starts (https://docs.aws.amazon.com/emr-serverless/latest/APIReference/API_UpdateApplication.html).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.packaging.spark_archive import PYTHON
from mirrorless.cost.prices import DRIVER, EXECUTOR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.deployment import FlowDeployment
    from mirrorless.config.schema import SparkSection

RELEASE = "emr-spark-8.1.0"
"""Spark 4.1.1 with Python 3.11: https://docs.aws.amazon.com/emr/latest/ReleaseGuide/emr-spark810-release.html"""

IDLE_MINUTES = 15
QUEUE_MINUTES = 360
MOST_RUNS = 15

UNPACKED = "environment"
"""The folder, beside the job's, that Spark unpacks the archive into."""


def application_name(flow: FlowDeployment) -> str:
    """The name of the application that a flow's jobs run on."""
    return f"{flow.flow.deployment}-{flow.flow.jobs_home.alias}"


def log_group(application: str) -> str:
    """Where the jobs of an application log."""
    return f"/aws/emr-serverless/{application}"


def role_name(flow: FlowDeployment) -> str:
    """The name of the role that a flow's jobs run as."""
    return flow.flow.resource_name("jobs")


def prefix(flow: FlowDeployment) -> str:
    """Where in the bucket of its place a flow's jobs read and write."""
    return f"flows/{flow.id}/"


def artifacts_prefix(deployment: str) -> str:
    """Where in the bootstrap bucket the code of jobs lies, by its hash, of this deployment and of those before it.

    A job loads its code as long as it runs: for each executor that it gets, and for another attempt. A deployment adds
    objects and removes none, and the prefix lets a role read those of the deployment that a job was started by.
    """
    return f"{deployment}/jobs/"


def most_executors(spark: SparkSection) -> int:
    """How many executors one job may have, beside its driver, within what the application may have."""
    by_cores = (spark.maximum_vcpu - DRIVER.cores) // EXECUTOR.cores
    by_memory = (spark.maximum_memory_gb - DRIVER.gb) // EXECUTOR.gb
    return max(1, min(by_cores, by_memory))


def most_runs(spark: SparkSection) -> int:
    """How many jobs may run at once: each with a driver and at least one executor, so that none waits for the other."""
    by_cores = spark.maximum_vcpu // (DRIVER.cores + EXECUTOR.cores)
    by_memory = spark.maximum_memory_gb // (DRIVER.gb + EXECUTOR.gb)
    return max(1, min(MOST_RUNS, by_cores, by_memory))


def spark_defaults(spark: SparkSection) -> dict[str, str]:
    """What every job of an application is given, unless its submission says otherwise."""
    return {
        # A second writer of the same lane would only be fenced off, after both did the work.
        "spark.speculation": "false",
        "spark.task.maxFailures": "8",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.cores": str(DRIVER.cores),
        "spark.driver.memory": f"{DRIVER.memory}g",
        "spark.driver.memoryOverhead": f"{DRIVER.overhead}g",
        "spark.executor.cores": str(EXECUTOR.cores),
        "spark.executor.memory": f"{EXECUTOR.memory}g",
        "spark.executor.memoryOverhead": f"{EXECUTOR.overhead}g",
        # Without a bound, EMR's is infinite; without a start, it is three, which a small maximum has no room for.
        "spark.dynamicAllocation.maxExecutors": str(most_executors(spark)),
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.executor.instances": "1",
    }


def submit_confs(*, package: str, environment: str, variables: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """What a job is submitted with, so that driver and workers find our package and its dependencies.

    Args:
        package: S3 URI of our package.
        environment: S3 URI of the archive of dependencies.
        variables: more of the driver's environment.
    """
    python = {"PYSPARK_PYTHON": f"python{PYTHON}", "PYTHONPATH": f"./{UNPACKED}"}
    driver = {**python, **(variables or {}), "PYSPARK_DRIVER_PYTHON": f"python{PYTHON}"}
    return {
        "spark.submit.pyFiles": package,
        "spark.archives": f"{environment}#{UNPACKED}",
        **{f"spark.emr-serverless.driverEnv.{name}": value for name, value in driver.items()},
        **{f"spark.executorEnv.{name}": value for name, value in python.items()},
    }
