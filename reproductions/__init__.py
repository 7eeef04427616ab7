"""The papers' experiments at a size that two cores finish: `python -m reproductions`.

Every reproduction is a package with a module `run` whose `main(arguments)` measures what is
missing, keeps the results beside itself, and writes one page under `docs/reproductions/`.
"""
