"""The plan of a lane: records of a batch at or above the position, up to the first that cannot be written.

Of a lane that was read by whole record batches, those batches pass that no order cuts; see `outgoing`.

Pure: heads and the operator's orders in, a plan out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Head, LaneState, LeftOut, Stop
from mirrorless.chain.losses import Loss, quarantine_detail, quarantined_loss
from mirrorless.chain.run import NO_EPOCH, Run
from mirrorless.protocol.outgoing import Element, LaneContent, OutgoingBatch, is_raw, last_offset, opened, sealed
from mirrorless.protocol.refusal_causes import NAME_NOT_TEXT, NUL_IN_NAME, TRANSFORM_FAILED, ZERO_TIMESTAMP
from mirrorless.records.record import NOT_TEXT, Record

if TYPE_CHECKING:
    from mirrorless.records.origin import OriginRule
    from mirrorless.records.record_batch import BatchUnreadable, PassTerms, RecordBatch
    from mirrorless.transforms.transform import TopicTransform

_offset = attrgetter("offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePlan:
    """What is to be done for one lane of a batch."""

    lane: Lane
    head: Head
    write: Sequence[Record] | Sequence[OutgoingBatch]
    """In order, all at or above the position."""
    replayed: Sequence[Element]
    """Below the position: to be compared with what the chain says, then dropped."""
    quarantined: tuple[int, ...]
    """Upstream offsets in this batch that the operator ordered to leave out."""
    stop: Stop | None
    """Where and why the lane stops after `write`; None when it goes on."""
    covered: int = 0
    """The upstream offset below which nothing is left to come; see `Batch.covered`."""
    returned: tuple[int, ...] = ()
    """Upstream offsets of records that were first produced on the target; see `mirrorless.records.origin`."""
    rule: bytes = b""
    """By which `write` was changed, see `Run.rule`."""
    filtered: tuple[int, ...] = ()
    """Upstream offsets of records that the rule leaves out."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Why the rule cannot be applied, of those among `quarantined` that `on.error: drop` leaves out."""
    epoch: int = NO_EPOCH
    """At its end, see `Run.epoch`; not known of a part of the batch."""
    orders: tuple[LeftOut, ...] = ()
    """Of the operator, for records that the target will refuse."""
    examined: bool = False
    """See `Run.examined`."""

    @property
    def next(self) -> int:
        """The lane's position once this plan is carried out."""
        last_written = last_offset(self.write[-1]) if self.write else -1
        last_quarantined = self.quarantined[-1] if self.quarantined else -1
        covered = self.covered if self.stop is None else 0
        last_returned = self.returned[-1] if self.returned else -1
        last_filtered = self.filtered[-1] if self.filtered else -1
        last = max(last_written, last_quarantined, last_returned, last_filtered)
        return max(self.head.position, last + 1, covered)

    @property
    def unproven(self) -> Sequence[Element]:
        """Records below the position that must be held against the chain: all, but those that the stop holds anyway.

        A stop that stands where a log parts names the place better than a comparison from the first record on.
        """
        if self.stop is None:
            return self.replayed
        return [each for each in self.replayed if each.offset < self.stop.upstream_offset]

    @property
    def moves(self) -> bool:
        """Whether carrying out this plan adds a link to the chain."""
        return self.next > self.head.position

    def first(self, count: int) -> LanePlan:
        """The part of this plan with its first `count` elements; all of it where it has no more.

        A part covers no more than its elements, for what stops the lane comes behind them.
        """
        if count >= len(self.write):
            return self
        following = self.write[count].offset
        quarantined = tuple(offset for offset in self.quarantined if offset < following)
        returned = tuple(offset for offset in self.returned if offset < following)
        filtered = tuple(offset for offset in self.filtered if offset < following)
        return replace(
            self,
            write=self.write[:count],
            quarantined=quarantined,
            returned=returned,
            filtered=filtered,
            stop=None,
            covered=0,
            epoch=NO_EPOCH,
        )

    def without(self, offsets: Collection[int]) -> LanePlan:
        """This plan without some records that an order leaves out."""
        write: Sequence[Record] = [each for each in self.write if each.offset not in offsets]  # type: ignore[misc]  # records
        return replace(self, write=write, quarantined=tuple(sorted({*self.quarantined, *offsets})))

    def leaves_out(self, offset: int, cause: str) -> bool:
        """Whether an order leaves out this record, which is refused for a cause."""
        return any(order.covers(offset, cause) for order in self.orders)

    def losses(self, *, now: int) -> list[Loss]:
        """What it leaves out by order, for the ledger: neighbours together."""
        found: list[Loss] = []
        for offset in self.quarantined:
            # Of a batch that nobody can read only the first offset need be ordered, and all of it goes.
            begun = [each for each in self.orders if each.first <= offset]
            why = next((each for each in begun if offset < each.next), begun[-1]).why if begun else ""
            why = self.failed.get(offset, why)
            last = found[-1] if found else None
            if last is not None and last.next == offset and last.detail == quarantine_detail(why):
                found[-1] = replace(last, next=offset + 1)
            else:
                found.append(quarantined_loss(self.lane, self.head.generation, offset, why, at=now))
        return found

    def behind(self, run: Run) -> LanePlan:
        """What is left of this plan once its first part has become a run."""
        return replace(
            self,
            head=Head(generation=run.generation, position=run.next, run=run),
            write=self.write[bisect_left(self.write, run.next, key=_offset) :],
            quarantined=tuple(offset for offset in self.quarantined if offset >= run.next),
            returned=tuple(offset for offset in self.returned if offset >= run.next),
            filtered=tuple(offset for offset in self.filtered if offset >= run.next),
        )


