"""The search for a refused record without a target, and the errors that refuse one: each with a remedy."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import KafkaError

from mirrorless.adapters.kafka.delivery_reports import REFUSALS
from mirrorless.adapters.kafka.wire.raw_writer import PASSING
from mirrorless.ports.topics import ConfigChange, ConfigEntry
from mirrorless.protocol.refusal_causes import (
    ANY_REMEDY,
    NAME_NOT_TEXT,
    NUL_IN_NAME,
    REMEDIES,
    TRANSFORM_FAILED,
    ZERO_TIMESTAMP,
)
from mirrorless.protocol.transaction import RefusalSearch
from mirrorless.records.record_batch import DAMAGED, UNKNOWN_CODEC
from mirrorless.topics.configs import drift


def test_a_search_among_ten_thousand_records_takes_four_steps() -> None:
    search, sizes = RefusalSearch.among(10_000), list[int]()

    while not search.refused(0, 0):
        sizes.append(search.batch)

    assert sizes == [40, 3, 1]


def test_what_the_target_took_before_the_refused_batch_goes_alone_and_in_batches_of_the_same_size() -> None:
    search = RefusalSearch.among(1_600)

    assert not search.refused(300, 0)
    assert (search.certain, search.batch) == (300, 100)
    assert search.taken(200, 1_400) == 0
    assert (search.certain, search.batch) == (100, 100)
    assert search.taken(100, 1_300) == 0
    assert (search.certain, search.batch) == (0, 7)


def test_a_batch_whose_records_are_taken_in_smaller_ones_was_too_large_as_a_whole() -> None:
    search = RefusalSearch.among(1_600)
    search.refused(0, 100_000)

    assert search.taken(60, 1_540) == 0
    assert search.taken(52, 1_488) == 100_000
    assert search.batch == 93
    assert search.taken(1_488, 0) == 0


def test_the_refused_record_itself_ends_the_search() -> None:
    search = RefusalSearch.among(16)

    assert search.refused(5, 10)
    assert search.certain == 0
    assert search.taken(5, 0) == 0


@pytest.mark.parametrize("first", [0, 99])
def test_a_batch_is_too_large_as_a_whole_once_the_last_of_its_records_is_taken(first: int) -> None:
    search = RefusalSearch.among(1_600)
    search.refused(0, 100_000)
    search.taken(first, 1_600 - first)

    assert search.taken(100 - first, 1_500) == 100_000


# Causes

OURS = {ZERO_TIMESTAMP, NUL_IN_NAME, NAME_NOT_TEXT, TRANSFORM_FAILED, DAMAGED, UNKNOWN_CODEC}

FAULTS = {
    "the record's": """
        INVALID_MSG INVALID_MSG_SIZE MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_TIMESTAMP
        UNSUPPORTED_FOR_MESSAGE_FORMAT POLICY_VIOLATION UNSUPPORTED_COMPRESSION_TYPE INVALID_RECORD
    """,
    "the partition's: it may be there again, with a leader and its replicas": """
        UNKNOWN_TOPIC_OR_PART LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE
        NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND KAFKA_STORAGE_ERROR FENCED_LEADER_EPOCH
        UNKNOWN_LEADER_EPOCH UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID
    """,
    "the moment's": """
        REQUEST_TIMED_OUT NETWORK_EXCEPTION THROTTLING_QUOTA_EXCEEDED UNKNOWN
    """,
    "the deployment's: no record of the topic can be written, and none is to be left out for it": """
        TOPIC_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED TOPIC_EXCEPTION
        SECURITY_DISABLED
    """,
    "the transaction's: it is aborted, and the batch is written in another": """
        OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH INVALID_TXN_STATE
        INVALID_PRODUCER_ID_MAPPING CONCURRENT_TRANSACTIONS UNKNOWN_PRODUCER_ID PRODUCER_FENCED TRANSACTION_ABORTABLE
        TRANSACTION_COORDINATOR_FENCED COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR
    """,
    "the request's: no record is at fault": """
        INVALID_REQUIRED_ACKS INVALID_REQUEST UNSUPPORTED_VERSION
    """,
}
"""Names of the Java client's ProduceResponse, of the appends behind it, and of the check of transactions (KIP-890)."""

OF_PRODUCE = {name: whose for whose, names in FAULTS.items() for name in names.split()}
"""By name: whose fault it is."""


def test_every_error_of_a_record_has_a_remedy_and_both_writers_take_it_for_one() -> None:
    refused = {name for name, whose in OF_PRODUCE.items() if whose == "the record's"}

    assert refused == REMEDIES.keys() - OURS
    assert {KafkaError(code).name() for code in REFUSALS} == refused
    assert all(REMEDIES.values())


CONFIG = re.compile(r"\b(?:[a-z]+\.)+(?:bytes|ms|policy|version)\b")


