"""From a TOML file to a federation: config, catalogue, data, parts, task and marks."""
