"""The event source mappings of an account, in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirrorless.chain.lane import FlowName
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.topics.mapping_plan import CONFIGS, MappingOutcome, MappingRefused, Request, owner_tags
from tests.support.chains import FLOW

_SETTLED = {"Enabling": "Enabled", "Disabling": "Disabled"}


@dataclass(slots=True)
class MemoryMappings:
    """Implements `mirrorless.topics.mapping_plan.Mappings`; a change has settled when mappings are listed again."""

    mappings: dict[str, Request] = field(default_factory=dict)
    """By their topic, which is their UUID and ARN."""
    answers: int = 1_000
    """How many changes are answered from now on."""
    failures: int = 0
    """How many lists fail before one is answered."""
    refused: str = ""
    """A topic whose mapping is neither created nor deleted."""
    keeps_updates: bool = True
    problem: str = ""
    """An address that pollers do not reach."""
    looks_until_gone: int = 0
    """How often a mapping is still listed after its deletion."""
    busy: dict[str, int] = field(default_factory=dict)
    """How often a mapping is in the middle of something."""
    attempts: int = 0
    """To create one."""
    updates: list[tuple[str, Request]] = field(default_factory=list)
    tags_asked: int = 0

    def add(
        self, topic: str, *, flow: FlowName = FLOW, state: str = "Enabled", tags: dict[str, str] | None = None
    ) -> None:
        """A mapping as `refresh_topics` makes it, unless it has other tags."""
        group = {"ConsumerGroupId": f"mirrorless.{flow.slug}.{topic}"}
        self.mappings[topic] = {
            "State": state,
            "SelfManagedKafkaEventSourceConfig": group,
            "Tags": owner_tags(flow) if tags is None else tags,
        }

    def polling(self) -> set[str]:
        """Those that poll."""
        return {topic for topic, each in self.mappings.items() if each["State"] == "Enabled"}

    def list(self, deadline: Deadline) -> list[Request]:
        """See `Mappings.list`."""
        if self.failures:
            self.failures -= 1
            raise Retriable("throttled")
        for topic, each in list(self.mappings.items()):
            each["State"] = _SETTLED.get(each["State"], each["State"])
            if each["State"] == "Deleting":
                each["looks"] -= 1
                if each["looks"] < 0:
                    del self.mappings[topic]
        return [
            {"UUID": topic, "EventSourceMappingArn": topic, "LastProcessingResult": self._result(each)} | each
            for topic, each in self.mappings.items()
        ]

    def tags(self, arn: str, deadline: Deadline) -> dict[str, str]:
        """See `Mappings.tags`."""
        self.tags_asked += 1
        tags: dict[str, str] = self.mappings[arn]["Tags"]
        return tags

    def create(self, request: Request, deadline: Deadline) -> MappingOutcome:
        """See `Mappings.create`."""
        (topic,) = request["Topics"]
        self.attempts += 1
        if topic == self.refused:
            raise MappingRefused("no")
        self._answer()
        self.mappings[topic] = {"State": "Enabled"} | request
        return "done"

    def update(self, uuid: str, fields: Request, deadline: Deadline) -> MappingOutcome:
        """See `Mappings.update`."""
        self._answer()
        self.updates.append((uuid, fields))
        if "Enabled" in fields:
            self.mappings[uuid]["State"] = "Enabling" if fields["Enabled"] else "Disabling"
        elif self.keeps_updates:
            kept = self.mappings[uuid]
            self.mappings[uuid] |= {name: kept[name] | new if name in CONFIGS else new for name, new in fields.items()}
        return "done"

    def delete(self, uuid: str, deadline: Deadline) -> MappingOutcome:
        """See `Mappings.delete`."""
        if uuid == self.refused:
            raise MappingRefused("no")
        if self.busy.get(uuid):
            self.busy[uuid] -= 1
            return "busy"
        self.mappings[uuid] |= {"State": "Deleting", "looks": self.looks_until_gone - 1}
        if not self.looks_until_gone:
            del self.mappings[uuid]
        return "done"

    def _answer(self) -> None:
        if not self.answers:
            raise Retriable("throttled")
        self.answers -= 1

    def _result(self, mapping: Request) -> str:
        return "PROBLEM: Connection error" if self.problem and self.problem in str(mapping) else ""
