"""`fedaudit diff`: differences between two runs that exceed their intervals."""
