"""Amounts of memory as text."""

from __future__ import annotations

from typing import Any

import pytest

from opstage.ops.errors import UsageError
from opstage.ops.readable_amounts import parse_bytes, show_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24GiB", 24 * 2**30),
        ("800MB", 800_000_000),
        ("800 mb", 800_000_000),
        ("1.5KiB", 1536),
        (" .5 kB ", 500),
        ("2TiB", 2**41),
        ("512", 512),
        ("512 B", 512),
        (4096, 4096),
        ("0.1TB", 100_000_000_000),
    ],
)
def test_amounts(text: Any, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("24GIP", r"unknown unit 'GIP' in '24GIP'; write 24GiB, 1.5GB or 800MB"),
        ("24G", r"unknown unit 'G' in '24G'"),
        ("much", r"an amount of memory is a number and a unit, not 'much'; write 24GiB"),
        ("-1GB", r"not '-1GB'"),
        ("", r"not ''"),
        ("0MB", r"must be at least 1 byte but is 0MB"),
        (0, r"must be at least 1 byte but is 0"),
        (True, r"text or a number of bytes, not True"),
        (1.5, r"text or a number of bytes, not 1.5"),
    ],
)
def test_what_is_no_amount(text: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_bytes(text)


def test_shown() -> None:
    shown = ", ".join(show_bytes(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30, 2 << 40))
    assert shown == "0 bytes, 1023 bytes, 1.5 KiB, 5.0 MiB, 3.0 GiB, 2.0 TiB"
