"""Tables and a plot of the page of costs over the rate: Mirrorless beside MSK Replicator and MM2 on MSK Connect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from mirrorless.cost.assumptions import HOURS, Assumptions, ReplicationLoad
from mirrorless.cost.break_even import break_even
from mirrorless.cost.prices import PRICES
from mirrorless.cost.replication import events_per_second, mirrorless, msk_connect, msk_replicator, total, transfer
from mirrorless.poller_groups import MAPPINGS_OF_A_GROUP
from mirrorless.reports.report import Cell, Line, LinePlot, Table

RATES: Final = (0.0, 1.0, 10.0, 100.0)
"""MB/s of the tables."""

USUAL: Final = Assumptions()

TUNED: Final = replace(USUAL, window_seconds=5.0)
"""What costs least without being slow: a batching window of 5 s."""

USUAL_LOAD: Final = ReplicationLoad(mb_per_second=1.0)
"""The load of the tables, but for its rate."""


def months() -> Table:
    """Dollars a month by rate, of all of them."""
    table = []
    for rate in RATES:
        at = USUAL_LOAD.at(rate)
        table.append(
            (
                rate,
                total(at, provisioned=False),
                total(at),
                total(at, TUNED, provisioned=False),
                total(at, TUNED),
                msk_replicator(at),
                msk_connect(at),
                msk_connect(at, "exactly once"),
                transfer(at),
            )
        )
    return Table(
        title="Dollars a month",
        columns=(
            "MB/s",
            "Mirrorless, free pollers",
            "Mirrorless, provisioned",
            "the same, window 5 s, free",
            "window 5 s, provisioned",
            "MSK Replicator",
            "MSK Connect, MM2 tuned",
            "MSK Connect, MM2 default",
            "between regions, for all",
        ),
        rows=tuple(tuple(money(each) for each in row) for row in table),
        note=(
            f"Provisioned: mappings in poller groups, as by default, {MAPPINGS_OF_A_GROUP} in each at most; a poller"
            f" unit carries {USUAL.unit_pollers} pollers. Without a group each topic has a unit of its own, some"
            f" ${PRICES.event_poller_unit_hour * HOURS:,.0f} a month each. MSK Replicator translates offsets"
            " approximately and delivers at least once; both columns of MM2 are exactly once."
        ),
    )


def break_evens() -> Table:
    """Where Mirrorless costs less than each of the others."""
    others: dict[str, Callable[[ReplicationLoad], float]] = {
        "MSK Replicator": msk_replicator,
        "MSK Connect, MM2 tuned": msk_connect,
        "MSK Connect, MM2 default": lambda at: msk_connect(at, "exactly once"),
    }
    cases = {
        "free pollers": (USUAL, False),
        "provisioned": (USUAL, True),
        "free pollers, window 5 s": (TUNED, False),
        "provisioned, window 5 s": (TUNED, True),
    }

    def where(assumptions: Assumptions, against: Callable[[ReplicationLoad], float], *, provisioned: bool) -> str:
        found = break_even(USUAL_LOAD, assumptions, provisioned=provisioned, against=against)
        parts = []
        for first, last in found:
            if first == 0:
                parts.append("everywhere" if last is None else f"below {_rate(last)}")
            else:
                parts.append(f"from {_rate(first)}" + ("" if last is None else f" to {_rate(last)}"))
        return ", ".join(parts) or "nowhere"

    return Table(
        title="Where Mirrorless costs less: MB/s, up to 200",
        columns=("Mirrorless with", *others),
        rows=tuple(
            (name, *(where(assumptions, other, provisioned=provisioned) for other in others.values()))
            for name, (assumptions, provisioned) in cases.items()
        ),
        note=(
            "Beside a busy machine of one's own, a high steady rate is dearer here: pollers are paid by the 20 MB/s,"
            " and the offset map by the event. Not in the comparison: who runs, patches and watches the connectors."
        ),
    )


def per_gb() -> Table:
    """The same by the GB."""
    table = []
    for rate in RATES[1:]:
        at = USUAL_LOAD.at(rate)
        costs = (total(at, provisioned=False), total(at, TUNED, provisioned=False), total(at, TUNED))
        others = (msk_replicator(at), msk_connect(at))
        table.append((rate, *(round(each / at.gb_month(), 4) for each in (*costs, *others))))
    return Table(
        title="Dollars a GB",
        columns=(
            "MB/s",
            "Mirrorless, free pollers",
            "window 5 s, free",
            "window 5 s, provisioned",
            "MSK Replicator",
            "MSK Connect, MM2 tuned",
        ),
        rows=tuple(table),
    )


def by_part() -> Table:
    """What a month consists of."""
    found = [mirrorless(USUAL_LOAD.at(rate), "provisioned") for rate in RATES]
    events: tuple[Cell, ...] = (
        "events a second",
        *(round(events_per_second(USUAL_LOAD.at(rate)), 2) for rate in RATES),
    )
    parts: list[tuple[Cell, ...]] = [(part, *(money(each[part]) for each in found)) for part in found[0]]
    return Table(
        title="Where it goes: dollars a month by part, provisioned",
        columns=("part", *(f"{rate:g} MB/s" for rate in RATES)),
        rows=(*parts, events),
    )


def rate_plot() -> LinePlot:
    """Dollars a month over the rate."""
    rates = [10 ** (step / 4 - 2) for step in range(17)]

    def line(label: str, cost: Callable[[ReplicationLoad], float]) -> Line:
        return Line(label=label, points=tuple((rate, cost(USUAL_LOAD.at(rate))) for rate in rates))

    return LinePlot(
        title="Dollars a month over the rate",
        x_unit="MB/s",
        y_unit="$ a month",
        lines=(
            line("Mirrorless, free pollers", lambda at: total(at, provisioned=False)),
            line("Mirrorless, free pollers, window 5 s", lambda at: total(at, TUNED, provisioned=False)),
            line("Mirrorless, provisioned, window 5 s", lambda at: total(at, TUNED)),
            line("MSK Replicator", msk_replicator),
            line("MSK Connect, MM2 tuned", msk_connect),
        ),
        log_x=True,
        log_y=True,
    )


def money(dollars: float) -> float | int:
    """An amount to whole dollars, and to cents below ten."""
    return round(dollars) if dollars >= 10 else round(dollars, 2)  # noqa: PLR2004 -- cents matter below


def _rate(number: float) -> str:
    """Two digits that count."""
    return f"{float(f'{number:.2g}'):g}"
