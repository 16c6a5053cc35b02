"""A broker of librdkafka's own mock cluster, whose answers a test orders by kind of request.

Only by the C functions of `rdkafka_mock.h` can single answers be refused and delayed: a real broker has neither.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import confluent_kafka

from mirrorless.adapters.kafka.client import client_config
from mirrorless.flow.settings import ClusterSettings

_BROKER = 1


class MockBroker:
    """One broker; `config` is a producer's that connects to it."""

    def __enter__(self) -> Self:
        self._c = _library()
        reason = ctypes.create_string_buffer(512)
        self._client = ctypes.c_void_p(
            self._c.rd_kafka_new(0, ctypes.c_void_p(self._c.rd_kafka_conf_new()), reason, len(reason))
        )
        assert self._client.value, reason.value
        self._cluster = ctypes.c_void_p(self._c.rd_kafka_mock_cluster_new(self._client, 1))
        bootstrap: bytes = self._c.rd_kafka_mock_cluster_bootstraps(self._cluster)
        self.config: dict[str, Any] = {
            **client_config(ClusterSettings(alias="eu-west", bootstrap=bootstrap.decode()), "us-east->eu-west|writer"),
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
        }
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._c.rd_kafka_mock_cluster_destroy(self._cluster)
        self._c.rd_kafka_destroy(self._client)

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self._c.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)

    def answer_next(self, request: int, *answers: tuple[int, int]) -> None:
        """Order the answers to the next requests of a kind: an error's code, 0 for none, and after how many ms."""
        self._c.rd_kafka_mock_broker_push_request_error_rtts(
            self._cluster, _BROKER, ctypes.c_int16(request), ctypes.c_size_t(len(answers)), *map(int, sum(answers, ()))
        )

    def count(self) -> None:
        """Count requests from now on."""
        self._c.rd_kafka_mock_start_request_tracking(self._cluster)

    def requests(self, request: int) -> int:
        """How many of a kind came since `count`."""
        number = ctypes.c_size_t()
        found = self._c.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(number))
        try:
            keys = [self._c.rd_kafka_mock_request_api_key(ctypes.c_void_p(found[i])) for i in range(number.value)]
        finally:
            self._c.rd_kafka_mock_request_destroy_array(found, number)
        return keys.count(request)


def _library() -> ctypes.CDLL:
    """The client's own."""
    (path,) = Path(confluent_kafka.__file__).parent.parent.glob("confluent_kafka.libs/librdkafka-*")
    c = ctypes.CDLL(str(path))
    for name in ("rd_kafka_new", "rd_kafka_conf_new", "rd_kafka_mock_cluster_new"):
        getattr(c, name).restype = ctypes.c_void_p
    c.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    c.rd_kafka_mock_get_requests.restype = ctypes.POINTER(ctypes.c_void_p)
    c.rd_kafka_mock_request_api_key.restype = ctypes.c_int16
    return c
