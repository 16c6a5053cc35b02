"""The operator's command `mirrorless`."""
