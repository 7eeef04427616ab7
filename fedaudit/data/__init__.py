"""Datasets: where records come from, and which client holds them.

- `dataset`: the type that all modules below return.
- `builtin`: sets without download, and synthetic ones with a known truth.
- `fetch`: real sets, downloaded from package registries on demand.
- `files`: the user's own tables, arrays, images and text.
- `prepare`: held-out part, standardising.
- `partition`: which client holds which record.
- `text`: vocabularies and windows for language models.

Nothing is imported here, so that a command loads only what it needs.
"""
