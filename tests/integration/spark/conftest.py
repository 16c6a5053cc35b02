"""One Spark for all tests of jobs: two tasks at a time, four tries of each, workers that find the lab's DynamoDB."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from lab.drills.failover import JAVA_OPTIONS
from lab.servers.dynamodb import DynamoDbLocal
from mirrorless.flow.naming import SPARK_MASTER_VARIABLE
from spark.jobs.context import spark_context
from tests.support.aws_recorder import ROOT, WITHIN_JOBS


@pytest.fixture(autouse=True)
def quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that a test starts as processes have a Java that starts quickly."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)


@pytest.fixture(scope="session")
def spark(dynamodb: DynamoDbLocal) -> Iterator[SparkSession]:
    """The session. Workers take their environment from the moment of its start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SPARK_MASTER_VARIABLE, "local[2,4]")
        patch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (WITHIN_JOBS, ROOT / "shared", ROOT))))
        patch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "lab")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        context = spark_context("tests")
        context.setLogLevel("ERROR")
        yield SparkSession(context)
        context.stop()
