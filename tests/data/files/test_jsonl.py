from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedaudit.data.files import read


def lines(*records: object) -> str:
    return "".join(json.dumps(r) + "\n" for r in records)


def test_jsonl(write: Callable[..., Path]) -> None:
    text = lines(
        {"text": "a\u2028b", "client": "x", "label": 1}, {"text": "c", "client": "y", "label": 0}
    )
    data = read(write("t.jsonl", text + "\n"))
    assert data.x == ("a\u2028b", "c")
    assert data.client == ("x", "y")
    assert (data.classes, data.y.tolist()) == (("0", "1"), [1, 0])
    bare = read(write("u.jsonl", lines({"body": "a"}, {"body": "b"})), text="body")
    assert (bare.classes, bare.client, bare.y.tolist()) == ((), None, [0, 0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("empty file",)),
        ('{"text": "a"}\n{"text": \n', ("line 2", "not JSON")),
        ('{"text": "a"}\n[1]\n', ("line 2", "not an object")),
        ('{"text": "a"}\n{"txt": "b"}\n', ("line 2", "did you mean 'txt'")),
        ('{"text": "a"}\n{"text": 5}\n', ("line 2", "there is no text", "5")),
        ('{"text": "a", "client": "x"}\n\n{"text": "b"}\n', ("line 3", "client is missing")),
    ],
)
def test_what_is_wrong_in_jsonl_is_named(
    text: str, words: tuple[str, ...], write: Callable[..., Path], unsaid: Callable[..., list[str]]
) -> None:
    assert not unsaid(write("t.jsonl", text), *words)