def plan_lane(
    lane: Lane,
    head: Head,
    state: LaneState,
    content: LaneContent,
    *,
    now: int,
    covered: int = 0,
    begins: int = 0,
    terms: PassTerms | None = None,
    origin: OriginRule | None = None,
    left_out: tuple[int, int] | None = None,
    transform: TopicTransform | None = None,
) -> LanePlan:
    """Decide one lane's part of a batch.

    Args:
        lane: the lane.
        head: where its chain ends; not in doubt.
        state: the operator's orders, and a stop that still stands.
        content: the batch's records or record batches of this lane, offsets growing.
        now: ms since the epoch.
        covered: see `Batch.covered`.
        begins: see `Batch.begins`.
        terms: of the lane, where it is read by whole batches.
        origin: the rule of the topic, where records may return; then it is read by records.
        left_out: see `Batch.left_out`.
        transform: the topic's rule; None: its records stay as they are.
    """
    if is_raw(content) and transform is not None:
        return _plan_opened(lane, head, state, content, now=now, covered=covered, begins=begins, transform=transform)
    if is_raw(content):
        if origin is not None:
            raise ValueError(f"{lane}: whole batches, whose records have no origin header")
        return _plan_batches(lane, head, state, content, now=now, covered=covered, begins=begins, terms=terms)
    unread = range(*left_out) if left_out is not None else ()
    return _plan_elements(
        *(lane, head, state, content),  # type: ignore[arg-type]  # records
        now=now,
        covered=covered,
        origin=origin,
        unread=unread,
        transform=transform,
    )


def _plan_opened(
    lane: Lane,
    head: Head,
    state: LaneState,
    batches: Sequence[RecordBatch],
    *,
    now: int,
    covered: int,
    begins: int,
    transform: TopicTransform,
) -> LanePlan:
    """The plan of whole batches whose records are changed; one that cannot be read stops the lane, unless ordered."""
    from mirrorless.records.batch_records import records  # noqa: PLC0415  see `outgoing`
    from mirrorless.records.record_batch import BatchUnreadable  # noqa: PLC0415  same

    some: list[Record] = []
    unread: list[int] = []
    unreadable: Stop | None = None
    for batch in batches:
        if batch.next <= begins or not batch.records_count:
            continue
        try:
            some += [each for each in records(batch) if each.offset >= begins]
        except BatchUnreadable as exc:
            if state.left_out(exc.offset, exc.cause) is None:
                unreadable = unreadable_stop(exc, now=now)
                break
            unread += range(max(batch.base_offset, begins), batch.next)
    plan = _plan_elements(
        lane, head, state, some, now=now, covered=covered, any_record=True, unread=unread, transform=transform
    )
    return replace(plan, stop=plan.stop or unreadable)


