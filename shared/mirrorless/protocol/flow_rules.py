"""The rules of a flow, ready to be applied: that in force for each topic, and earlier ones by the id that a run has.

A rule is kept as a document before it is used first, so whoever proves an old run finds what was in force. The key of
the document is its id: writing it twice changes nothing, and no rule ever replaces another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from mirrorless.errors import ConfigurationError
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.stores import StateStore
from mirrorless.protocol.replay_check import CopyOfRecord
from mirrorless.records.record import Record
from mirrorless.transforms.avro_fields import WriterSchemas
from mirrorless.transforms.rules import KeyRing, KeySettings, RuleInForce
from mirrorless.transforms.transform import TopicTransform, TransformFailed, function_hash, make_ready


@dataclass(slots=True, kw_only=True)
class FlowRules:
    """The rules of one flow. Lives as long as its execution environment; its methods raise Retriable as its stores."""

    settings: FlowSettings
    documents: StateStore
    """Of the flow's table `control`."""
    read_keys: Callable[[Mapping[str, KeySettings]], Mapping[str, KeyRing]]
    schemas: WriterSchemas | None = None
    """Of the source's registry, where it has one."""
    topic_of: Callable[[str], str] = field(default=lambda topic: topic)
    """The source topic of a lane's topic: the lane of a job may have another name."""
    _in_force: dict[str, TopicTransform | None] = field(default_factory=dict)
    _by_id: dict[tuple[str, bytes], TopicTransform] = field(default_factory=dict)

    def of(self, lane_topic: str) -> TopicTransform | None:
        """The rule in force; None where the topic has none.

        Raises:
            ConfigurationError: a key or a function of it is missing.
        """
        if lane_topic not in self._in_force:
            topic = self.topic_of(lane_topic)
            rule = self.settings.rule_of(topic)
            ready: TopicTransform | None = None
            if rule is not None:
                own = function_hash(rule.function) if rule.function else ""
                in_force = RuleInForce.of(rule, self.settings.keys, own)
                ready = self._ready(in_force, topic)
                self.documents.write(self.settings.name, {document_of(ready.id): msgspec.json.encode(in_force)})
            self._in_force[lane_topic] = ready
        return self._in_force[lane_topic]

    def by_id(self, lane_topic: str, rule: bytes) -> TopicTransform:
        """The rule with this id. Writes nothing.

        Raises:
            ConfigurationError: it is not kept, or not one of its keys or its function is as it was.
        """
        current = self._in_force.get(lane_topic)
        if current is not None and current.id == rule:
            return current
        if (lane_topic, rule) not in self._by_id:
            in_force = self.kept(rule)
            if in_force.function_hash and function_hash(in_force.rule.function) != in_force.function_hash:
                raise ConfigurationError(
                    f"the function {in_force.rule.function} has changed since the rule {rule.hex()} was in force",
                    where=f"{self.settings.flow} {lane_topic}",
                    hint="deploy its earlier text to prove what it copied",
                )
            self._by_id[lane_topic, rule] = self._ready(in_force, self.topic_of(lane_topic))
        return self._by_id[lane_topic, rule]

    def kept(self, rule: bytes) -> RuleInForce:
        """The document of the rule with this id.

        Raises:
            ConfigurationError: it is not kept, or what is kept is not this rule.
        """
        key = document_of(rule)
        with suppress(KeyError, msgspec.DecodeError):
            in_force = msgspec.json.decode(self.documents.read(self.settings.name, key)[key], type=RuleInForce)
            if in_force.id == rule:
                return in_force
        raise ConfigurationError(
            f"the rule {rule.hex()} is not among the flow's documents",
            where=self.settings.flow,
            hint="restore the table `control` to the time when the rule was in force",
        )

    def changed(self, lane_topic: str, partition: int, rule: bytes, record: Record) -> CopyOfRecord:
        """See `mirrorless.protocol.replay_check.Changed`."""
        try:
            return self.by_id(lane_topic, rule).apply(record, partition)
        except (ConfigurationError, TransformFailed):
            return "not known"  # compared by offset and time alone

    def _ready(self, in_force: RuleInForce, topic: str) -> TopicTransform:
        """A rule with its own versions of its keys, as far as the flow still names these."""
        keys = {
            name: msgspec.structs.replace(self.settings.keys[name], version=version)
            for name, version in in_force.key_versions.items()
            if name in self.settings.keys
        }
        return make_ready(in_force, self.read_keys(keys), topic, self.schemas)


def document_of(rule: bytes) -> str:
    """The key of the document that keeps a rule."""
    return f"transform/{rule.hex()}"
