"""The check of lanes, the causes of gaps, and the operator's actions."""
