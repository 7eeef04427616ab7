"""From results to words and pages. `findings` is the only place that turns numbers into words."""
