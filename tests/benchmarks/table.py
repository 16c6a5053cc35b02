"""The table of scenarios."""

from __future__ import annotations

from collections.abc import Mapping

from tests.benchmarks.harness import Scenario

SCENARIOS: Mapping[str, Scenario] = {
    "kills": Scenario(
        run="kills:backfills",
        group="scale",
        limit="every record once, in order, as it was, and in the map",
        options="rounds=4 records=20000",
        small="rounds=1 records=5000",
    ),
    "backfill-live": Scenario(
        run="backfill:live",
        group="scale",
        limit="as above",
        options="kills=2",
        small="records=40000 partitions=4 kills=0",
    ),
    "small-backfill": Scenario(
        run="backfill:small",
        group="scale",
        limit="15 s, 15 s of CPU",
        small="records=30000",
    ),
    "verify": Scenario(
        run="verify:measure",
        group="scale",
        beside="two slots of Spark, one",
        limit="exactly the fault is found",
        options="records=20000000",
        small="records=20000 partitions=2 rounds=1",
    ),
    "reconcile": Scenario(
        run="reconcile:many",
        group="scale",
        limit="an audit finds what was written; Spark has 2 GB",
        small="records=40000",
    ),
    "rounds": Scenario(
        run="rounds:measure",
        group="scale",
        limit="no offset is wrong; 30 s; the function's memory and CPU",
        small="topics=10 rounds=1",
    ),
    "pull-topics": Scenario(
        run="scheduled:many_topics",
        group="scale",
        limit="20 s of CPU, 512 MB",
        small="topics=20 active=5 idle_seconds=2",
    ),
    "pass-through-memory": Scenario(
        run="scheduled:whole_batches",
        group="scale",
        limit="256 MB, all unopened",
        small="topics=4 records=20000",
    ),
    "upgrade": Scenario(
        run="upgrade:measure",
        group="scale",
        limit="an audit of every record finds nothing",
        small="records=60000",
    ),
    "comparison": Scenario(
        run="beside_mm2.__main__:smoke",
        group="scale",
        beside="MirrorMaker 2",
        limit="everything is measured",
    ),
    "forwarder": Scenario(
        run="forwarder:measure",
        group="parts",
        beside="other sources or variables",
        options="stages=true",
        small="shapes=few events=4",
    ),
    "masked": Scenario(
        run="masked:mapped",
        group="parts",
        beside="the plain flow",
        small="shapes=few events=4 formats=json",
    ),
    "masked-pull": Scenario(
        run="masked:pulled",
        group="parts",
        beside="the plain flow, by records and by whole batches",
        small="records=600 rounds=1",
    ),
    "backfill-parts": Scenario(
        run="backfill:parts",
        group="parts",
        beside="a bare loop that consumes and produces in transactions, and keeps no map",
        small="records=20000 partitions=2 rounds=1 batch_kb=16",
    ),
    "raw-copy": Scenario(
        run="raw_copy:measure",
        group="parts",
        small="rounds=1 part=0.02",
    ),
    "translation": Scenario(
        run="translation:measure",
        group="parts",
        beside="MirrorMaker 2's algorithm",
        limit="ours reads none again, and skips none",
        options="report=docs/reference/translation.md",
        small="records=2000 report=",
    ),
    "pull-parts": Scenario(
        run="scheduled:parts",
        group="page",
        beside="a run that finds nothing",
        small="only=silent silent=10",
    ),
    "journal": Scenario(
        run="journal:measure",
        group="page",
        beside="eight journals",
        limit="no transaction is lost; 1.1 of the median of eight journals",
        small="events=5 rounds=1 target_ms=3",
    ),
    "copy-back": Scenario(
        run="reconcile:distance",
        group="page",
        small="records=2000 round_trip_ms=20",
    ),
    "reconcile-memory": Scenario(
        run="reconcile:memory",
        group="page",
        limit="100 MB",
        small="runs=10000",
    ),
}
"""By name. What must be so is checked wherever a limit is named; the other figures are for comparison."""
