"""What is counted of descriptors on their way."""

from __future__ import annotations

from gdrpy.broker.server.flight import Flight


class Deaf:
    """A connection of one user that reads nothing; counts how often it was looked at."""

    looks = 0
    uid = 7

    def __init__(self) -> None:
        self.in_flight = 0

    def unread(self) -> int:
        Deaf.looks += 1
        return 1


class TestUserOfManyConnectionsThatReadNothing:
    def test_does_not_have_all_looked_at_for_each(self) -> None:
        flight = Flight()
        receivers: list[Deaf] = []
        while flight.admits(receiver := Deaf(), 250):
            flight.note(receiver, 250)
            receivers.append(receiver)
        Deaf.looks = 0
        for receiver in receivers:
            assert not flight.admits(receiver, 250)
        assert Deaf.looks <= 3 * len(receivers) + 100
