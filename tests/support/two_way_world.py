"""Clusters in memory that replicate one topic to each other under its own name, and what must hold of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from mirrorless.chain.lane import FlowName, Lane
from mirrorless.chain.run import Run
from mirrorless.errors import InDoubt
from mirrorless.protocol import hooks
from mirrorless.protocol.event import Batch
from mirrorless.protocol.positions import Positions
from mirrorless.protocol.replicate import Replicator
from mirrorless.protocol.translate import OffsetMap, OneWay, Translation, TwoWayPlace, place_there
from mirrorless.records.origin import ORIGIN_HEADER, OriginRule
from mirrorless.records.record import Headers, Record
from tests.support.chains import MemoryChains, MemoryLaneStates, MemoryLossLedger
from tests.support.clusters import Entry, MemoryCluster, MemorySource, MemoryTarget, stable_offset
from tests.support.schedule import Killed

TOPIC = "orders"
T = 1_763_686_800_000


@dataclass
class TwoWayWorld:
    """Clusters with one partition each, and flows between them."""

    flows: Sequence[FlowName]
    chains: MemoryChains = field(default_factory=MemoryChains)
    clusters: dict[str, MemoryCluster] = field(default_factory=dict)
    produced: list[tuple[str, bytes]] = field(default_factory=list)
    """Cluster and value of every record that an application has written."""
    environments: dict[FlowName, Replicator] = field(default_factory=dict)
    states: MemoryLaneStates = field(default_factory=MemoryLaneStates)
    _ids: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        for alias in dict.fromkeys(alias for flow in self.flows for alias in (flow.source, flow.target)):
            self.clusters[alias] = MemoryCluster(topics={TOPIC: [[]]})

    def log(self, alias: str) -> list[Entry]:
        """A cluster's log."""
        return self.clusters[alias].topics[TOPIC][0]

    def produce(self, alias: str, records: int = 1, *, marker: bool = False, headers: Headers | None = None) -> None:
        """Write as an application. Args: marker: whether it uses a transaction."""
        for _ in range(records):
            value = b"%d" % next(self._ids)
            record = Record(offset=0, timestamp=T, headers=list(headers or []), key=b"k", value=value)
            self.log(alias).append(Entry(record, "committed", ""))
            self.produced.append((alias, value))
        if marker:
            self.log(alias).append(Entry(None, "marker", ""))

    def rule(self, flow: FlowName) -> OriginRule:
        """The rule of a flow."""
        return OriginRule.of(TOPIC, source=flow.source, target=flow.target, clusters=self.clusters)

    def environment(self, flow: FlowName) -> Replicator:
        """A flow's warm environment."""
        if flow not in self.environments:
            cluster = self.clusters[flow.target]
            target = MemoryTarget(cluster, f"{flow.slug}.{next(self._ids)}")
            chains = self.chains.beside(self.chains.memory)
            self.environments[flow] = Replicator(
                flow=flow,
                delivery="exactly_once",
                remote_topic=str,
                chains=chains,
                positions=Positions(chains=chains, states=self.states, target=target, clock=lambda: T),
                ledger=MemoryLossLedger(),
                target=target,
                source=MemorySource(partitions=1),
                clock=lambda: T,
                new_id=lambda: f"attempt-{next(self._ids)}",
                origin=lambda _: self.rule(flow),
            )
        return self.environments[flow]

    def lane(self, flow: FlowName) -> Lane:
        """The lane of a flow."""
        return Lane(flow, TOPIC, 0)

    def visible(self, alias: str) -> list[Record]:
        """What a read_committed reader of a cluster sees, with offsets."""
        return [
            Record(offset=at, timestamp=each.timestamp, headers=each.headers, key=each.key, value=each.value)
            for at, each in self.clusters[alias].visible(TOPIC, 0)
        ]

    def deliver(self, flow: FlowName, records: int = 10_000, *, again: int = 0, dies_at: str = "") -> int:
        """One event of a mapping: records from the position on, and some before it. Returns how many are new.

        Args:
            flow: whose.
            records: at most.
            again: offsets before the position from which it is delivered again.
            dies_at: the point at which its environment is killed; empty for none.
        """
        position = self.chains.heads([self.lane(flow)])[self.lane(flow)].position
        found = [each for each in self.visible(flow.source) if each.offset >= position - again]
        new = [each for each in found if each.offset >= position][:records]
        batch = [each for each in found if each.offset < position] + new
        if not batch:
            return 0

        def kill(point: str) -> None:
            if point == dies_at:
                raise Killed

        hooks.observers.append(kill)
        try:
            self.environment(flow).replicate(Batch.of_topic(TOPIC, {0: batch}), request="r", deadline=lambda: 60.0)
        except (Killed, InDoubt):  # an open transaction of a dead environment hides what a mapping waits for
            del self.environments[flow]
        finally:
            hooks.observers.remove(kill)
        return len(new)

    def settle(self) -> None:
        """Deliver until nothing is new anywhere. Records that went in a circle would never let it end."""
        for cluster in self.clusters.values():
            cluster.time_transactions_out()  # of environments that died
        for _ in range(10 * len(self.flows)):
            if not sum([self.deliver(flow) for flow in self.flows]):
                return
        raise AssertionError("records are still on their way: they go in a circle")

    def assert_exactly_once(self) -> None:
        """Every record once on each cluster, with its origin on all but its own; the map is exact."""
        for alias in self.clusters:
            assert Counter(each.value for each in self.visible(alias)) == Counter(value for _, value in self.produced)
        origins = {value: alias for alias, value in self.produced}
        for alias in self.clusters:
            for each in self.visible(alias):
                origin = origins[each.value or b""]
                marks = [value for name, value in each.headers if name == ORIGIN_HEADER]
                assert marks == ([] if origin == alias else [f"{origin}/{TOPIC}".encode()])
        for flow in self.flows:
            self.assert_map(flow)

    def assert_map(self, flow: FlowName) -> None:
        """Spans pair each record with its copy, rows of returned records hold those of the target, and nothing else."""
        lane = self.lane(flow)
        runs = [link for link in self.chains.of(lane) if isinstance(link, Run)]
        source = {each.offset: each for each in self.visible(flow.source)}
        target = {each.offset: each for each in self.visible(flow.target)}
        returned = {at for run in runs for first, following in run.returned for at in range(first, following)}
        pairs = {s.upstream + i: s.downstream + i for run in runs for s in run.spans for i in range(s.length)}
        position = runs[-1].next if runs else 0
        assert pairs.keys() | returned == {at for at in source if at < position}
        assert not pairs.keys() & returned
        rule = self.rule(flow)
        assert returned == {at for at, each in source.items() if at < position and rule.returns(each)}
        for upstream, downstream in pairs.items():
            assert target[downstream].value == source[upstream].value
            assert target[downstream].headers == rule.marked(source[upstream]).headers
            exact = Translation(offset=downstream, state="exact")
            assert OffsetMap(self.chains).downstream(lane, upstream) == exact
            assert OffsetMap(self.chains).upstream(lane, downstream).offset == upstream

    def place(self, flow: FlowName, offset: int) -> TwoWayPlace:
        """Where a group goes on, on the target of a flow, that has read the source up to an offset."""
        stable = stable_offset(self.log(flow.source))
        heads = self.chains.heads([self.lane(flow), self.lane(flow.turned)])
        out, back = (OneWay.of(self.chains, self.lane(each), heads[self.lane(each)]) for each in (flow, flow.turned))
        return place_there(out, back, offset, stable_end=stable)
