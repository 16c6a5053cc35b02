"""Tables of the page of costs beside those over the rate: single cases, and what all of them rest on."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from infra.cost_rates import TUNED, USUAL, USUAL_LOAD, money
from mirrorless.cost.assumptions import (
    HOURS,
    MEASURED_EVENTS,
    MEASURED_ON,
    METRICS_PER_TOPIC,
    MM2_RECORDS_PER_CPU_SECOND,
    Assumptions,
    ReplicationLoad,
    rows,
)
from mirrorless.cost.prices import PRICES
from mirrorless.cost.replication import backfill, mirrorless, msk_connect, msk_replicator, standby, total
from mirrorless.reports.report import Cell, Table


def idle() -> Table:
    """A flow in which nothing moves."""
    still = USUAL_LOAD.at(0)
    cases: list[tuple[str, dict[str, float]]] = [
        ("by default", mirrorless(still, "on-demand")),
        *(
            (f"heartbeats every {seconds} s", mirrorless(still, "on-demand", replace(USUAL, heartbeat_seconds=seconds)))
            for seconds in (10, 1)
        ),
        ("100 topics", mirrorless(replace(still, topics=100), "on-demand")),
    ]
    parts = ("scheduled functions", "heartbeats", "metrics, alarms, logs")
    return Table(
        title="A flow in which nothing moves: dollars a month",
        columns=("case", *parts, "together"),
        rows=tuple(
            (name, *(money(found[part]) for part in parts), money(sum(found[part] for part in parts)))
            for name, found in cases
        ),
        note="Mappings on demand. Dashboard and network stand in the next table.",
    )


def stated_apart() -> Table:
    """What is in none of the other tables."""
    rows: tuple[tuple[Cell, ...], ...] = (
        ("a dashboard for each flow", PRICES.cloudwatch_dashboard_month, "an account's first three are free"),
        (
            "an event poller unit",
            round(PRICES.event_poller_unit_hour * HOURS),
            "provisioned mappings only, which share units in poller groups",
        ),
        (
            "an interface endpoint, in each zone",
            round(PRICES.interface_endpoint_hour * HOURS, 2),
            "`vpc.endpoints`: Lambda, STS and Secrets Manager, each only where the flow needs it; DynamoDB's is free",
        ),
        (
            "a NAT gateway, in each zone",
            round(PRICES.nat_gateway_hour * HOURS),
            (
                "in place of endpoints, and wherever tables are in another region than a function in a VPC: the usual"
                f" case of a flow between two regions with MSK; ${PRICES.nat_gateway_gb} a GB on top, of requests to"
                " AWS only, for records go to the brokers by the route between the networks"
            ),
        ),
        (
            "a standby of the scheduled functions in the target's region",
            money(standby()),
            (
                "a flow at home in another region, unless `function.standby.enabled` is off; while it works, it costs"
                " what the function `control` does"
            ),
        ),
        ("a key of KMS", PRICES.kms_key_month, "where keys are the customer's, or an address gets alarms"),
        (
            "a copy of the tables in the source's region",
            money(
                total(USUAL_LOAD, replace(USUAL, copies=1), provisioned=False)
                - total(USUAL_LOAD, USUAL, provisioned=False)
            ),
            "at 1 MB/s: `offset.map.replicas.enabled`, to read the map when the target's region is lost",
        ),
        ("a TB by a backfill", money(backfill(1000)), "on EMR Serverless, its start and its driver apart"),
    )
    return Table(title="Stated apart: dollars a month", columns=("what", "dollars", "when"), rows=rows)


def sensitivity() -> Table:
    """A month where one assumption is another."""
    base = USUAL
    cases: list[tuple[str, ReplicationLoad, Assumptions]] = [
        ("as above", USUAL_LOAD, base),
        ("batching window 5 s", USUAL_LOAD, TUNED),
        ("batching window 60 s", USUAL_LOAD, replace(base, window_seconds=60.0)),
        ("no batching window", USUAL_LOAD, replace(base, window_seconds=0.02)),
        ("records of 100 bytes", replace(USUAL_LOAD, record_bytes=100), base),
        ("records of 10,000 bytes", replace(USUAL_LOAD, record_bytes=10_000), base),
        ("one topic of 60 partitions", replace(USUAL_LOAD, topics=1, partitions=60), base),
        ("one topic of one partition", replace(USUAL_LOAD, topics=1, partitions=1), base),
        ("100 topics of 6 partitions", replace(USUAL_LOAD, topics=100), base),
        ("compressed 4 to 1", replace(USUAL_LOAD, compression=4.0), base),
        ("target across an ocean, 350 ms", USUAL_LOAD, replace(base, wait_ms=350.0)),
        ("a copy of the tables", USUAL_LOAD, replace(base, copies=1)),
        ("metrics by topic", USUAL_LOAD, replace(base, metrics_per_topic=METRICS_PER_TOPIC)),
        ("Lambda's CPU half as fast", USUAL_LOAD, replace(base, vcpu_gb=2 * base.vcpu_gb)),
    ]
    found: list[tuple[Cell, ...]] = []
    for name, workload, assumptions in cases:
        one, ten = workload.at(1.0), workload.at(10.0)
        found.append(
            (
                name,
                *(
                    money(each)
                    for each in (
                        total(one, assumptions, provisioned=False),
                        msk_replicator(one),
                        msk_connect(one),
                        total(ten, assumptions, provisioned=False),
                        msk_replicator(ten),
                        msk_connect(ten),
                    )
                ),
            )
        )
    return Table(
        title="What moves it: dollars a month, free pollers",
        columns=(
            "case",
            "1 MB/s: Mirrorless",
            "Replicator",
            "Connect",
            "10 MB/s: Mirrorless",
            "Replicator",
            "Connect",
        ),
        rows=tuple(found),
        note=(
            "Events that carry little are what costs: each is an entry in the offset map, written twice. A"
            " longer window, fewer partitions or fewer topics make fuller events. Topics without records cost"
            " nothing with free pollers."
        ),
    )


def assumed() -> Table:
    """The assumptions, and what was measured."""
    measured: list[tuple[Cell, ...]] = [
        (
            f"CPU of an event: {each.records:,} records of {each.record_bytes:,} bytes",
            each.cpu_ms,
            "ms",
            f"measured {MEASURED_ON}",
        )
        for each in MEASURED_EVENTS
    ]
    measured += [
        (f"MM2, {mode}: records of {size} bytes", rate, "records per CPU-s", "measured on the same machine")
        for mode, rates in MM2_RECORDS_PER_CPU_SECOND.items()
        for size, rate in rates.items()
    ]
    return Table(
        title="Assumptions",
        columns=("what", "value", "unit", "why"),
        rows=(*rows(USUAL), *measured),
    )


def list_prices() -> Table:
    """The prices, by their names in prices.json."""
    flat: list[tuple[Cell, ...]] = []
    for name, price in structs.asdict(PRICES).items():
        for kind, value in price.items() if isinstance(price, dict) else (("", price),):
            if isinstance(value, float):
                note = "unchecked" if name in PRICES.unchecked.prices else ""
                flat.append((f"{name} {kind}".strip(), _plain(value), note))
    jobs = PRICES.jobs
    for name, kinds in (("job vcpu_hour", jobs.vcpu_hour), ("job gb_hour", jobs.gb_hour)):
        flat += [(f"{name} {kind}", _plain(value), f"as of {jobs.as_of}") for kind, value in kinds.items()]
    return Table(
        title="Prices",
        columns=("price", "dollars", ""),
        rows=tuple(flat),
        note=f"`shared/mirrorless/cost/prices.json`. Unchecked: {PRICES.unchecked.why}.",
    )


def _plain(number: float) -> str:
    return f"{number:.10f}".rstrip("0").rstrip(".")
