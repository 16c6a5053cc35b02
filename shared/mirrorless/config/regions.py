"""Which partition of AWS is a region in? Its name is the second part of every ARN there."""

from __future__ import annotations

_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}


def partition_of(region: str) -> str:
    """`aws`, but for regions in China and for the government of the United States."""
    return next((name for start, name in _PARTITIONS.items() if region.startswith(start)), "aws")
