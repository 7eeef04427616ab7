"""What a run could have seen, and how much more evidence would show a smaller effect."""
