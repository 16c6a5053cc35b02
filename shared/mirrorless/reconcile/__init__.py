"""Reconciliation: after an outage each side has records that the other lacks; the difference is brought back."""
