"""One topic of a soak run: its records, its faults, who replicates it, the operator's part, and its audit."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass, field, replace
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from lab.audit.audit import TopicArrival, audit_topic, totals, wait_until_replicated
from lab.audit.expected_copies import ExpectedCopies, Keeps
from lab.audit.leaks import SecretSearch
from lab.audit.log_changes import UNCHANGED, LogChanges
from lab.audit.topic_reader import as_it_is, ends, read_topic, stable_ends
from lab.cloud import FlowMapping, Lab, addresses
from lab.drills.lane_operator import LaneOperator, answer_of
from lab.drills.workload import Workload, soak_shape
from lab.faults.injector import Injector
from lab.faults.schedule import DESTRUCTIVE, OF_SOURCE, PlannedFault, Schedule, SoakRule
from lab.faults.topic_changes import ChangedTopic, cut_ends, insist
from lab.waiting import wait_for
from mirrorless.adapters.dynamodb.chains import DynamoDbChains
from mirrorless.adapters.dynamodb.state_store import DynamoDbDocuments
from mirrorless.chain.lane import Lane
from mirrorless.config.flow import Flow
from mirrorless.errors import MirrorlessError, Retriable
from mirrorless.flow.triggers import MAPPING, SCHEDULE, Trigger
from mirrorless.topics.scheduled_topics import read_scheduled_topics
from mirrorless.verify.comparison import RecordAt

RECORDS_PER_SECOND = 500
"""At most: changes of the topic wait for one another, and the last of them is to come before the last records."""
CHANGED_WITHIN_SECONDS = 20.0
"""For which a fault waits for a change of the trigger; the run as a whole waits to its end."""
REPLICATED_WITHIN_SECONDS = 10.0
"""How long a change waits for the remote topic's first record."""
COPIED_WITHIN_SECONDS = 60.0
"""The same for a lane's first position, where nothing is written meanwhile; other faults hold it up."""
WRITTEN_AT_ONCE = 100
"""Records between two looks whether a log has outgrown what it lost."""


def _is_wanted(value: Any, headers: Mapping[str, str]) -> bool:
    return headers.get("region") != "internal" and value["country"] == "DE"


SECRET_LETTERS = 16
SERVERS_DATA = ("data", "dynamodb")
"""Folders that are read through their servers."""
ASKED = tuple(
    (*words, *more)
    for words in (("status", "--lanes"), ("losses",), ("lanes", "stopped"))
    for more in ((), ("--json",))
)
"""Commands whose answers are about all flows."""
MOST_SHOWN = 2_000
"""Letters of an error."""
KEY = "pii"
KEEPS: Mapping[SoakRule, Keeps] = {"masked": _is_wanted, "sealed": lambda *_: True}
"""The same as `keep` of the rules in soak.yaml."""


class SecretShown(MirrorlessError):
    """What a rule masks is shown somewhere; or the search for it is broken."""


