"""A bounded run of the fuzzer; ``tests/broker/fuzz.py`` is the program for longer ones."""

from __future__ import annotations

import fuzz

PACKETS = 20_000


class TestBroker:
    def test_lives_through_packets_of_every_kind_and_keeps_what_is_others(self) -> None:
        report = fuzz.run(PACKETS, seed=4)
        assert report["packets"] > 0.9 * PACKETS
        assert report["replies"]["done"] > PACKETS / 20
        refused = {"InvalidRequest", "ProtocolError", "NotFound", "Gone", "SizeMismatch"}
        assert refused <= set(report["replies"])
