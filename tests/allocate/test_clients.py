"""Names, columns and edges of clients, as they were written down."""

import re

import pytest

from fedaudit.errors import DataError, UsageError


def test_names_are_found_or_counted(allocated, tmp_path):
    def clients(text, **more):
        path = tmp_path / "t.csv"
        path.write_text(text, encoding="utf-8")
        return allocated(path, size_column="n", **more).clients

    assert clients("n,id\n100,x\n200,y\n") == ("x", "y")
    assert clients("n,where\n100,x\n200,y\n") == ("x", "y")
    assert clients("n,where\n100,x\n200,x\n") == ("client-0", "client-1")
    assert clients("n\n100\n200\n") == ("client-0", "client-1")
    assert clients("n,a,b\n100,x,p\n200,y,q\n", client_column="b") == ("p", "q")
    # rows of a table without names are numbered in the edge list
    edges = tmp_path / "e.txt"
    edges.write_text("0 1\n", encoding="utf-8")
    assert len(clients("n\n100\n200\n", edges=edges)) == 2


@pytest.mark.parametrize(
    ("edges", "words"),
    [
        ("Zagreb,Aachen\nMalmo,Brno\n", "4 components: {Zagreb, Aachen} (2); {Malmo, Brno} (2)"),
        ("Zagreb,Achen\n", "unknown client 'Achen'"),
        ("Zagreb\n", "not an edge"),
    ],
)
def test_bad_edges(allocated, table, tmp_path, edges, words):
    path = tmp_path / "edges.txt"
    path.write_text(edges, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        allocated(table, edges=path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client,n\na,100\n", "at least two clients"),
        ("client,n\na,100\na,200\n", "several rows"),
        ("client,n\na,100\n,200\n", "line 3"),
        ("client,n\na,100\nb,nan\n", "line 3"),
        ("client,n\na,100\nb,-5\n", "line 3"),
        ("client,n\na,100\nb,0\n", "at least 1"),
        ("client,n\na,100\nb,1e999\n", "line 3"),
    ],
)
def test_bad_tables(allocated, tmp_path, text, words):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises((DataError, UsageError), match=words):
        allocated(path, size_column="n")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"size_column": "m"}, DataError, "no column 'm'"),
        ({"size_column": "region"}, DataError, "line 2.*whole number"),
        ({"size_column": "n", "client_column": "region"}, DataError, "lines 2, 6"),
    ],
)
def test_columns_that_cannot_be_used(refused, given, error, words):
    assert re.search(words, refused(error, **given))
