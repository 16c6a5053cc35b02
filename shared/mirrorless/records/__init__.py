"""What a record is, alone and in the batches of a log."""
