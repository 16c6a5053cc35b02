"""The domain of Mirrorless: records, lanes, runs and the exactly-once protocol."""
