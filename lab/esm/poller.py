"""One poller: records from a topic into a function, and the function's answers into committed offsets.

A poller is one member of the mapping's consumer group. Its thread alone touches the consumer, and polls it at all
times; invocations block in threads of their own. What a poller has fetched, invoked or is about to commit belongs to
its assignment: a partition that is taken away takes all of that along, and results that come late are not committed.

One turn of the loop:
    1. fetch, encode, buffer
    2. land: take the outcomes of invocations, decide what is resolved and what is delivered again
    3. commit what is resolved
    4. launch retries whose pause is over, then payloads that are due
    5. pause the partitions that have payloads enough, resume those that need more
"""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from lab.esm.batches import Buffers, Verdict, judge
from lab.esm.event import encode_event, encode_record
from lab.functions.invocation import Invocation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from confluent_kafka import Message

    from lab.esm.batches import Flight
    from lab.esm.behaviour import LabBehaviour
    from lab.esm.event import EncodedRecord, EventSource, KafkaRecord
    from lab.esm.mapping_api import PollingOptions
    from lab.esm.mapping_log import MappingLog, PendingFaults
    from lab.functions.invocation import Invoker

_TURN_S = 0.1
"""The longest wait for records while nothing else can happen."""
_WATCHFUL_TURN_S = 0.003
"""The wait while invocations are under way: the Kafka client cannot be woken by their ends."""
_FETCH = 500
ASSIGNOR = "range"
"""Eager, and the Java client's default."""
_PAUSE_AFTER_ERROR_S = 0.5

_ANSWER_S = 10.0
"""How long the cluster may take to tell committed offsets and watermarks, before the poller starts afresh."""


class PollerCrashedError(Exception):
    """An injected crash, between a function's success and the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingParts:
    """What the pollers of one mapping share."""

    uuid: str
    bootstrap: str
    options: PollingOptions
    source: EventSource
    function: Invoker
    behaviour: LabBehaviour
    log: MappingLog
    faults: PendingFaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a poller is with one partition.

    Attributes:
        committed: the next offset, as the cluster has it from us, or where we began.
        drained_to: everything below this offset was read, and nothing of it is under way; None before that is known.
    """

    committed: int
    drained_to: int | None


class Poller(threading.Thread):
    """One poller. It survives every error of the cluster: it logs, and starts a new session in the group."""

    def __init__(self, wiring: MappingParts, *, number: int) -> None:
        super().__init__(name=f"poller-{wiring.uuid}-{number}", daemon=True)
        self._wiring = wiring
        self._number = number
        self._stopping = threading.Event()
        self._session: Session | None = None

    def run(self) -> None:
        """Poll until stopped."""
        while not self._stopping.is_set():
            self._session = session = Session(self._wiring, number=self._number)
            try:
                session.run(self._stopping)
            except PollerCrashedError as exc:
                self._wiring.log.note("WARN", "FAULT", fault=str(exc))
            except KafkaException as exc:
                self._wiring.log.count("PollingError")
                self._wiring.log.problem(f"PROBLEM: {exc.args[0]}", poller=self.name)
                self._stopping.wait(_PAUSE_AFTER_ERROR_S)
            finally:
                session.close()

    def begin_stop(self) -> None:
        """Ask for an orderly end: running invocations get the behaviour's grace, then what is done is committed."""
        self._stopping.set()

    def progress(self) -> dict[int, Progress]:
        """The partitions whose position is known, and how far they are."""
        session = self._session
        return session.progress() if session is not None else {}


