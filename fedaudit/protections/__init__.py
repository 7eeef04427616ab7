"""One file per mechanism: hooks held by honest parties."""
