"""The user's own data: tables, arrays, images and text, as a Dataset.

    .csv .tsv .tab .txt (.gz)   a table with a header line; the label column must be named
    .data (.gz)                 the same, with or without a header line
    .parquet .xlsx              the same; needs the extra `tables`
    .npz                        arrays `x` and `y`, optionally `client`, `organisation`, `person`,
                                `classes`, `columns`, `x_test`, `y_test`
    ...-images-idx3-ubyte(.gz)  IDX images; the labels file beside it is found by its name
    .jsonl (.gz)                one JSON object per line with `text`, optionally `label`, `client`,
                                `organisation`, `person`
    a folder                    tables, one per site, or a folder of tables per site;
                                or one folder of images per class, or `train` and `test` of that
                                form, or a folder with IDX files

Every error names the file, the line or column, and a remedy. The dataset's `notes` list every
automatic decision.
"""

from fedaudit.data.files.arrays import idx_array
from fedaudit.data.files.encode import Encoding, Missing, encode_table
from fedaudit.data.files.jsonl import json_lines
from fedaudit.data.files.reading import Format, file_format, read
from fedaudit.data.files.roles import names_an_owner
from fedaudit.data.files.suggest import OpenQuestion, Suggestion, sniff
from fedaudit.data.files.table import FileTable, read_table

__all__ = [
    "Encoding",
    "Format",
    "Missing",
    "OpenQuestion",
    "Suggestion",
    "FileTable",
    "encode_table",
    "file_format",
    "idx_array",
    "json_lines",
    "names_an_owner",
    "read",
    "read_table",
    "sniff",
]
