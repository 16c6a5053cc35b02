"""Steps 3 to 7 of replicate.py: planned lanes of a portion, written to the target and to their chains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from mirrorless.chain.lane import Lane
from mirrorless.chain.lane_state import Stop
from mirrorless.chain.losses import Loss
from mirrorless.chain.run import Run
from mirrorless.clock import Deadline
from mirrorless.errors import LostRace, NotAcknowledged, Retriable
from mirrorless.ports.kafka import PORTION, Delivery, Refusal, Target, Writer
from mirrorless.ports.stores import Chains
from mirrorless.protocol.hooks import reached
from mirrorless.protocol.outgoing import Element, of_batches, records_in
from mirrorless.protocol.plan import LanePlan
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.settle import Attempt, lost_end, settle_lane
from mirrorless.records.record import Record, size_of

SMALLER: Final = ("zstd", "gzip")
"""Codecs by which a record is tried that is too large by the flow's own: its producer's made it fit, and no event names
that."""


@dataclass(slots=True)
class RefusalSearch:
    """The search for a refused record in one lane, in smaller and smaller batches, while those before it are committed.

    A target refuses a whole batch, and a producer says which one. One record per batch would name the record, but costs
    a round trip for each record before it. So a lane with a refusal goes in portions of at most `PORTION` batches, each
    portion a transaction: the batches before the refused one are committed, and the refused one is written again as
    `PORTION` smaller ones, until a batch holds one record. Ten thousand records take four steps, a portion ends within
    the transaction's timeout at any usual delay, and a search that is cut off continues from the last commit.

    Pure: outcomes of writes in, the size of the next batches out.
    """

    batch: int
    """How many records the next batches have at most."""
    certain: int = 0
    """How many records at the front the target took before it refused the next batch: they go alone, and first."""
    _suspect: int = 0
    """How many records at the front were refused as one batch."""
    _bytes: int = 0
    """Of that batch, at most."""

    @classmethod
    def among(cls, records: int) -> RefusalSearch:
        """A search among so many records."""
        return cls(_share(records))

    def refused(self, index: int, size: int) -> bool:
        """Narrow the search.

        Args:
            index: of the refused batch's first record.
            size: bytes of as many records as that batch had at most.

        Returns:
            whether that record alone was refused. If so, it ends the search.
        """
        if self.batch == 1:
            self.certain = self._suspect = 0
            return True
        self.certain, self._bytes = index, size
        if not index:
            self._narrow()
        return False

    def first(self, index: int) -> None:
        """Let so many records that the target took go first, and the refused one behind them come again."""
        self.certain = index

    def taken(self, records: int, left: int) -> int:
        """Continue behind records that the target took, of which `left` follow.

        Returns:
            the bytes of a batch that was refused and has been taken in smaller ones: only its size was too large. 0 if
            there was none.
        """
        if self.certain:
            self.certain -= records
            if not self.certain:
                self._narrow()
            return 0
        whole = self._bytes if 0 < self._suspect <= records else 0
        self._suspect = max(0, self._suspect - records)
        if not self._suspect:
            self.batch = max(self.batch, _share(left))
        return whole

    def _narrow(self) -> None:
        self._suspect, self.batch = self.batch, _share(self.batch)


def _share(records: int) -> int:
    return max(1, -(-records // PORTION))


@dataclass(frozen=True, slots=True, kw_only=True)
class PortionTransactions:
    """The transactions of one portion: one for its lanes, and others for a lane with a record that is refused."""

    delivery: Literal["exactly_once", "at_least_once"]
    remote_topic: Callable[[str], str]
    chains: Chains
    positions: Positions
    target: Target
    clock: Callable[[], int]
    new_id: Callable[[], str]
    note: Callable[[Loss], None]
    """Keeps a loss, before the chain passes it: noting one twice keeps one, forgetting it would hide it."""
    request: str
    """See `Replicator.replicate`."""
    deadline: Deadline

    def write(self, plans: Sequence[LanePlan]) -> tuple[list[Run], list[tuple[LanePlan, Refusal]], list[LanePlan]]:
        """Steps 3 to 7 for `plans` in one transaction; without the others the rest goes again.

        Returns:
            the runs, the plans with a refused record and the refusal, and those stopped because the target lost
            records.
        """
        self._note(plans)
        refused: list[tuple[LanePlan, Refusal]] = []
        broken: list[LanePlan] = []
        rest = list(plans)
        while rest:
            writer = self.target.writer(self.deadline)
            deliveries = self._produce(writer, rest)
            if any(delivery.unclear for delivery in deliveries.values()):
                writer.abort(self.deadline)
                continue
            good: list[LanePlan] = []
            for plan in rest:
                delivery = deliveries[plan.lane]
                if (stop := self._lost_end(writer, plan, delivery)) is not None:
                    broken.append(replace(plan, stop=stop))
                elif delivery.refusal is not None:
                    refused.append((plan, delivery.refusal))
                else:
                    good.append(plan)
            if good and (len(good) == len(rest) or self.delivery == "at_least_once"):
                # Without a transaction nothing is spoilt for the other lanes: what they wrote stands.
                return self._record(writer, good, deliveries), refused, broken
            writer.abort(self.deadline)
            rest = good
        return [], refused, broken

    def write_alone(self, plan: LanePlan, refusal: Refusal) -> tuple[list[Run], Stop | None]:
        """One lane alone, up to the record that the target refuses.

        Of whole batches those before the refused one pass, its records are searched, and those behind it pass again.

        Args:
            plan: of the lane.
            refusal: of it.
        """
        refused = refusal.index
        if not of_batches(plan.write):
            return self._write_carefully(plan)
        runs: list[Run] = []
        while True:
            before = plan.first(refused)
            if before.moves:
                taken, again, broken = self.write([before])
                runs += taken
                if broken:
                    return runs, broken[0].stop
                if again:
                    refused = again[0][1].index  # the target judges by the moment: nothing was written
                    continue
                plan = plan.behind(runs[-1])
            one = plan.first(1)
            parts, stop = self._write_carefully(replace(one, write=list(records_in(one.write))))
            runs += parts
            if stop is not None:
                return runs, stop
            self.target.limit_batches(sum(each.batch.size for each in one.write if not isinstance(each, Record)))
            plan = plan.behind(runs[-1])
            rest, again, broken = self.write([plan] if plan.moves else [])
            runs += rest
            if not again:
                return runs, broken[0].stop if broken else plan.stop
            ((plan, refusal),) = again
            refused = refusal.index

    def _write_carefully(self, plan: LanePlan) -> tuple[list[Run], Stop | None]:
        """One lane alone, up to the record that the target refuses; see `RefusalSearch`."""
        runs: list[Run] = []
        search = RefusalSearch.among(len(plan.write))
        while plan.moves:
            portion = plan.first(search.certain or len(plan.write))
            self._note([portion])
            writer = self.target.careful_writer(search.batch, self.deadline)
            delivery = self._produce(writer, [portion])[plan.lane]
            if (lost := self._lost_end(writer, portion, delivery)) is not None:
                writer.abort(self.deadline)
                return runs, lost
            if delivery.refusal is None:
                taken = len(delivery.downstream)
                runs += self._record(writer, [portion.first(taken)], {plan.lane: delivery})
                plan = plan.behind(runs[-1])
                if too_large := search.taken(taken, len(plan.write)):
                    self.target.limit_batches(too_large)
                continue
            writer.abort(self.deadline)
            index, place = delivery.refusal.index, (self.remote_topic(plan.lane.topic), plan.lane.partition)
            rest: Sequence[Record] = portion.write[index:]  # type: ignore[assignment]  # a search is one among records
            refusal = self.target.explained(place, rest, delivery.refusal, self.deadline)
            named = [index + each for each in refusal.records]
            if not named and search.refused(index, _size(rest[: search.batch])):
                if refusal.too_large and index:
                    search.first(index)
                    continue
                if refusal.too_large and (taken_run := self._write_smaller(plan.first(1))) is not None:
                    runs.append(taken_run)
                    plan = plan.behind(taken_run)
                    search = RefusalSearch.among(len(plan.write))
                    continue
                named = [index]
            if named:
                plan, search = self._without(plan, named, refusal), RefusalSearch.among(len(plan.write))
        return runs, plan.stop

    def _write_smaller(self, plan: LanePlan) -> Run | None:
        """One record that was too large, by the codec by which it fits; None where there is none."""
        for codec in SMALLER:
            writer = self.target.careful_writer(1, self.deadline, codec=codec)
            delivery = self._produce(writer, [plan])[plan.lane]
            if delivery.refusal is None and self._lost_end(writer, plan, delivery) is None:
                (run,) = self._record(writer, [plan], {plan.lane: delivery})
                self.target.prefer(codec)
                return run
            writer.abort(self.deadline)
        return None

    def _without(self, plan: LanePlan, refused: Sequence[int], refusal: Refusal) -> LanePlan:
        """A plan without the refused records that an order leaves out, and up to the first that none does."""
        records: Sequence[Record] = plan.write  # type: ignore[assignment]  # a search is one among records
        offsets = [records[index].offset for index in refused]
        standing = next((offset for offset in offsets if not plan.leaves_out(offset, refusal.cause)), None)
        plan = plan.without({offset for offset in offsets if standing is None or offset < standing})
        if standing is None:
            return plan
        stop = Stop(
            reason="refused", upstream_offset=standing, detail=refusal.detail, at=self.clock(), cause=refusal.cause
        )
        # Without the stop the plan would pass over the record, where it covers what lies behind.
        before = sum(each.offset < standing for each in plan.write)
        return replace(plan.first(before), stop=stop)

    def _note(self, plans: Sequence[LanePlan]) -> None:
        for plan in plans:
            for loss in plan.losses(now=self.clock()):
                self.note(loss)

    def _lost_end(self, writer: Writer, plan: LanePlan, delivery: Delivery) -> Stop | None:
        """See `lost_end`; compared with what the chain's newest record is now.

        Raises:
            LostRace: the remembered position is stale: after a reset, its newest record may be in a topic that is gone.
        """
        stop = lost_end(plan, delivery.downstream, now=self.clock())
        if stop is not None:
            head = self.chains.heads([plan.lane])[plan.lane]
            if (head.generation, head.position) != (plan.head.generation, plan.head.position):
                writer.abort(self.deadline)
                raise LostRace("the lane was reset or moved on since its position was read", where=str(plan.lane))
        return stop

    def _produce(self, writer: Writer, plans: Sequence[LanePlan]) -> dict[Lane, Delivery]:
        remote = {plan.lane: (self.remote_topic(plan.lane.topic), plan.lane.partition) for plan in plans}
        written = writer.write(
            {remote[plan.lane]: _content(plan) for plan in plans}, self.deadline, self.chains.catch_up(remote)
        )
        reached("produced")
        return {lane: written[place] for lane, place in remote.items()}

    def _record(
        self,
        writer: Writer,
        plans: Sequence[LanePlan],
        deliveries: Mapping[Lane, Delivery],
    ) -> list[Run]:
        # 4. Settle.
        attempt = Attempt(
            writer=writer.transactional_id,
            attempt=self.new_id(),
            request=self.request,
            now=self.clock(),
            throttled_ms=writer.throttled_ms,
        )
        runs = [settle_lane(plan, deliveries[plan.lane].downstream, attempt) for plan in plans]
        reached("settled")
        if self.delivery == "at_least_once":
            runs = [run.committed() for run in runs]
            self.chains.prepare(runs, self.deadline)
        else:
            runs = self._commit(writer, runs)
        reached("confirmed")
        self.positions.advance(runs)
        return runs

    def _commit(self, writer: Writer, runs: list[Run]) -> list[Run]:
        # 5. Prepare.
        try:
            self.positions.heed_orders((run.lane for run in runs), self.deadline)
            self.chains.prepare(runs, self.deadline)
        except Retriable:
            # Abort first: while the transaction could still commit, the prepared runs must keep naming it.
            writer.abort(self.deadline)
            self.chains.withdraw(runs, self.deadline)
            raise
        reached("prepared")

        # 6. Commit. If this fails, the runs stay in doubt, and the chain decides.
        try:
            writer.commit(self.deadline)
        except Retriable as exc:
            if not writer.throttled_ms:
                raise
            # A quota's pauses hold back this request, too, for longer than the transaction may take.
            raise NotAcknowledged(exc.what, where=exc.where, hint=exc.hint) from exc
        reached("committed")

        # 7. Confirm.
        committed = [run.committed() for run in runs]
        self.chains.confirm(committed, self.deadline)
        return committed


def _content(plan: LanePlan) -> Sequence[Record]:
    """What its writer is given: whole batches where the lane was read by them."""
    return [each.batch for each in plan.write] if of_batches(plan.write) else plan.write  # type: ignore[misc,return-value]  # see `Writer.write`


def _size(records: Sequence[Element]) -> int:
    return sum(size_of(record) for record in records if isinstance(record, Record))
