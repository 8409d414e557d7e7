"""Sizes on the command line."""

from __future__ import annotations

import argparse

import pytest

from gdrpy.cli.sizes import (
    approximate_size,
    counted,
    format_size,
    parse_size,
    parse_sizes,
    short_size,
)
from gdrpy.common.sizes import told_size


class TestParsing:
    @pytest.mark.parametrize(
        ("text", "nbytes"),
        [
            ("1", 1),
            ("4096", 4096),
            ("64K", 64 << 10),
            ("64k", 64 << 10),
            ("1M", 1 << 20),
            ("2G", 2 << 30),
            ("3T", 3 << 40),
            ("1MiB", 1 << 20),
            ("1MB", 1 << 20),
            ("7B", 7),
            (" 5 K ", 5 << 10),
            ("4194303T", 4194303 << 40),
        ],
    )
    def test_takes_binary_units(self, text, nbytes):
        assert parse_size(text) == nbytes

    @pytest.mark.parametrize("text", ["", "K", "1.5M", "-1", "+1", "0x10", "1P", "1 2", "٤", "1_0"])
    def test_tells_what_a_size_looks_like(self, text):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a size: give whole bytes"):
            parse_size(text)

    @pytest.mark.parametrize("text", ["0", "0G", "4194304T", "9" * 40])
    def test_refuses_sizes_that_nothing_has(self, text):
        with pytest.raises(argparse.ArgumentTypeError, match="from 1 byte to less than 4 EiB$"):
            parse_size(text)

    def test_sorts_lists_and_drops_doubles(self):
        assert parse_sizes("1M,4K,1024K,1") == [1, 4096, 1 << 20]

    def test_refuses_a_list_with_a_gap(self):
        with pytest.raises(argparse.ArgumentTypeError, match="'' is not a size"):
            parse_sizes("4K,,1M")


class TestFormatting:
    @pytest.mark.parametrize(
        ("nbytes", "text"),
        [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (4097, "4097 bytes"),
            (3 << 20, "3 MiB"),
            (1 << 40, "1 TiB"),
        ],
    )
    def test_is_exact(self, nbytes, text):
        assert format_size(nbytes) == text

    def test_is_short_where_asked(self):
        assert [short_size(nbytes) for nbytes in (0, 4, 1536, 65536)] == [
            "0 B",
            "4 B",
            "1536 B",
            "64 KiB",
        ]

    def test_approximates_where_asked(self):
        assert approximate_size(150_109_880_320) == "139.8 GiB"
        assert approximate_size(512) == "512 bytes"

    @pytest.mark.parametrize(
        ("nbytes", "text"),
        [
            (0, "0 bytes"),
            (1000, "1000 bytes"),
            (5000, "4.9 KiB (5000 bytes)"),
            (2 << 30, "2 GiB"),
            (9999 << 20, "9999 MiB"),
            (143_771 << 20, "140.4 GiB (150754820096 bytes)"),
        ],
    )
    def test_has_the_bytes_beside_it_where_it_is_not_exact(self, nbytes, text):
        assert told_size(nbytes) == text


class TestCount:
    def test_has_a_plural_but_for_one(self):
        told = [counted(number, "request") for number in (0, 1, 2)]
        assert told == ["0 requests", "1 request", "2 requests"]