@pytest.mark.parametrize("cause", [*(each for each in REMEDIES if CONFIG.search(REMEDIES[each])), ""])
def test_what_an_advice_changes_on_the_remote_topic_the_sync_leaves_as_it_is(cause: str) -> None:
    remedy = REMEDIES.get(cause, ANY_REMEDY)
    protect = set(CONFIG.findall(remedy)) if "name it in config.properties.protect" in remedy else set()

    for name in CONFIG.findall(remedy):
        before, after = (ConfigEntry(name=name, value=value, is_override=True) for value in ("10", "20"))
        assert drift([before], [after], protect=protect).change == ConfigChange(), name


def test_every_other_error_is_tried_again_and_leaves_out_nothing() -> None:
    codes = {KafkaError(code).name(): code for code in range(-1, 200)}
    others = {name for name, whose in OF_PRODUCE.items() if whose != "the record's"}

    assert others <= codes.keys(), "names of librdkafka"
    assert not {codes[name] for name in others} & REFUSALS
    resent = {KafkaError(code).name() for code in PASSING} - {"OFFSET_NOT_AVAILABLE"}  # of a fetch
    assert resent <= others, "what the writer of batches resends"


def test_every_error_that_librdkafka_has_is_of_produce_or_of_another_request() -> None:
    """A code that a later version brings is looked at here before it is met."""
    known = {name for code in range(1, 200) if not (name := KafkaError(code).name()).startswith("ERR_")}

    assert known - OF_PRODUCE.keys() == set(OF_OTHER_REQUESTS.split())


OF_OTHER_REQUESTS = """
    DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_EXPIRED
    DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED DUPLICATE_RESOURCE
    DUPLICATE_VOTER ELECTION_NOT_NEEDED ELIGIBLE_LEADERS_NOT_AVAILABLE FEATURE_UPDATE_FAILED FENCED_INSTANCE_ID
    FENCED_MEMBER_EPOCH FENCED_STATE_EPOCH FETCH_SESSION_ID_NOT_FOUND GROUP_AUTHORIZATION_FAILED GROUP_ID_NOT_FOUND
    GROUP_MAX_SIZE_REACHED GROUP_SUBSCRIBED_TO_TOPIC ILLEGAL_GENERATION ILLEGAL_SASL_STATE INCONSISTENT_GROUP_PROTOCOL
    INCONSISTENT_VOTER_SET INVALID_COMMIT_OFFSET_SIZE INVALID_CONFIG INVALID_FETCH_SESSION_EPOCH INVALID_GROUP_ID
    INVALID_PARTITIONS INVALID_PRINCIPAL_TYPE INVALID_RECORD_STATE INVALID_REGISTRATION INVALID_REGULAR_EXPRESSION
    INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_SESSION_TIMEOUT INVALID_SHARE_SESSION_EPOCH
    INVALID_TRANSACTION_TIMEOUT INVALID_UPDATE_VERSION INVALID_VOTER_KEY LISTENER_NOT_FOUND LOG_DIR_NOT_FOUND
    MEMBER_ID_REQUIRED MISMATCHED_ENDPOINT_TYPE NON_EMPTY_GROUP NOT_CONTROLLER NO_REASSIGNMENT_IN_PROGRESS
    OFFSET_METADATA_TOO_LARGE OFFSET_NOT_AVAILABLE OFFSET_OUT_OF_RANGE OPERATION_NOT_ATTEMPTED
    PREFERRED_LEADER_NOT_AVAILABLE PRINCIPAL_DESERIALIZATION_FAILURE REASSIGNMENT_IN_PROGRESS REBALANCE_IN_PROGRESS
    REBOOTSTRAP_REQUIRED RESOURCE_NOT_FOUND SASL_AUTHENTICATION_FAILED SHARE_SESSION_LIMIT_REACHED
    SHARE_SESSION_NOT_FOUND STALE_BROKER_EPOCH STALE_CTRL_EPOCH STALE_MEMBER_EPOCH STREAMS_INVALID_TOPOLOGY
    STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED TELEMETRY_TOO_LARGE TOPIC_ALREADY_EXISTS
    TOPIC_DELETION_DISABLED UNACCEPTABLE_CREDENTIAL UNKNOWN_CONTROLLER_ID UNKNOWN_MEMBER_ID UNKNOWN_SUBSCRIPTION_ID
    UNRELEASED_INSTANCE_ID UNSTABLE_OFFSET_COMMIT UNSUPPORTED_ASSIGNOR UNSUPPORTED_ENDPOINT_TYPE
    UNSUPPORTED_SASL_MECHANISM VOTER_NOT_FOUND
"""
"""Of groups, topics, quotas, tokens, fetches, votes: no answer to a batch has them."""
