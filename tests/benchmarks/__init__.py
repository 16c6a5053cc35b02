"""What it costs: measured side by side, never in a unit test."""
