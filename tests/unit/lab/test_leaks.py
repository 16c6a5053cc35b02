"""The search for planted secrets: each form in which one could be shown, wherever it is."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.audit.leaks import SecretSearch

SECRET = b"0a1b2c3d4e5f6789"
SEARCH = SecretSearch(SECRET)
SHOWN = [
    pytest.param(b"of %b." % SECRET, id="as it is"),
    pytest.param((b"\xff" + SECRET).hex().encode(), id="in hexadecimal"),
    *(
        pytest.param(encode(b"x" * before + SECRET + b"y" * behind), id=f"{encode.__name__} behind {before} bytes")
        for encode in (base64.b64encode, base64.urlsafe_b64encode)
        for before in range(4)
        for behind in range(3)
    ),
]
NOT_SHOWN = [b"", SECRET[:-1], SECRET[::-1], base64.b64encode(SECRET[1:]), base64.b64encode(SECRET[:-1])]


@pytest.mark.parametrize("data", SHOWN)
def test_a_secret_is_found_in_each_form(data: bytes) -> None:
    assert SEARCH.shows(data)


@pytest.mark.parametrize("data", NOT_SHOWN)
def test_what_is_no_whole_secret_is_not_found(data: bytes) -> None:
    assert not SEARCH.shows(data)


def test_files_that_show_it_are_named_but_for_those_of_folders_that_are_left_out(tmp_path: Path) -> None:
    for name in ("functions/one.log", "functions/other.log", "source/data/0.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"nothing" if "other" in name else SECRET)

    assert list(SEARCH.files(tmp_path, leave_out=["data"])) == ["functions/one.log"]
    assert sorted(SEARCH.files(tmp_path)) == ["functions/one.log", "source/data/0.log"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"S": f"of {SECRET.decode()}"}, True),
        ({"B": SECRET}, True),
        ({"B": zlib.compress(json.dumps({"value": SECRET.decode()}).encode())}, True),
        ({"B": zlib.compress(bytes(99) + SECRET)[:-4]}, True),
        ({"L": [{"M": {SECRET.decode(): {"N": "1"}}}]}, True),
        ({"M": {"key": {"L": [{"S": "of nothing"}, {"B": zlib.compress(b"nothing")}, {"BOOL": True}]}}}, False),
    ],
)
def test_a_table_that_shows_it_is_named_whatever_the_attribute_is(value: Any, *, shown: bool) -> None:
    pages: Any = [{"Items": []}, {"Items": [{"key": {"S": "a"}}, {"key": {"S": "b"}, "other": value}]}]
    paginator = SimpleNamespace(paginate=lambda **_: pages)
    client = SimpleNamespace(list_tables=lambda: {"TableNames": ["lanes"]}, get_paginator=lambda _: paginator)

    assert list(SEARCH.items(client)) == ([f"lanes {pages[1]['Items'][1]}"] if shown else [])
