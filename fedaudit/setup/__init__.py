"""Build a federation from a TOML file: config, catalogue, data, partition, task and marks."""
