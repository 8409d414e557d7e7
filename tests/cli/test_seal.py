"""``gdrpy seal``."""

from __future__ import annotations

import hashlib

import gdrpy
from gdrpy.cli import main
from serving import DATA


class TestSeal:
    def test_keeps_writers_away(self, put):
        put("table")
        assert main(["seal", "table"]) == 0
        with gdrpy.connect() as client, client.get("table", gpu=False) as region:
            assert (region.sealed, region.readonly) == (True, True)

    def test_gives_the_digest(self, put, json_of):
        put("table")
        status, said = json_of("seal", "table", "--digest")
        assert (status, said["sha256"]) == (0, hashlib.sha256(DATA).hexdigest())
