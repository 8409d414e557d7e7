"""docs/broker-protocol.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from gdrpy.broker import protocol, replies, requests
from gdrpy.broker.server import loop, quotas, service
from gdrpy.broker.server.connection import EVENTS_LIMIT, NONSENSE_LIMIT
from golden import REPLIES

PAGE = (Path(__file__).parent.parent.parent / "docs/broker-protocol.md").read_text()

KINDS = get_args(requests.AnyRequest)


def rows(section: str) -> dict[str, str]:
    """The rows of a section's tables, by what stands in the first column."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)`[^|]* \| (.*) \|$", text, re.MULTILINE))


class TestRequests:
    def test_are_all_described(self):
        assert {requests.name_of(kind) for kind in KINDS} <= set(rows("Requests"))

    @pytest.mark.parametrize("kind", KINDS, ids=requests.name_of)
    def test_have_all_their_fields(self, kind):
        fields = set(re.findall(r"`(\w+)`", rows("Requests")[requests.name_of(kind)]))
        assert set(kind.__struct_fields__) - {"id"} <= fields


class TestReplies:
    @pytest.mark.parametrize("name", REPLIES)
    def test_have_fields_that_are_described(self, name):
        message, _ = REPLIES[name]
        described = set(re.findall(r"`(\w+)`", PAGE))
        assert set(message) <= described


class TestErrors:
    def test_are_all_described(self):
        assert set(rows("Errors")) == {kind.__name__ for kind in replies.ERRORS}


class TestLimits:
    @pytest.mark.parametrize(
        "text",
        [
            f"at most {protocol.PACKET_LIMIT} bytes",
            f"at most {protocol.FDS_LIMIT} with one",
            f"Version {protocol.VERSION}.",
            f"1 to {protocol.NAME_LIMIT} bytes",
            f"up to {protocol.METADATA_LIMIT} bytes",
            f"`names`: up to {protocol.BATCH_LIMIT};",
            f"ends after {protocol.PAGE_BYTES >> 10} KiB",
            f"up to {protocol.HOLDERS_LIMIT} are told",
            f"1 to 2^{protocol.REGION_LIMIT.bit_length() - 1} ",
            f"After {NONSENSE_LIMIT} such packets",
            f"since {EVENTS_LIMIT} packets were unread",
            f"{quotas.PROCESS_CONNECTIONS} connections of a process",
            f"and {quotas.USER_CONNECTIONS} of a user",
            f"at most {service.SLICE} grants",
            f"may have {quotas.USER_LEASES} leases",
            f"may have {quotas.USER_SLEEPERS} regions asleep",
            f"{loop.USER_BYTES >> 20} MiB for all",
        ],
    )
    def test_are_as_described(self, text):
        assert text in " ".join(PAGE.split())
