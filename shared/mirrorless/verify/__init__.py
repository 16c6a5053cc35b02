"""Verification: the proof that the copy is what the offset map states and what the source holds."""
