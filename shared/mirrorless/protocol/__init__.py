"""The exactly-once protocol: a Lambda event in, records on the target, one link of each lane's chain."""
