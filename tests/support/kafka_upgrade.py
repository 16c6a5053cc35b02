"""A cluster to another version of Kafka, one broker after the other on the same data, while clients go on.

As Kafka's own upgrade has it: restart each broker with the new version, and once all have it, and it is to stay, raise
the cluster's features to it. Before that the version can be taken back in the same way.
(https://kafka.apache.org/41/getting-started/upgrade/)
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lab.servers.artifacts import classpath, java_command, kafka_jars
from lab.servers.process import ServerFailed
from lab.waiting import wait_for

if TYPE_CHECKING:
    from lab.servers.kafka import KafkaCluster
    from lab.supervisor import Supervisor

IN_SYNC_WITHIN_S: Final = 60.0
_TOOL_S: Final = 60.0


def roll(cluster: KafkaCluster, version: str, *, supervisor: Supervisor | None = None) -> None:
    """Restart every broker with another version, each when the one before has caught up.

    Args:
        cluster: whose; it runs.
        version: such as `4.1.1`.
        supervisor: what would else start a stopped broker again.

    Raises:
        ServerFailed: a broker does not start, or does not catch up; the others run.
    """
    for broker in cluster.brokers:
        if supervisor is not None:
            supervisor.hold(broker)
        broker.stop()
        broker.version = version
        broker.start()
        if supervisor is not None:
            supervisor.release(broker)
        wait_in_sync(cluster)
    cluster.version = version


def wait_in_sync(cluster: KafkaCluster) -> None:
    """Wait until every replica of every partition is in sync: another broker may stop then.

    Raises:
        ServerFailed: with the partitions that are not.
    """
    client = AdminClient({"bootstrap.servers": cluster.direct, "log_level": 0})
    if behind := wait_for(lambda: _behind(client), seconds=IN_SYNC_WITHIN_S):
        raise ServerFailed(f"not in sync within {IN_SYNC_WITHIN_S:g} s: {', '.join(behind)}", where=cluster.title)


def _behind(client: AdminClient) -> list[str]:
    try:
        topics = client.list_topics(timeout=5.0).topics
    except KafkaException as exc:
        return [str(exc.args[0])]
    return [
        f"{name}-{number}"
        for name, topic in sorted(topics.items())
        for number, partition in topic.partitions.items()
        if partition.leader < 0 or len(partition.isrs) < len(partition.replicas)
    ]


def raise_features(cluster: KafkaCluster, release: str) -> None:
    """Raise the cluster's features to those of a release: its brokers cannot go back behind it.

    Args:
        cluster: whose; every broker has the version.
        release: such as `4.1`.

    Raises:
        ServerFailed: the cluster refuses it; the tool's words are in the text.
    """
    _features(cluster, "upgrade", "--release-version", release)


def features(cluster: KafkaCluster) -> dict[str, str]:
    """The level of each feature, such as `metadata.version`.

    Raises:
        ServerFailed: the cluster does not answer.
    """
    lines = _features(cluster, "describe").splitlines()
    found = (re.search(r"Feature: (\S+).*FinalizedVersionLevel: (\S+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def _features(cluster: KafkaCluster, *arguments: str) -> str:
    jars = kafka_jars(cluster.version)
    tool = [java_command(), "-cp", classpath(jars), "org.apache.kafka.tools.FeatureCommand"]
    command = [*tool, "--bootstrap-server", cluster.direct, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TOOL_S)
    if done.returncode:
        raise ServerFailed(f"kafka-features {' '.join(arguments)}: {done.stdout}{done.stderr}", where=cluster.title)
    return done.stdout
