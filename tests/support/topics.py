"""Topics that are there for whoever asks next."""

from __future__ import annotations

from functools import cache

from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.waiting import eventually


@cache
def admin_of(bootstrap: str) -> AdminClient:
    """One for all tests: a new client takes half a second to find its cluster."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create_topic(bootstrap: str, topic: str, partitions: int = 1, replicas: int = 1, /, **configs: str) -> str:
    """Create a topic, and wait for its leaders; underscores in config names are dots. Returns its name.

    A broker learns of it after the controller has answered, a busy one by seconds.
    """
    admin = admin_of(bootstrap)
    named = {name.replace("_", "."): value for name, value in configs.items()}
    admin.create_topics([NewTopic(topic, partitions, replicas, config=named)])[topic].result(20)

    def led() -> bool:
        shown = admin.list_topics(topic, timeout=5).topics[topic].partitions
        return len(shown) == partitions and all(each.leader >= 0 for each in shown.values())

    eventually(led, f"{topic} is shown with its leaders")
    return topic
