"""Monitoring of a flow: metrics, alarms with a first action, a dashboard, and its cost."""
