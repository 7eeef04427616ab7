"""One file or folder per method; each audit attacks a view, and is scored against the truth."""
