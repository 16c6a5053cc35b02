"""The partitions that a reconcile leaves alone before it looks at any record."""

from __future__ import annotations

from spark.jobs.reconcile.topics import not_reconciled


def test_a_partition_that_the_source_no_longer_has_is_left_alone_at_once() -> None:
    """A failback after a topic was made anew with fewer asked for its end for two minutes, and advised a retry."""
    why = not_reconciled("us-east.orders", 3, 3, {})

    assert why.startswith("the source's topic has 3 partitions, and not this one: what was written to us-east.orders-3")
    assert "give the topic 4 partitions" in why
    assert not_reconciled("us-east.orders", 2, 3, {}) == ""
    assert not_reconciled("us-east.orders", 0, 0, {}) == "", "a source that has lost the topic gets it back"


def test_a_topic_that_stamps_records_itself_is_left_alone() -> None:
    assert "LogAppendTime" in not_reconciled("us-east.orders", 0, 1, {"message.timestamp.type": "LogAppendTime"})