class Session:
    """A poller's membership in the consumer group, from joining to leaving. Only `progress` is for other threads."""

    def __init__(self, wiring: MappingParts, *, number: int) -> None:
        self._wiring = wiring
        self._options = wiring.options
        self._log = wiring.log
        self._buffers = Buffers(
            source=wiring.source,
            batch_size=self._options.batch_size,
            window_s=self._options.window_s,
        )
        self._waiting: list[Flight] = []
        self._running: list[Flight] = []
        self._landings: queue.SimpleQueue[tuple[Flight, Verdict]] = queue.SimpleQueue()
        self._paused: set[int] = set()
        self._resolved: dict[int, int] = {}
        self._requested: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._read_to: dict[int, int] = {}
        self._damaged: set[int | None] = set()
        """Partitions that stand at a damaged batch: Java's consumer raises there, and this one goes on behind it."""
        self._commit_not_before = 0.0
        self._progress: dict[int, Progress] = {}
        self._consumer = Consumer(
            client_config(wiring, number=number, on_commit=self._on_commit, error_cb=self._on_error),
            logger=wiring.log.client_log,
        )

    def run(self, stopping: threading.Event) -> None:
        """Take turns until stopping, then drain.

        Raises:
            PollerCrashedError: an injected crash.
            KafkaException: the session cannot go on; a new one may.
        """
        self._consumer.subscribe(
            [self._options.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        while not stopping.is_set():
            self._turn(self._patience())
        self._drain(time.monotonic() + self._wiring.behaviour.stop_grace_s)

    def close(self) -> None:
        """Leave the group. Whatever is still under way is forgotten."""
        self._forget(list(self._buffers.lanes))
        try:
            self._consumer.close()
        except KafkaException as exc:
            # An assignment was still due, and its topic is gone: the callback's error comes out here.
            self._log.problem(f"PROBLEM: {exc.args[0]}")

    def progress(self) -> dict[int, Progress]:
        """How far each assigned partition was at the end of the last turn."""
        return self._progress

    def _turn(self, patience_s: float) -> None:
        # 1. fetch, encode, buffer
        first = self._consumer.poll(patience_s)
        if first is not None:
            arrived = time.monotonic()
            for message in (first, *self._consumer.consume(_FETCH, 0)):
                self._receive(message, arrived)
        # 2. land
        while not self._landings.empty():
            self._land(*self._landings.get())
        # 3. commit what is resolved
        self._commit()
        # 4. launch
        if not self._wiring.faults.held.is_set():
            self._launch(time.monotonic())
        # 5. pause and resume
        self._steer()
        self._progress = {partition: self._progress_of(partition) for partition in self._buffers.lanes}

    def _progress_of(self, partition: int) -> Progress:
        lane, committed = self._buffers.lanes[partition], self._committed[partition]
        settled = not lane.busy and not lane.records and self._resolved[partition] == committed
        return Progress(committed=committed, drained_to=self._read_to.get(partition) if settled else None)

    def _patience(self) -> float:
        """How long the next turn may wait for records, in seconds."""
        if self._running:
            return _WATCHFUL_TURN_S
        now = time.monotonic()
        moments = [flight.not_before for flight in self._waiting]
        due_at = self._buffers.due_at()
        if due_at is not None:
            moments.append(due_at)
        if self._wiring.faults.held.is_set():
            moments = []
        return max(0.0, min(_TURN_S, *(moment - now for moment in moments))) if moments else _TURN_S

    def _receive(self, message: Message, arrived: float) -> None:
        error = message.error()
        if message.partition() in self._damaged:
            return
        if error is None:
            # The client's types allow text where its consumer only ever gives bytes.
            record = cast("KafkaRecord", message)
            self._buffers.put(encode_record(record), arrived)
            self._log.count("Polled")
            return
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  the client's public name for it
            partition, offset = message.partition(), message.offset()
            if partition in self._buffers.lanes and offset is not None:
                self._read_to[partition] = offset
            return
        if error.fatal():
            raise KafkaException(error)
        if error.code() == KafkaError._BAD_MSG:  # noqa: SLF001  the client's public name for it
            self._damaged.add(message.partition())
        self._log.count("PollingError")
        self._log.problem(f"PROBLEM: {error.str()}", code=error.name())

    def _land(self, flight: Flight, verdict: Verdict) -> None:
        self._running.remove(flight)
        ours = flight.partitions
        if not ours:
            return  # a zombie's result: its partitions went to another poller
        if verdict.problem == "OK" and self._wiring.faults.strikes("lose_ack"):
            raise PollerCrashedError("crashed between success and commit")
        self._log.last_result = verdict.problem
        flight.leave(verdict.again)
        self._resolved.update(flight.positions())
        if flight.landed:
            self._buffers.release(ours)
            return
        flight.not_before = time.monotonic() + self._wiring.behaviour.retry_pause_s(flight.attempts)
        self._waiting.append(flight)

    def _commit(self) -> None:
        if time.monotonic() < self._commit_not_before:
            return
        due = {it: position for it, position in self._resolved.items() if position > self._requested[it]}
        if not due:
            return
        self._requested.update(due)
        if self._wiring.faults.strikes("commit_failure"):
            self._log.count("CommitError")
            self._log.note("WARN", "FAULT", fault="commit failed", positions=due)
            # As a commit that the cluster refuses: without a later record nothing else would commit these positions.
            self._requested.update({it: self._committed[it] for it in due})
            self._commit_not_before = time.monotonic() + _PAUSE_AFTER_ERROR_S
            return
        self._consumer.commit(
            offsets=[TopicPartition(self._options.topic, it, position) for it, position in due.items()],
            asynchronous=True,
        )

    def _on_commit(self, error: KafkaError | None, positions: Sequence[TopicPartition]) -> None:
        for position in positions:
            if position.partition not in self._committed:
                continue  # no longer ours
            failure = error or position.error
            if failure is not None:
                self._log.count("CommitError")
                self._log.problem(f"PROBLEM: Commit failed: {failure.str()}", partition=position.partition)
                self._requested[position.partition] = self._committed[position.partition]
                self._commit_not_before = time.monotonic() + _PAUSE_AFTER_ERROR_S
            elif position.offset > self._committed[position.partition]:
                self._log.count("Committed", position.offset - self._committed[position.partition])
                self._committed[position.partition] = position.offset

    def _launch(self, now: float) -> None:
        for flight in [it for it in self._waiting if it.not_before <= now]:
            if len(self._running) < self._wiring.behaviour.concurrent_invocations:
                self._waiting.remove(flight)
                self._start(flight)
        most = self._wiring.behaviour.concurrent_invocations
        while len(self._running) < most:
            due = self._buffers.take(now)
            if due is None:
                return
            self._start(due)

    def _start(self, flight: Flight) -> None:
        flight.attempts += 1
        self._running.append(flight)
        threading.Thread(target=self._attempt, args=(flight, flight.records), daemon=True).start()

    def _attempt(self, flight: Flight, records: tuple[EncodedRecord, ...]) -> None:
        self._landings.put((flight, attempt(self._wiring, flight, records)))

    def _steer(self) -> None:
        # A pause has the Kafka client forget what it has fetched ahead: to pause and resume around each payload would
        # fetch everything twice.
        enough = self._wiring.behaviour.payloads_ahead
        full = {
            partition
            for partition in self._buffers.lanes
            if self._buffers.waiting(partition) >= (1.0 if partition in self._paused else enough)
        }
        for partitions, act in (
            (full - self._paused, self._consumer.pause),
            (self._paused - full, self._consumer.resume),
        ):
            if partitions:
                act([TopicPartition(self._options.topic, partition) for partition in partitions])
        self._paused = full

    def _drain(self, deadline: float) -> None:
        """Give running invocations and their commits until the deadline (on the monotonic clock)."""
        while time.monotonic() < deadline:
            unfinished = any(self._committed[it] < position for it, position in self._requested.items())
            if not self._running and not unfinished:
                return
            self._consumer.pause(self._consumer.assignment())
            self._consumer.poll(_WATCHFUL_TURN_S)
            while not self._landings.empty():
                self._land(*self._landings.get())
            self._commit()

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            self._begin(consumer, partitions)
        except KafkaException as exc:
            # confluent-kafka 2.16 hands on what its own calls raise in here before it is an exception: as a bare
            # KafkaError, which no `except` takes, and the thread would die of it.
            raise KafkaException(*exc.args) from exc

    def _begin(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        starts = starting_positions(consumer, self._options, partitions)
        self._buffers.assign(it.partition for it in starts)
        for start in starts:
            for positions in (self._resolved, self._requested, self._committed):
                positions[start.partition] = start.offset
        consumer.assign(starts)
        # librdkafka keeps a partition paused over a reassignment, Java's client, which AWS's poller is, does not.
        consumer.resume(starts)
        self._log.note("INFO", "POLLER_STATUS_EVENT", assignedPartitions={it.partition: it.offset for it in starts})

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget([it.partition for it in partitions])

    def _forget(self, partitions: Iterable[int]) -> None:
        lost = list(partitions)
        for flight in self._running:
            flight.forget(lost)
        for flight in self._waiting:
            flight.forget(lost)
            if flight.landed:
                self._buffers.release(flight.partitions)
        self._waiting = [flight for flight in self._waiting if not flight.landed]
        self._buffers.revoke(lost)
        for partition in lost:
            for positions in (self._resolved, self._requested, self._committed, self._read_to):
                positions.pop(partition, None)
        self._paused -= set(lost)
        if lost:
            self._log.note("INFO", "POLLER_STATUS_EVENT", revokedPartitions=lost)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  the client's public name for it
            self._log.problem("PROBLEM: Connection error. Please check your event source connection configuration.")
            return
        self._log.note("WARN", "KAFKA_CLIENT", text=error.str())


def attempt(wiring: MappingParts, flight: Flight, records: tuple[EncodedRecord, ...]) -> Verdict:
    """Invoke the function with these records of a flight, or pass them over if they fit into no event. Blocks.

    It touches neither the consumer nor the poller's state: the poller lands the verdict, or ignores it if the
    partitions are no longer its own. A zombie therefore keeps its thread, and never the poller's.
    """
    if flight.condition:
        problem = f"PROBLEM: {flight.condition}"
        if wiring.behaviour.oversize == "stand":
            return Verdict(again=records, problem=problem)
        wiring.log.count("Dropped", len(records))
        first = {"partition": records[0].partition, "firstOffset": records[0].offset}
        wiring.log.note("WARN", flight.condition, records=len(records), **first)
        return Verdict(problem=problem)
    event = encode_event(wiring.source, records)
    if wiring.faults.strikes("duplicate_concurrently"):
        threading.Thread(target=_call, args=(wiring, event, len(records)), daemon=True).start()
    elif wiring.faults.strikes("duplicate"):
        _call(wiring, event, len(records))
    outcome, options = _call(wiring, event, len(records)), wiring.options
    return judge(records, outcome, partial_response=options.partial_response, topic=options.topic)


def _call(wiring: MappingParts, event: bytes, count: int) -> Invocation:
    wiring.log.count("Invoked", count)
    try:
        invocation = wiring.function.invoke(event)
    except Exception as exc:  # noqa: BLE001  an invoker that breaks its contract must not stop the mapping
        invocation = Invocation(status="function_error", payload=repr(exc).encode(), request_id="", duration_ms=0.0)
    if invocation.status != "success":
        wiring.log.count("FailedInvoke", count)
        wiring.log.count("InvokeError")
        error = invocation.payload[:2000].decode(errors="replace")
        wiring.log.note("WARN", "INVOKE_FAILED", status=invocation.status, error=error)
    return invocation


def starting_positions(
    consumer: Consumer, options: PollingOptions, partitions: list[TopicPartition]
) -> list[TopicPartition]:
    """Where to read each partition from: its committed offset if there is one, else the starting position.

    Raises:
        KafkaException: the cluster did not tell in time.
    """
    known = consumer.committed(partitions, timeout=_ANSWER_S) if partitions else []
    for position in known:
        if position.error is not None:
            raise KafkaException(position.error)
    return [TopicPartition(it.topic, it.partition, _start_of(consumer, options, it)) for it in known]


def _start_of(consumer: Consumer, options: PollingOptions, committed: TopicPartition) -> int:
    if committed.offset >= 0:
        return int(committed.offset)
    low, high = consumer.get_watermark_offsets(committed, timeout=_ANSWER_S)
    if options.starting_position == "TRIM_HORIZON":
        return int(low)
    if options.starting_position == "AT_TIMESTAMP":
        moment = TopicPartition(committed.topic, committed.partition, options.starting_timestamp_ms)
        (found,) = consumer.offsets_for_times([moment], timeout=_ANSWER_S)
        return int(found.offset) if found.offset >= 0 else int(high)
    return int(high)


def client_config(
    wiring: MappingParts,
    *,
    number: int,
    on_commit: Callable[[KafkaError | None, Sequence[TopicPartition]], None],
    error_cb: Callable[[KafkaError], None],
) -> dict[str, Any]:
    """The consumer's configuration."""
    behaviour, options = wiring.behaviour, wiring.options
    return {
        "bootstrap.servers": wiring.bootstrap,
        "client.id": f"{wiring.uuid}-{number}",
        "group.id": options.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Only for a committed offset that the log no longer has; starts without one are computed at assignment.
        "auto.offset.reset": "latest" if options.starting_position == "LATEST" else "earliest",
        "isolation.level": "read_committed",
        "check.crcs": True,  # as by Java's consumer
        "partition.assignment.strategy": ASSIGNOR,
        "session.timeout.ms": int(behaviour.session_timeout_s * 1000),
        "max.poll.interval.ms": 900_000,  # AWS caps the function at 14 minutes, which suggests 15 here
        # A rebalance is noticed at a heartbeat; the lab does not want to wait for the default of 3 s.
        "heartbeat.interval.ms": min(500, int(behaviour.session_timeout_s * 250)),
        "topic.metadata.refresh.interval.ms": int(behaviour.metadata_refresh_s * 1000),
        # The end of a partition is how "drained" is known: control markers have offsets, but are no records.
        "enable.partition.eof": True,
        # A killed broker is back within seconds: look for it often.
        "reconnect.backoff.max.ms": 1000,
        # The client's own prefetch; its default back-off of 1 s when that is full would stall a backlog.
        "queued.max.messages.kbytes": 16 * 1024,
        "fetch.queue.backoff.ms": 10,
        "enable.metrics.push": False,
        "on_commit": on_commit,
        "error_cb": error_cb,
    }