@dataclass(slots=True, kw_only=True)
class SoakTopic:
    """One topic. `open`, `await_reader`, `run`, `audited`, `search`, in this order."""

    lab: Lab
    flow: Flow
    schedule: Schedule
    folder: Path
    """Of the lab."""
    configure: Callable[[], None]
    """Gives the flow the triggers of all topics of the run, as they are now."""
    over: threading.Event
    """Set, with `stop`, to let `run` end early."""
    name: str = field(init=False)
    trigger: Trigger = field(init=False)
    """The one that the topic has now."""
    faults: dict[str, int] = field(default_factory=dict)
    """Carried out, by kind and step."""
    changes: LogChanges = UNCHANGED
    secret: bytes = b""
    """That all which a rule is to mask has in it; empty where the records have no secrets."""
    copies: ExpectedCopies | None = None
    """None where the topic has no rule."""
    mapping: FlowMapping | None = None
    """None where no mapping of this topic stays."""
    operator: LaneOperator | None = None
    _workload: Workload = field(init=False)
    _changed: int = 0
    _configuring: threading.Lock = field(default_factory=threading.Lock)
    _foreign: set[bytes] = field(default_factory=set)
    _versions: dict[int, bytes] = field(default_factory=dict)
    """Of the rule's key, those that were in use."""
    _lost: dict[int, list[RecordAt]] = field(default_factory=dict)
    _kept: dict[int, int] = field(default_factory=dict)
    """Up to which upstream offset what was lost had been copied, by partition."""
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Name it."""
        schedule = self.schedule
        rule = f"{schedule.rule}-" if schedule.rule else ""
        self.name = f"soak-{rule}{schedule.seed}-{schedule.trigger}-{int(time.time())}"
        self.trigger = SCHEDULE if schedule.trigger == "schedule" else MAPPING
        if schedule.people:
            self.secret = sha256(self.name.encode()).hexdigest()[:SECRET_LETTERS].encode()
        if schedule.rule:
            self._know_key()
            self.copies = ExpectedCopies(self._rule(), KEEPS[schedule.rule], {KEY: self._versions})
        self._workload = Workload(
            addresses(self.lab.beside(self.flow).source),
            records=schedule.records,
            seed=schedule.seed,
            seconds=schedule.records / RECORDS_PER_SECOND * schedule.pace,
            shapes={self.name: soak_shape(schedule.partitions, self.secret)},
            transaction_timeout_ms=5_000,
        )

    @property
    def options(self) -> dict[str, Any]:
        """The mapping's settings of the schedule, in the API's names."""
        schedule = self.schedule
        return {
            "BatchSize": schedule.batch_size,
            "MaximumBatchingWindowInSeconds": schedule.window_seconds,
            "ProvisionedPollerConfig": {"MinimumPollers": schedule.pollers, "MaximumPollers": schedule.pollers},
            "FunctionResponseTypes": ["ReportBatchItemFailures"] if schedule.partial_responses else [],
        }

    def open(self) -> None:
        """Create the source topic."""
        self._workload.create_topics()

    def await_reader(self, deadline: float) -> None:
        """Wait until the topic is read by its trigger; without schedules, map it.

        Raises:
            TimeoutError: it is not.
        """
        lab = self.lab
        if not lab.control:
            self.mapping = lab.map_topic(self.flow, self.name, **self.options)
        self._await_trigger(deadline)
        mappings = [each for each in lab.flow_mappings if each.topic == self.name]
        for mapping in mappings:
            lab.mappings.wait_enabled(mapping.uuid)
            if self.schedule.trigger == "mapping":
                self.mapping = mapping

    def run(self, deadline: float) -> None:
        """Write the records, carry out the faults, and wait until everything is replicated.

        Raises:
            TimeoutError: it is not in time.
            UndocumentedStop: a lane stopped for a reason that no fault of the schedule explains.
        """
        workload, lab = self._workload, self.lab
        injector = Injector(
            lab=lab,
            flow=self.flow,
            topic=self.name,
            trigger=self.schedule.trigger,
            mapping=self.mapping,
            faults=self.schedule.faults,
            progress=lambda: workload.progress,
            change_topic=self._change,
        )
        injector.start()
        workload.produce()
        if self.over.is_set():
            return
        arrival = TopicArrival(lab, lab.beside(self.flow), self.name, over=self.over)
        try:
            if self.schedule.trigger != "mapping":
                arrival.wait(deadline)  # a run of `pull` may begin after the last record: faults wait for its steps
            injector.finish()
            self._await_replicated(arrival, deadline)
            while self.operator is not None and self.operator.attend():
                self._await_replicated(arrival, deadline)
        finally:
            if self.operator is not None:
                self.operator.finish()  # its error is the reason of lanes that stand still
                self.changes = self.operator.changes
            self.changes = replace(self.changes, foreign=frozenset(self._foreign), lost=self._lost, copied=self._kept)
        self._await_trigger(deadline)
        self.faults = dict(Counter(map(str, injector.carried_out)))

    def stop(self) -> None:
        """Let `run` end early, in another thread."""
        self.over.set()
        self._workload.stop()

    def audited(self, deadline: float) -> dict[str, int]:
        """The audit's totals; a server that was killed last may still be on its way back."""
        beside = self.lab.beside(self.flow)
        return insist(
            lambda: totals(audit_topic(self.lab, beside, self.name, changes=self.changes, copies=self.copies).rows),
            interruptions=(Retriable,),
            seconds=deadline - time.monotonic(),
        )

    def _await_replicated(self, arrival: TopicArrival, deadline: float) -> None:
        if self.mapping is not None:
            wait_until_replicated(self.lab, [self.mapping], deadline=deadline, over=self.over)
        arrival.wait(deadline)

    # Its rule

    def _rule(self) -> Mapping[str, Any]:
        """As it is written, and not as the product has read it."""
        written = YAML(typ="safe").load(Path(self.lab.configuration.origin))
        rules: list[dict[str, Any]] = written["flows"][str(self.flow.name)]["transforms"]
        return next(each for each in rules if any(re.fullmatch(topic, self.name) for topic in each["topics"]))

    def _know_key(self) -> None:
        version = self.lab.configuration.flow(self.flow.name).keys[KEY].version
        self._versions[version] = self.lab.keys.material(KEY)[version]

    def _know_originals(self) -> None:
        """Pseudonyms that a truncation is about to remove are read by what the source has."""
        if self.copies is not None:
            source, form = self.lab.clusters[self.flow.name.source].direct, self.copies.of_source
            insist(lambda: read_topic(source, self.name, stable_ends(source, self.name), form))

    def search(self, deadline: float) -> int:
        """The number of source records that show the topic's secret, which nothing else than they may show.

        Where the topic has no rule, its copies are to show it: so the search finds what there is to find.

        Raises:
            SecretShown: something else shows it.
        """
        if not self.secret:
            return 0
        search, clusters = SecretSearch(self.secret), self.lab.clusters
        source, target = clusters[self.flow.name.source].direct, clusters[self.flow.name.target].direct
        seconds = deadline - time.monotonic()
        planted = insist(lambda: search.records(source, self.name), seconds=seconds)
        copied = insist(
            lambda: search.records(target, self.flow.remote_topic(self.name), committed=False), seconds=seconds
        )
        if not planted or (self.copies is None and not copied):
            raise SecretShown("the search does not find what is there", where=self.name)
        places = [f"{copied} records of its copy"] if copied else []
        if self.copies is not None:
            places += search.files(self.folder, leave_out=SERVERS_DATA)
            places += insist(lambda: list(search.items(self.lab.dynamodb.client())), seconds=seconds)
            places += [" ".join(words) for words in ASKED if search.shows(self._answer(words).encode())]
            if places:
                raise SecretShown(f"its secret is in {'; '.join(places)[:MOST_SHOWN]}", where=self.name)
        return planted

    def _answer(self, words: Sequence[str]) -> str:
        said = StringIO()
        with redirect_stderr(said):
            _, answer = answer_of(self.lab, self.folder / f"state-{self.name}.json", *words)
        return answer + said.getvalue()

    # Who reads it

    def _change_trigger(self) -> None:
        """Give the topic its other trigger; returns once that one reads it, or it changes once more."""
        with self._configuring:
            self.trigger = MAPPING if self.trigger == SCHEDULE else SCHEDULE
            trigger = self.trigger
            self._changed += 1
            number = self._changed
            self.configure()
        _holds(lambda: number != self._changed or self._read_by(trigger), CHANGED_WITHIN_SECONDS)

    def _read_by(self, trigger: Trigger) -> bool:
        """Whether the topic is read by this trigger, and by no other."""
        states = [each["State"] for each in self.lab.mappings.list() if each["Topics"] == [self.name]]
        scheduled = self.name in self._scheduled() if self.lab.control else False
        return (states == [] and scheduled) if trigger == SCHEDULE else (states == ["Enabled"] and not scheduled)

    def _scheduled(self) -> Mapping[str, int]:
        documents = DynamoDbDocuments(self.lab.dynamodb.client(), self.lab.tables.control)
        try:
            return read_scheduled_topics(documents, self.flow.name)
        except Retriable:
            return {self.name: 0} if self.trigger == MAPPING else {}  # DynamoDB is down just now: not yet

    def _await_trigger(self, deadline: float) -> None:
        if wait_for(lambda: not self._read_by(self.trigger), seconds=deadline - time.monotonic(), over=self.over):
            raise TimeoutError(f"{self.flow.name} {self.name} is not read by its {self.trigger}")

    # Its faults

    def _change(self, fault: PlannedFault) -> bool:
        """Carry out one fault; False where nothing was replicated yet."""
        clusters, name = self.lab.clusters, self.flow.name
        remote = ChangedTopic(
            bootstrap=clusters[name.target].direct,
            topic=self.flow.remote_topic(self.name),
            form=self.copies.of_target if self.copies else as_it_is,
        )
        if fault.kind == "change trigger":
            self._change_trigger()
            return True
        if fault.kind == "rotate key":
            with self._configuring:
                self.lab.rotate_key(name, KEY)
                self._know_key()
            return True
        with self._changing:
            if fault.kind in OF_SOURCE:
                return self._lose_end(remote, fault)
            if fault.kind == "add source partition":
                source = ChangedTopic(bootstrap=clusters[name.source].direct, topic=self.name)
                self._workload.spread(self.name, source.add_partition())
                return True
            if not _holds(
                lambda: any(insist(lambda: ends(remote.bootstrap, remote.topic)).values()), REPLICATED_WITHIN_SECONDS
            ):
                return False
            if fault.kind == "add remote partition":
                remote.add_partition()
            if fault.kind == "foreign producer":
                remote.foreign = self._foreign
                remote.write_beside(fault.part)
            if fault.kind in DESTRUCTIVE:
                self._destroy(remote, fault)
        return True

    def _operator(self, remote: ChangedTopic, fault: PlannedFault) -> LaneOperator:
        return LaneOperator(
            lab=self.lab,
            flow=self.flow,
            topic=self.name,
            mapping=self.mapping,
            fault=fault,
            remote_topic=remote,
            folder=self.folder,
        )

    def _lose_end(self, remote: ChangedTopic, fault: PlannedFault) -> bool:
        """Cut the source's logs behind records that were copied; False where nothing would be written on.

        Raises:
            UnnoticedLoss: lanes do not stop.
        """
        operator, source = self._operator(remote, fault), self.lab.clusters[self.flow.name.source]
        workload, outgrows = self._workload, fault.kind == "source outgrows its loss"
        with ExitStack() as held:
            if not held.enter_context(workload.held()):
                return False
            before = self._copied()
            if not before:
                return False
            operator.look()  # it stores ids, ends and epochs, as it has done once a minute
            silent = outgrows and self.mapping is not None
            if silent:
                # A poller that reads meanwhile is told by the source that its place is gone.
                held.enter_context(operator.disabled(self.mapping))
            stable = insist(lambda: stable_ends(source.direct, self.name))
            highest = {
                partition: min(round(before.get(partition, end) * (1 - fault.part)), before.get(partition, end + 1) - 1)
                for partition, end in stable.items()
            }
            form = self.copies.of_source if self.copies else as_it_is
            cut = cut_ends(source, self.lab.supervisor, self.name, highest, copied=before, form=form)
            self._lost, self._kept = cut.gone, before
            copied = {
                partition: position
                for partition, position in before.items()
                if any(each.offset < position for each in cut.gone[partition])
            }
            self.operator = operator
            if outgrows:
                while any(
                    end <= stable[partition]
                    for partition, end in insist(lambda: ends(source.direct, self.name)).items()
                ):
                    workload.write_on(self.name, WRITTEN_AT_ONCE)
            else:
                few = min(before[each] - cut.ends[each] for each in copied) // 2 if copied else 1
                workload.write_on(self.name, max(1, few))
                operator.start()
                operator.await_stopped(copied)
        if silent:
            _holds(
                lambda: any(self._copied().get(each, 0) > stable[each] for each in copied), REPLICATED_WITHIN_SECONDS
            )
        if outgrows:
            operator.start()
            operator.await_stopped(copied)
        return True

    def _copied(self) -> dict[int, int]:
        """The position of each lane once there is one above 0; none where there is none in time."""
        chains = DynamoDbChains(self.lab.dynamodb.client(), self.lab.tables.offset_map)
        partitions = range(self._workload.partitions(self.name))
        lanes = [Lane(self.flow.name, self.name, partition) for partition in partitions]
        found: dict[int, int] = {}

        def copied() -> bool:
            heads = insist(lambda: chains.heads(lanes))
            found.update({lane.partition: head.position for lane, head in heads.items() if head.position})
            return bool(found)

        _holds(copied, COPIED_WITHIN_SECONDS)
        return found

    def _destroy(self, remote: ChangedTopic, fault: PlannedFault) -> None:
        operator = self._operator(remote, fault)
        operator.refresh()  # it stores the remote topic's id, as it has done once a minute
        match fault.kind:
            case "delete remote topic":
                remote.delete()
            case "re-create remote topic":
                remote.create_again()
            case "truncate remote topic":
                self._know_originals()
                remote.truncate(fault.part)
        self.operator = operator
        operator.start()
        threading.Event().wait(fault.seconds)  # the forwarder has this long to see it, before the refresh comes by
        operator.attend()


def _holds(claim: Callable[[], bool], seconds: float) -> bool:
    """Whether something comes to be in time."""
    return not wait_for(lambda: not claim(), seconds=seconds)
