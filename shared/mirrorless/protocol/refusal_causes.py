"""Why a record is refused, and what lets it through: a table of causes, by name.

Names of Kafka's errors are librdkafka's. Any other error that a target answers to a record is none of the record's: the
same batch is written again. The rest are refused here, before they would be written as something else.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ZERO_TIMESTAMP: Final = "ZERO_TIMESTAMP"
NUL_IN_NAME: Final = "NUL_IN_NAME"
NAME_NOT_TEXT: Final = "NAME_NOT_TEXT"
TRANSFORM_FAILED: Final = "TRANSFORM_FAILED"

_KEPT: Final = ", and name it in config.properties.protect: the sync of configs sets it back otherwise"
"""Of any config but a limit, which the sync never lowers."""

_BY_BATCH: Final = "copy it inside its batch, by trigger: schedule or a backfill"

REMEDIES: Final[Mapping[str, str]] = {
    # Of the target
    "MSG_SIZE_TOO_LARGE": "raise max.message.bytes of the remote topic",
    "RECORD_LIST_TOO_LARGE": "raise segment.bytes of the remote topic" + _KEPT + ". A batch must fit into a segment",
    "INVALID_MSG_SIZE": "raise max.message.bytes of the remote topic",
    "INVALID_MSG": "its bytes changed on the way to the broker: try again; or, before Kafka 2.4, a compacted topic "
    "got it without a key: set the remote topic's cleanup.policy to delete" + _KEPT,
    "INVALID_RECORD": "do as the broker's words say: where a compacted topic takes no record without a key, set the "
    "remote topic's cleanup.policy to delete" + _KEPT,
    "INVALID_TIMESTAMP": "raise the remote topic's message.timestamp.before.max.ms or "
    "message.timestamp.after.max.ms (before Kafka 3.6 message.timestamp.difference.max.ms)",
    "POLICY_VIOLATION": "change the target's own policy for records",
    "UNSUPPORTED_COMPRESSION_TYPE": "let the target take its codec: zstd needs Kafka 2.1 and its message format",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "raise the remote topic's message.format.version to 0.11 or later" + _KEPT,
    # Of the Kafka client, as it is known to behave
    ZERO_TIMESTAMP: _BY_BATCH,
    NUL_IN_NAME: _BY_BATCH,
    NAME_NOT_TEXT: _BY_BATCH,
    # Of the flow's rules
    TRANSFORM_FAILED: "change the rule (`transforms` of replication.yaml) so that it fits such records, try it by "
    "`mirrorless transform test '{flow}' {topic}`, and deploy it",
    # Of the source's log
    "DAMAGED": "compare the replicas of the source's partition, and let one with a sound copy lead it",
    "UNKNOWN_CODEC": "install a version of Mirrorless that has its codec",
}
"""By cause: what the operator does before the lane is resumed; with `{flow}` and `{topic}` where they belong."""

ANY_REMEDY: Final = "let the target take the record (its max.message.bytes, its cleanup.policy)" + _KEPT
"""Of a stop without a cause, by an earlier version."""