def _plan_batches(
    lane: Lane,
    head: Head,
    state: LaneState,
    batches: Sequence[RecordBatch],
    *,
    now: int,
    covered: int,
    begins: int,
    terms: PassTerms | None,
    opened_too: frozenset[int] = frozenset(),
    unread: tuple[int, ...] = (),
) -> LanePlan:
    """The plan of whole batches; one that cannot be read stops the lane.

    Those of `opened_too` do not pass; offsets of `unread` are of batches that an order leaves out.
    """
    from mirrorless.records.record_batch import BatchUnreadable  # noqa: PLC0415  see `outgoing`

    if terms is None:
        raise ValueError(f"{lane}: whole batches, and no terms of their remote topic")
    end = state.stop.upstream_offset if state.stop else None
    try:
        apart = [range(each.first, each.next) for each in state.quarantine if not each.cause]
        apart += [range(offset, offset + 1) for offset in opened_too]
        elements = opened(batches, terms, begins=begins, position=head.position, apart=apart, end=end)
        plan = _plan_elements(lane, head, state, elements, now=now, covered=covered, any_record=True, unread=unread)
        return replace(plan, write=sealed(plan.write, batches[-1].codec, terms) if plan.write else ())
    except BatchUnreadable as exc:
        if exc.by_records and exc.offset not in opened_too:
            some = opened_too | {exc.offset}
            return _plan_batches(
                *(lane, head, state, batches),
                now=now,
                covered=covered,
                begins=begins,
                terms=terms,
                opened_too=some,
                unread=unread,
            )
        if state.left_out(exc.offset, exc.cause) is not None:
            (bad,) = (batch for batch in batches if batch.base_offset == exc.offset)
            return _plan_batches(
                *(lane, head, state, [batch for batch in batches if batch is not bad]),
                now=now,
                covered=max(covered, batches[-1].next),
                begins=begins,
                terms=terms,
                opened_too=opened_too,
                unread=(*unread, *range(max(bad.base_offset, begins), bad.next)),
            )
        readable = [batch for batch in batches if batch.next <= exc.offset]
        plan = plan_lane(lane, head, state, readable, now=now, begins=begins, terms=terms)
        stop = unreadable_stop(exc, now=now)
        return replace(plan, stop=plan.stop or stop)


def unreadable_stop(exc: BatchUnreadable, *, now: int) -> Stop:
    """The stop of a lane at a batch that cannot be read."""
    return Stop(
        reason="refused", upstream_offset=exc.offset, detail=f"{exc.where}: {exc.what}", at=now, cause=exc.cause
    )


def passed_over(exc: BatchUnreadable, state: LaneState, position: int) -> tuple[int, int] | None:
    """The upstream offsets that an order leaves out with a batch that cannot be read; None where there is no order."""
    if exc.next is None or state.left_out(exc.offset, exc.cause) is None:
        return None
    return max(exc.offset, position), exc.next


def _plan_elements(
    lane: Lane,
    head: Head,
    state: LaneState,
    records: Sequence[Element],
    *,
    now: int,
    covered: int,
    any_record: bool = False,
    origin: OriginRule | None = None,
    unread: Sequence[int] = (),
    transform: TopicTransform | None = None,
) -> LanePlan:
    """The plan of records, or of batches between records.

    `any_record`: of a writer that writes each as it is. `unread`: offsets that an order leaves out unread.
    """
    last = max(last_offset(records[-1]) if records else -1, covered - 1)
    returned: tuple[int, ...] = ()
    if origin is not None:
        records, found = origin.split(records)  # type: ignore[arg-type]  # no batches
        returned = tuple(offset for offset in found if offset >= head.position)
    below = 0
    if records and records[0].offset < head.position:
        below = next((i for i, record in enumerate(records) if record.offset >= head.position), len(records))
    replayed, fresh = records[:below], records[below:] if below else records

    quarantined = tuple(offset for offset in unread if offset >= head.position)
    changed = _Changed(fresh)
    if transform is not None:
        changed = _changed(fresh, transform, lane, state, now=now)  # type: ignore[arg-type]  # records
        fresh, quarantined = changed.records, tuple(sorted({*quarantined, *changed.left_out}))
    if state.quarantine:
        left_out = {record.offset for record in fresh if _left_out(record, state, packed=any_record)}
        fresh = [record for record in fresh if record.offset not in left_out]
        quarantined = tuple(sorted({*quarantined, *left_out}))

    # A stop beyond this batch is no reason to have the batch delivered again.
    standing = state.stop if state.stop and last >= state.stop.upstream_offset else None
    stop = standing or _first_unwritable(fresh, now=now, packed=any_record)
    if changed.stop is not None and (stop is None or changed.stop.upstream_offset < stop.upstream_offset):
        stop = changed.stop
    filtered = changed.filtered
    if stop is not None:
        fresh = [record for record in fresh if record.offset < stop.upstream_offset]
        quarantined = tuple(offset for offset in quarantined if offset < stop.upstream_offset)
        returned = tuple(offset for offset in returned if offset < stop.upstream_offset)
        filtered = tuple(offset for offset in filtered if offset < stop.upstream_offset)
    return LanePlan(
        lane=lane,
        head=head,
        write=fresh,  # type: ignore[arg-type]  # of one kind, or sealed next
        replayed=replayed,
        quarantined=quarantined,
        returned=returned,
        stop=stop,
        covered=covered,
        rule=transform.id if transform is not None else b"",
        filtered=filtered,
        failed=changed.failed,
        orders=state.quarantine,
    )


