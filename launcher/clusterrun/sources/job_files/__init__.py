"""Job files in YAML."""
