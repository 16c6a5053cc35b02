"""The report of a reconcile: figures, lanes, offsets on both sides, groups, and the work that is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mirrorless.jobs.progress import percent
from mirrorless.reconcile.conflicts import ConflictRecord
from mirrorless.reconcile.outcome import READY, FailbackForecast, LaneOutcome, LocalTopic, OrphanReader
from mirrorless.reconcile.returning_groups import ReturningGroup
from mirrorless.reports.format import moment
from mirrorless.reports.report import Figure, LanePlot, Report, ReportSection, Segment, Table, Tone

REPLICATED, NEW, ORPHANED = "replicated", "new on the target", "orphaned"


def report_of(
    title: str,
    *,
    lanes: Sequence[LaneOutcome],
    groups: Sequence[ReturningGroup],
    local: Sequence[LocalTopic],
    troubles: Sequence[str],
    totals: Mapping[str, Any],
    look: tuple[FailbackForecast, Sequence[OrphanReader]] | None,
    clean: bool,
    made_at: int,
) -> Report:
    """The whole report; `made_at` is in ms since the epoch."""
    lanes = sorted(lanes, key=lambda each: (each.clean, not each.orphan_records))  # those that need a look first
    groups = sorted(groups, key=lambda each: each.readiness in READY)
    return Report(
        title=title,
        verdict=_verdict(totals, look_only=look is not None, clean=clean),
        tone="good" if clean else "bad",
        figures=tuple(_figures(totals)),
        sections=(*_sections(lanes, groups, local, troubles), *(_look(*look) if look is not None else ())),
        made_at=made_at,
    )


def _verdict(totals: Mapping[str, Any], *, look_only: bool, clean: bool) -> str:
    if look_only:
        return (
            f"{totals['new']:,} records stand on the target alone and {totals['orphans']:,} on the source alone; "
            "nothing was changed."
        )
    done = (
        f"{totals['copied_back']:,} records were copied back, {totals['copied_back_ratio']:.2%} of the target's bytes; "
        f"{totals['orphans']:,} orphans."
    )
    return f"{done} The flow runs live again." if clean else f"{done} Some work is left: see below."


def _figures(totals: Mapping[str, Any]) -> Iterator[Figure]:
    yield Figure(name="copied back", value=totals["copied_back"], unit="records")
    yield Figure(name="of the target's bytes", value=round(100 * totals["copied_back_ratio"], 2), unit="%")
    passed = percent(totals["copied_back_passed_bytes"], totals["copied_back_bytes"])
    yield Figure(name="passed through", value=passed, unit="% of what was copied back")
    yield Figure(name="orphans", value=totals["orphans"], unit="records")
    yield Figure(name="conflicts", value=totals["conflicts"], unit="keys written on both sides")
    yield Figure(name="differing", value=totals["differing"], unit="lanes", tone=_bad(totals["differing"]))
    yield Figure(name="unmapped", value=totals["unmapped"], unit="records", tone=_bad(totals["unmapped"]))
    yield Figure(name="groups not ready", value=totals["groups_not_ready"], tone=_bad(totals["groups_not_ready"]))
    yield Figure(name="read again", value=totals["reread"], unit="records", tone=_bad(totals["reread"]))


def _sections(
    lanes: Sequence[LaneOutcome],
    groups: Sequence[ReturningGroup],
    local: Sequence[LocalTopic],
    troubles: Sequence[str],
) -> Iterator[ReportSection]:
    waits = [*troubles, *(f"{_named(each)}: {text}" for each in lanes if (text := _waits(each)))]
    if waits:
        yield ReportSection(heading="What is left to do", text=tuple(waits))
    yield ReportSection(
        heading="Lanes",
        text=(
            "A new record stands on the target, and no run of the flow's chain claims it.",
            "An orphan stands on the source, and was never replicated before the source was lost.",
        ),
        tables=(_lane_table(lanes), _orphan_table(lanes), *_conflict_tables(lanes)),
        plots=(_downstream_plot(lanes), _upstream_plot(lanes)),
    )
    yield ReportSection(heading="Consumer groups", tables=(_group_table(groups),))
    if local:
        yield ReportSection(
            heading="Topics of the target's own",
            text=(
                "These were written on the target under the source's names: they are not this flow's.",
                "A flow the other way brings them to the source, or a backfill of that flow.",
            ),
            tables=(
                Table.of(
                    "Topics",
                    local,
                    {
                        "topic": lambda each: each.topic,
                        "offsets in its log": lambda each: each.offsets,
                        "since the lanes were held": lambda each: each.since,
                    },
                ),
            ),
        )


def _look(found: FailbackForecast, readers: Sequence[OrphanReader]) -> Iterator[ReportSection]:
    rate = f", read from the target at {found.bytes_per_second / 1e6:,.1f} MB/s" if found.bytes_per_second else ""
    duration = (
        f"At least {found.seconds:,} s for {found.bytes:,} bytes, with {found.round_trip_ms:,.1f} ms between the job "
        f"and the source{rate}. Producers stand still meanwhile."
    )
    table = Table(
        title="Groups that had read orphans on the source",
        columns=("group", "orphans at most"),
        rows=tuple((each.group, each.records) for each in readers),
        note="Of a replay they read these once more.",
    )
    yield ReportSection(heading="The failback to come", text=(duration,), tables=(table,))


def _waits(lane: LaneOutcome) -> str:
    unmapped = (
        f"{lane.unmapped:,} records that came back stand between replicated ones on the target: their offsets do not "
        "translate, and groups that stand there continue at the next record that does"
    )
    return "; ".join(each for each in (lane.differs, lane.error, lane.waits, unmapped if lane.unmapped else "") if each)


def _lane_table(lanes: Sequence[LaneOutcome]) -> Table:
    return Table.of(
        "Records by lane",
        lanes,
        {
            "lane": _named,
            "on the target": lambda each: each.on_target,
            "new there": lambda each: each.new,
            "copied back": lambda each: each.copied_back,
            "bytes": lambda each: each.copied_back_bytes,
            "% passed": lambda each: percent(each.copied_back_passed_bytes, each.copied_back_bytes),
            "orphans": lambda each: each.orphan_records,
            "policy": lambda each: each.policy,
            "moved": lambda each: each.orphans_moved,
            "position": lambda each: each.position,
        },
        tone=lambda each: _bad(not each.clean),
    )


def _orphan_table(lanes: Sequence[LaneOutcome]) -> Table:
    return Table(
        title="Orphans, by upstream offset",
        columns=("lane", "first", "last", "records", "bytes", "policy"),
        rows=tuple(
            (_named(each), found.first, found.next - 1, found.records, found.bytes, each.policy)
            for each in lanes
            for found in each.orphans
        ),
        note="Each is in the loss ledger as well: `mirrorless losses`. Keys and times of all: orphans/*.parquet in the "
        "run's folder.",
    )


def _conflict_tables(lanes: Sequence[LaneOutcome]) -> Iterator[Table]:
    """What was written on both sides; nothing where nothing was."""
    listed = [(lane, each) for lane in lanes for each in lane.conflicting]
    if not listed:
        return
    withheld = sum(lane.orphans_withheld for lane in lanes)
    yield Table.of(
        "Keys that were written on both sides",
        listed,
        {
            "lane": lambda each: _named(each[0]),
            "key": lambda each: each[1].key,
            "orphan": lambda each: _place(each[1].orphan),
            "at": lambda each: _time(each[1].orphan.timestamp),
            "bytes": lambda each: each[1].orphan.bytes,
            "other record": lambda each: _place(each[1].other),
            "written": lambda each: _time(each[1].other.timestamp),
            "other bytes": lambda each: each[1].other.bytes,
            "newer": lambda each: "the other record" if each[1].older else "the orphan",
        },
        note=f"{len(listed):,} of {sum(lane.conflicts for lane in lanes):,} keys. Withheld from the replay, since the "
        f"topic is compacted and the orphan is not the newer record: {withheld:,}.",
    )


def _named(lane: LaneOutcome) -> str:
    return f"{lane.topic}-{lane.partition}"


def _place(written: ConflictRecord) -> str:
    return f"{written.side} {written.offset:,}{', deleted' if written.tombstone else ''}"


def _time(at: int) -> str:
    return moment(at) if at >= 0 else "unknown"


def _downstream_plot(lanes: Sequence[LaneOutcome]) -> LanePlot:
    return LanePlot(
        title="The target, by downstream offset",
        lanes=tuple(
            (
                f"{each.remote_topic}-{each.partition}",
                (
                    *((Segment(first=0, next=each.claimed_until, kind=REPLICATED),) if each.claimed_until else ()),
                    *(Segment(first=new.first, next=new.next, kind=NEW) for new in each.new_ranges),
                ),
            )
            for each in lanes
        ),
        tones={REPLICATED: "quiet", NEW: "good"},
        counts={REPLICATED: sum(each.on_target - each.new for each in lanes), NEW: sum(each.new for each in lanes)},
        first=tuple(f"{each.remote_topic}-{each.partition}" for each in lanes if not each.clean),
    )


def _upstream_plot(lanes: Sequence[LaneOutcome]) -> LanePlot:
    return LanePlot(
        title="The source, by upstream offset",
        lanes=tuple(
            (
                _named(each),
                (
                    *((Segment(first=0, next=each.position_before, kind=REPLICATED),) if each.position_before else ()),
                    *(Segment(first=found.first, next=found.next, kind=ORPHANED) for found in each.orphans),
                ),
            )
            for each in lanes
        ),
        tones={REPLICATED: "quiet", ORPHANED: "bad"},
        counts={ORPHANED: sum(each.orphan_records for each in lanes)},
        first=tuple(_named(each) for each in lanes if not each.clean),
    )


def _group_table(groups: Sequence[ReturningGroup]) -> Table:
    return Table.of(
        "Offsets of each group on the source",
        groups,
        {
            "group": lambda each: each.group,
            "readiness": lambda each: each.readiness,
            "read again": lambda each: each.reread,
            "kept": lambda each: each.kept,
            "places": lambda each: len(each.lanes),
            "committed": lambda each: sum(lane.written for lane in each.lanes),
        },
        tone=lambda each: _bad(each.readiness not in READY),
        note="Kept: read on the source before the outage, and not again, although the group stands before it there.",
    )


def _bad(wrong: object) -> Tone:
    return "bad" if wrong else ""
