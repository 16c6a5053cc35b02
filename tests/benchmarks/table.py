"""The table of scenarios."""

from __future__ import annotations

from collections.abc import Mapping

from tests.benchmarks.harness import Scenario

SCENARIOS: Mapping[str, Scenario] = {
    "kills": Scenario(
        run="backfill:kills",
        group="scale",
        about="backfills whose worker, executor and driver are killed -9, round after round, each from another seed",
        limit="every record once, in order, as it was, and in the map",
        options="rounds=4 records=20000",
        small="rounds=1 records=5000",
    ),
    "kill-failback": Scenario(
        run="failback:measure",
        group="scale",
        about="a failback and its verification, killed likewise; one lane has 90 % of the records, one fails for good",
        limit="as above on both sides after each step; the one planted fault is found",
        small="records=40000",
    ),
    "backfill-live": Scenario(
        run="backfill:live",
        group="scale",
        about="a whole backfill beside a live mapping, whose workers are killed, and which is run again",
        limit="as above",
        options="kills=2",
        small="records=40000 partitions=4 kills=0",
    ),
    "small-backfill": Scenario(
        run="backfill:small",
        group="scale",
        about="a cold backfill of 300,000 records of 1 KB in six lanes, from its process' start to its exit",
        limit="15 s, 15 s of CPU",
        small="records=30000",
    ),
    "verify": Scenario(
        run="verify:measure",
        group="scale",
        about="a verification of 20 million records, and of one planted fault",
        beside="two slots of Spark, one",
        limit="exactly the fault is found",
        options="records=20000000",
        small="records=20000 partitions=2 rounds=1",
    ),
    "reconcile": Scenario(
        run="reconcile:many",
        group="scale",
        about="a reconcile of 20 million records, of which 2 million are new, with orphans and conflicts",
        limit="an audit finds what was written; Spark has 2 GB",
        small="records=40000",
    ),
    "rounds": Scenario(
        run="rounds:measure",
        group="scale",
        about="checkpoint rounds of 5,000 lanes that all move, with 500 groups",
        limit="no offset is wrong; 30 s; the function's memory and CPU",
        small="topics=10 rounds=1",
    ),
    "failover-distance": Scenario(
        run="failover:distance",
        group="scale",
        about="failover and failback with the target 80 ms away, and answers lost",
        small="round_trip_ms=20",
    ),
    "pull-topics": Scenario(
        run="scheduled:many_topics",
        group="scale",
        about="1,000 scheduled topics of six partitions on one shard, 50 with a record in each; and an idle run",
        limit="20 s of CPU, 512 MB",
        small="topics=20 active=5 idle_seconds=2",
    ),
    "pass-through-memory": Scenario(
        run="scheduled:whole_batches",
        group="scale",
        about="memory of a run that copies 1 GB of whole batches from 100 topics",
        limit="256 MB, all unopened",
        small="topics=4 records=20000",
    ),
    "upgrade": Scenario(
        run="upgrade:measure",
        group="scale",
        about="both clusters of a flow from Kafka 3.9.1 to 4.1.1, broker by broker under load",
        limit="an audit of every record finds nothing",
        small="records=60000",
    ),
    "comparison": Scenario(
        run="beside_mm2.__main__:smoke",
        group="scale",
        about="the smallest run of `make bench`",
        beside="MirrorMaker 2",
        limit="everything is measured",
    ),
    "forwarder": Scenario(
        run="forwarder:measure",
        group="parts",
        about="CPU of the forwarder per event, by its size, under the real runtime client",
        beside="other sources or variables",
        options="stages=true",
        small="shapes=few events=4",
    ),
    "backfill-parts": Scenario(
        run="backfill:parts",
        group="parts",
        about="speed of a job's copy by records and by whole batches, on one Spark in alternating rounds",
        beside="a bare loop that consumes and produces in transactions, and keeps no map",
        small="records=20000 partitions=2 rounds=1 batch_kb=16",
    ),
    "raw-copy": Scenario(
        run="raw_copy:measure",
        group="parts",
        about="CPU of copying whole batches, the engine alone, without a journal",
        small="rounds=1 part=0.02",
    ),
    "translation": Scenario(
        run="translation:measure",
        group="parts",
        about="records that lagging groups read again after failover; writes its page",
        beside="MirrorMaker 2's algorithm",
        limit="ours reads none again, and skips none",
        options="report=docs/reference/translation.md",
        small="records=2000 report=",
    ),
    "pull-parts": Scenario(
        run="scheduled:parts",
        group="page",
        about="what a run of scheduled topics takes, by part: the cost model's figures",
        beside="a run that finds nothing",
        small="only=silent silent=10",
    ),
    "journal": Scenario(
        run="journal:measure",
        group="page",
        about="the time of an event of eight environments in one slice, and what collisions cost",
        beside="eight slices",
        limit="no transaction is lost; 1.1 of the median of eight slices",
        small="events=5 rounds=1 target_ms=3",
    ),
    "copy-back": Scenario(
        run="reconcile:distance",
        group="page",
        about="records a second of one lane and of twelve, copied back to a source 80 ms away",
        small="records=2000 round_trip_ms=20",
    ),
    "reconcile-memory": Scenario(
        run="reconcile:memory",
        group="page",
        about="memory and time of a reconcile's decisions on a lane with a month of history",
        limit="100 MB",
        small="runs=10000",
    ),
}
"""By name. What must be so is checked wherever a limit is named; the other figures are for comparison."""
