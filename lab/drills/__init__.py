"""The demonstrations and long runs: demo, failover, soak, and the applications that write and read in them."""
