"""Clusters with Kafka's own authorizer: without a password we are a super user, by password the user `dummy`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.servers.kafka import KafkaBroker, KafkaCluster
from lab.servers.process import free_port, running

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
}


class GuardedBroker(KafkaBroker):
    """A broker that also listens for the user `dummy`, who is no super user."""

    def __init__(self, **rest: Any) -> None:
        """Choose the address; the rest is as ever."""
        super().__init__(**rest)
        self.by_password = f"127.0.0.1:{free_port()}"

    def _write_settings(self) -> str:
        path = Path(super()._write_settings())
        usual, own = self.place.listeners(), f"SASL_PLAINTEXT://{self.by_password}"
        protocols = usual.get("listener.security.protocol.map", "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT")
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required user_dummy=dummy;"
        settings = {
            "listeners": f"{own},{usual['listeners']}",
            "advertised.listeners": f"{own},{usual['advertised.listeners']}",
            "listener.security.protocol.map": f"{protocols},SASL_PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": login,
        }
        with path.open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in settings.items())  # the last one of a name counts
        return str(path)


def as_dummy(cluster: KafkaCluster) -> dict[str, str | int]:
    """The settings of a client of the user `dummy`."""
    (broker,) = cluster.brokers
    assert isinstance(broker, GuardedBroker)
    return {
        "bootstrap.servers": broker.by_password,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "dummy",
        "sasl.password": "dummy",
        "log_level": 0,
    }


@contextmanager
def guarded_clusters(folder: Path) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """A source and a target, running inside the block; who is no user `dummy` reaches the target by a link."""
    source, target = (
        KafkaCluster(
            alias=alias,
            folder=folder / alias,
            properties=AUTHORIZER,
            heap_mb=256,
            kind=GuardedBroker,
            linked=alias == "eu-west",
        )
        for alias in ("us-east", "eu-west")
    )
    with running(source, target):
        yield source, target
