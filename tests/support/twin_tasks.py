"""Tasks that are done twice at the same time, as Spark's speculation does it: that of Spark needs a second host."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark import SparkContext

from spark.jobs.lane_tasks import Work, run_lanes


def twin_lanes(
    context: SparkContext, work: Work, tasks: Sequence[bytes], *, sizes: Sequence[int] | None = None
) -> list[bytes]:
    """`run_lanes` with every piece of work twice, side by side; the results of the first and the second in turn."""
    twice = None if sizes is None else [size for size in sizes for _ in range(2)]
    found = run_lanes(context, work, [task for task in tasks for _ in range(2)], sizes=twice)
    return [found[2 * number + number % 2] for number in range(len(tasks))]
