"""The page of the rings' protocol tells the places that the C core gives them."""

from __future__ import annotations

import re

import pytest

#: The page's names of places, by their names in headers of the C core.
PLACES = {
    "ring.h": {"tail": "RING_TAIL", "closed": "RING_CLOSED", "records": "RING_RECORDS"}
    | {"head": "RING_HEAD", "stopped": "RING_STOPPED"},
    "inbox.h": {"reserved": "INBOX_RESERVED", "taken": "INBOX_TAKEN", "end": "INBOX_END"}
    | {"slots": "INBOX_SLOTS"},
    "requests.h": {"taken": "LINK_TAKEN", "end": "LINK_END", "requests": "LINK_REQUESTS"}
    | {"stopped": "LINK_STOPPED", "answers": "LINK_ANSWERS"},
}


@pytest.mark.parametrize(
    ("kind", "header"), [("channel", "ring.h"), ("inbox", "inbox.h"), ("link", "requests.h")]
)
def test_places_are_those_of_the_core(checkout, kind, header):
    page = (checkout / "docs/channel-protocol.md").read_text()
    (row,) = re.findall(rf"^\| of an? {kind} \|.*", page, re.MULTILINE)
    found = dict(re.findall(r"`?(\w+)`? (\d+)", row))
    text = (checkout / "gdrpy/_core/channel" / header).read_text()
    core = dict(re.findall(r"^#define CORE_(\w+) (\d+)\b", text, re.MULTILINE))
    expected = {name: core[place] for name, place in PLACES[header].items()}
    if kind == "link":
        expected["twins"] = str(int(core["LINK_REQUESTS"]) + int(core["LINK_PAGE"]))
    assert found == expected
