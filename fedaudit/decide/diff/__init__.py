"""Which differences between two runs exceed their intervals."""
