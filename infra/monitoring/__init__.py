"""How is a flow watched? Metrics, alarms with what to do first, a dashboard, and what it all costs."""
