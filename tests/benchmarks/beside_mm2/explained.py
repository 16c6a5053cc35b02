"""Headings and explanations of the report, for each kind of measurement."""

from __future__ import annotations

from collections.abc import Mapping

HEADINGS: Mapping[str, str] = {
    "throughput": "Throughput and CPU",
    "latency": "Latency, end to end",
    "pull": "Scheduled topics: throughput and CPU",
    "pull latency": "Scheduled topics: latency, end to end",
    "pass-through": "Whole batches: throughput and CPU",
    "pass-through, three replicas": "Whole batches: to three replicas",
    "pass-through pipe": "Whole batches: the limit, a pipe in C",
    "backfill": "Backfill: steady state",
    "catch-up": "Catch-up of a backlog",
    "recovery": "Recovery",
    "pipe": "The limit: a pipe in C",
    "translation": "Translation of lagging groups",
    "offset map": "What an event writes to the offset map",
}

CONDITIONS = """
Two single-node Kafka clusters, DynamoDB Local (for Mirrorless alone, its tables in memory), the replicators and the
measuring program share the machine. No write waits for a disk. No round is left out, and nothing was set for Mirrorless
that a flow's configuration does not offer.

Values are JSON, orders with a few lines, which lz4 brings to a third; “noise” is random bytes. The source's topic is
lz4, as are Mirrorless and the tuned MM2; MM2's default writes without a codec.
"""

RATIOS = """
Ours over MM2's, formed in each round between two measurements of the same kind and case, one after the other.
"""

TEXTS: Mapping[str, str] = {
    "offset map": """
Events of six lanes of one topic, as a warm forwarder writes them: write units as DynamoDB Local reports them, and the
bytes of an entry with the 100 that DynamoDB adds to an item.
""",
    "throughput": """
A topic is filled while both sides are frozen (SIGSTOP). One side copies it, then the other copies the very same
records; who begins changes from round to round. Seconds end when the last record is visible to a read_committed reader
of the target. CPU is that of the replicating processes: MM2's Java process, with its checkpoints, heartbeats and
discovery, and the function's processes, without the two functions that a schedule starts once a minute.

The poller of the event source mapping, which AWS runs and which is a Python program here, reads the records and encodes
them into events before the clock runs, and one event is under way at a time. At AWS the poller shares no core with the
function, and each environment has a processor of its own; beside the poller and four more of its kind on two cores, an
event took half as much CPU again. For Mirrorless, the seconds of this part are those of the function alone; “Catch-up
of a backlog” has everything.

Before the first round both sides copy 600,000 records of 100 B and 200,000 of 1 KB, which are not counted, again and
again until MM2's CPU of two copies in a row differs by less than 5 %, at most eight times: its compiler is busy until
then. The report's “warm_ups” has each of them. A quick run warms up once, with less. Both sides keep their processes
for all rounds of a mode.
""",
    "latency": """
A producer writes at a fixed rate to six partitions, 100 B each. Every value carries the moment at which it was handed
to the producer's client, on the clock on which the read_committed reader of the target notes its arrival. Some seconds
of warm-up at the rate are not counted.

Mirrorless delivers at once (`maximum.batching.window.seconds: 0`). “Mirrorless, default window” gathers for half a
second, as Lambda does where a mapping says nothing. MM2's tuning waits as well: for 64 KiB, or half a second.
""",
    "pull": """
The function that reads scheduled topics, by `schedule: {continuous: true}`, one shard of 512 MB: one process, as MM2
is. Both copy the same backlogs in turns, as in “Throughput and CPU”, after the same warm-up. No poller stands between,
so seconds can be compared. CPU and memory are those of the function's process and of MM2's Java process. “1000B-100x6”
are 100 topics of six partitions, with as many bytes as one topic of 1 KB.

Ratios are ours over MM2's: of records per CPU-second (“pull_cpu_ratio”) and of records a second (“pull_wall_ratio”)
more is better. “pull_memory_ratio” is that of resident memory at the end of a copy of the 100 topics; less is better.
""",
    "pull latency": """
As in “Latency, end to end”, at 1,000 records a second: one continuous run, which gathers for as long as it does where a
flow sets nothing. “Mirrorless, handed over”: the schedule starts the run's successor, cold, and the measurement lasts
until that has taken over, and as long again as the others.
""",
    "pass-through": """
The same function as for scheduled topics, whose runs copy batches as they lie in the source's log. The source's batches
have 16 KB, the default of Java's producer, or 256 KB, before lz4; a batch of 16 KB holds one record of 10 KB. Both
sides copy the same backlog in turns, as in “Throughput and CPU”, after the same warm-up by batches of 256 KB. Each
batch is made once and written again and again, so that backlogs are large and written at once.

MM2 decodes, and its producer compresses anew, whatever the source's batches are like: its cost is by record and byte,
ours by batch and byte.
""",
    "pass-through, three replicas": """
The same with a target of three brokers, three replicas of each remote topic, and acknowledgements of all of them. The
four brokers share the two cores as well.
""",
    "pass-through pipe": """
kcat reads these backlogs and kcat writes them, as in “The limit: a pipe in C”. It decodes and compresses records.
""",
    "backfill": """
One topic of 1 KB in twelve lanes, in batches as in “Whole batches”; 10 GB of values in a full run. MM2 is warm, and
frozen while it is not measured. The backfill job is started cold, by its own script, with Spark on this machine. Its
start-up (“start_seconds”, “start_cpu_s”) ends with the first look at which a record is visible on the target; seconds,
CPU and records of this part begin there. “whole_seconds” and “whole_cpu_s” are from the start of the job's process to
its exit. CPU and memory are those of the driver, its JVM and the workers, and of MM2's Java process.
""",
    "catch-up": """
A backlog lies on the source when the side is started, cold. Seconds are from the start of its process until the last
record is visible; CPU is all that its processes take, from their start. The backfill job runs Spark on this machine,
driver and workers on the same cores.
""",
    "recovery": """
While records flow, the replicator is killed with SIGKILL, or the target's broker is killed and started again at once.
MM2 is started again at once, as a supervisor would do; of our function one busy process is killed, and nothing is
started: Lambda takes another one for the next event. Seconds are from the fault until a read_committed reader has
everything that was written up to one second before. Duplicates are records that a reader saw again.
""",
    "pipe": """
kcat reads the topic and kcat writes it to the target: no order of partitions, no offsets, no transaction, no headers,
no timestamps. Whatever keeps promises costs more.
""",
    "translation": """
Records that a group reads again after a move, by how far it lags on the source. Counted, not timed: MM2's algorithm,
held to MM2's own tests, beside our offset map. See translation.md.
""",
}


def paragraphs(text: str) -> tuple[str, ...]:
    """Each paragraph as one line."""
    return tuple(" ".join(each.split()) for each in text.split("\n\n") if each.strip())
