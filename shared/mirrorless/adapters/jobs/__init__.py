"""The jobs on Spark, wired: what runs on the driver, and what a worker does for one lane."""
