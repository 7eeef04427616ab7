"""What can be said from counts, scores and label vectors; every number with its interval."""