@dataclass(slots=True)
class _Changed:
    """What a rule makes of a lane's records."""

    records: Sequence[Element]
    filtered: tuple[int, ...] = ()
    left_out: Sequence[int] = ()
    """To which it cannot be applied, and that go by an order."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Those of them that go by `on.error: drop`, and why."""
    stop: Stop | None = None


def _changed(
    records: Sequence[Record], transform: TopicTransform, lane: Lane, state: LaneState, *, now: int
) -> _Changed:
    """Apply a rule, up to the first record to which it cannot be applied and that no order leaves out."""
    from mirrorless.transforms.transform import TransformFailed  # noqa: PLC0415  flows without rules never load it

    copies: list[Record] = []
    filtered: list[int] = []
    left_out: list[int] = []
    failed: dict[int, str] = {}
    stop: Stop | None = None
    for record in records:
        try:
            copy = transform.apply(record, lane.partition)
        except TransformFailed as exc:
            if transform.in_force.rule.on_error == "drop":
                failed[record.offset] = f"on.error: drop, {exc}"
            elif state.left_out(record.offset, TRANSFORM_FAILED) is None:
                stop = Stop(
                    reason="refused", upstream_offset=record.offset, detail=str(exc), at=now, cause=TRANSFORM_FAILED
                )
                break
            left_out.append(record.offset)
        else:
            if copy is None:
                filtered.append(record.offset)
            else:
                copies.append(copy)
    return _Changed(copies, tuple(filtered), left_out, failed, stop)


def _left_out(element: Element, state: LaneState, *, packed: bool) -> bool:
    """Whether the operator ordered to leave out a record: whatever becomes of it, or for what stands in its way."""
    if state.left_out(element.offset) is not None:
        return True
    found = _unwritable(element, packed=packed) if isinstance(element, Record) else None
    return found is not None and state.left_out(element.offset, found[0]) is not None


def _first_unwritable(elements: Sequence[Element], *, now: int, packed: bool) -> Stop | None:
    """The first record that cannot be written as it is.

    librdkafka takes the timestamp 0 for "now", and the Python client cuts a header's name at a NUL. A name that is no
    text is U+FFFD wherever it was decoded. All would arrive as something else, without an error.

    Args:
        elements: in order; batches pass.
        now: ms since the epoch.
        packed: whether records are packed into batches here, and not by the Kafka client.
    """
    some = [each for each in elements if isinstance(each, Record) and each.headers] if packed else elements
    for record in some:
        if isinstance(record, Record) and (found := _unwritable(record, packed=packed)) is not None:
            cause, detail = found
            return Stop(reason="refused", upstream_offset=record.offset, detail=detail, at=now, cause=cause)
    return None


def _unwritable(record: Record, *, packed: bool) -> tuple[str, str] | None:
    """Why a record cannot be written as it is: the cause, and words; None where it can."""
    if record.timestamp == 0 and not packed:
        return (
            ZERO_TIMESTAMP,
            "its timestamp is 0 (1970-01-01), which the Kafka client can only write as the present time",
        )
    if not record.headers:
        return None
    if not packed and any("\0" in name for name, _ in record.headers):
        return NUL_IN_NAME, "the name of one of its headers contains a NUL, at which the Kafka client would cut it"
    if any(NOT_TEXT in name for name, _ in record.headers):
        return NAME_NOT_TEXT, (
            "the name of one of its headers is not UTF-8, or has the character U+FFFD by which what is not is "
            "replaced: it passes only inside a whole batch (`trigger: schedule`, or a backfill)"
        )
    return None
