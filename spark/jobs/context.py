"""The Spark context of a job, and the most that runs in it at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from pyspark import SparkConf, SparkContext

from mirrorless.flow.naming import SPARK_MASTER_VARIABLE

_LOCAL: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A Java that starts quickly instead of becoming fast: it only sends out tasks, and no rows pass through it.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

_MOST_EXECUTORS: Final = "spark.dynamicAllocation.maxExecutors"
"""Executors are allocated dynamically: their number at the beginning of a job is no measure."""


_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set where `spark-submit` has started this process."""


def spark_context(name: str) -> SparkContext:
    """The context of this process: EMR's, or a local one where `MIRRORLESS_SPARK_MASTER` is set.

    It runs tasks. Nothing needs a session, for SQL, which takes two seconds and as much CPU more to start.

    Args:
        name: of the application.
    """
    conf = SparkConf().setAppName(name)
    if master := os.environ.get(SPARK_MASTER_VARIABLE):
        conf.setMaster(master).setAll(list(_LOCAL.items()))
    context = SparkContext.getOrCreate(conf)
    if _SUBMITTED in os.environ:
        _end_with_java(context)
    return context


def _end_with_java(context: SparkContext) -> None:
    """Have Java pass its SIGTERM on to this process, and wait for its end.

    `spark-submit` is the first process of a container: a cancelled run on EMR Serverless ends Java, which starts this
    process and does not end it. Java's hooks run side by side, each in a thread.
    """
    java: Any = context._jvm  # noqa: SLF001 -- Spark's own way to Java, which it does not publish
    this = java.java.lang.ProcessHandle.of(os.getpid()).get()
    runnable = java.java.lang.Class.forName("java.lang.Runnable")
    for target, method in ((this, "destroy"), (this.onExit(), "join")):
        hook = java.java.beans.EventHandler.create(runnable, target, method)
        java.java.lang.Runtime.getRuntime().addShutdownHook(java.java.lang.Thread(hook))


def lanes_at_a_time(context: SparkContext) -> int:
    """The most lanes that may run at once: all cores of all executors that there may be."""
    executors, cores = (context.getConf().get(key) for key in (_MOST_EXECUTORS, "spark.executor.cores"))
    if (context.master or "").startswith("local") or not (executors and cores):
        return int(context.defaultParallelism)
    return int(executors) * int(cores)


def most_attempts(context: SparkContext) -> int:
    """The most attempts of a task: in local mode by the master's second number, 1 by default."""
    master = context.master or ""
    if master.startswith("local["):
        _, _, failures = master.removeprefix("local[").removesuffix("]").partition(",")
        return int(failures or 1)
    return int(context.getConf().get("spark.task.maxFailures", "4") or 4)
