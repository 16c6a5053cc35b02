"""Reconciliation: after an outage, both sides have what the other lacks; bring back the difference and go on."""
