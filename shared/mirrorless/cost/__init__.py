"""The cost of replication and of jobs by list prices: pure arithmetic."""
