"""What would a change of configuration or code do to tables, mappings and positions? Told offline, from templates."""
