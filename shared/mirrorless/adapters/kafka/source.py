"""The source topic's partition count and configs, read only when the remote topic is missing."""

from __future__ import annotations

from confluent_kafka import KafkaException

from mirrorless.adapters.kafka.client import answer, seconds_left
from mirrorless.clock import Deadline
from mirrorless.errors import Retriable
from mirrorless.flow.settings import FlowSettings
from mirrorless.ports.kafka import SourceTopic
from mirrorless.topics.configs import configs_to_copy


class KafkaSource:
    """Implements `mirrorless.ports.kafka.Source`."""

    def __init__(self, settings: FlowSettings) -> None:
        self._settings = settings

    def describe(self, topic: str, deadline: Deadline) -> SourceTopic:
        """See `Source.describe`."""
        from confluent_kafka.admin import ConfigResource, ResourceType  # noqa: PLC0415 -- kept out of cold starts

        from mirrorless.adapters.kafka.admin import WarmAdmin  # noqa: PLC0415 -- same
        from mirrorless.adapters.kafka.topics import config_entry  # noqa: PLC0415 -- same

        opened = WarmAdmin(self._settings.source, f"{self._settings.flow}|source-admin")
        admin = opened.client()
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            timeout = seconds_left(deadline)
            metadata = admin.list_topics(topic, timeout=timeout).topics[topic]
            described = answer(admin.describe_configs([resource], request_timeout=timeout)[resource], deadline)
        except KafkaException as exc:
            opened.discard()
            raise Retriable(
                f"the source does not describe {topic}: {exc.args[0].str()}",
                where=f"{self._settings.flow} {self._settings.source.bootstrap}",
                hint="the remote topic is missing and needs the source's partition count and configs: give the "
                "function access to the source's metadata, or create the remote topic yourself",
            ) from exc
        return SourceTopic(
            partitions=len(metadata.partitions),
            configs=configs_to_copy(
                map(config_entry, described.values()),
                self._settings.config_properties_exclude,
                defaults_from=self._settings.use_defaults_from,
            ),
        )
