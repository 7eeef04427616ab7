"""Where records come from and who holds them.

- `dataset`: the one type everything below returns.
- `builtin`: sets that need no download, and synthetic ones with a known truth.
- `fetch`: real sets taken from package registries on demand.
- `files`: the user's own tables, arrays, images and text.
- `prepare`: held-out part, standardising.
- `partition`: which client holds which record.
- `text`: vocabularies and windows for language models.

Nothing is imported here: starting a command must not pay for rooms it does not enter.
"""
