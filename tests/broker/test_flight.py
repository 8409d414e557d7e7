"""What is counted of descriptors on their way."""

from __future__ import annotations

from gdrpy.broker.server.connection import Flight


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

    def test_has_some_looked_at_a_time_in_turn(self) -> None:
        flight = Flight()
        receivers: list[Deaf] = []
        while flight.admits(receiver := Deaf(), 2):
            flight.note(receiver, 2)
            receivers.append(receiver)
        receivers[-1].unread = lambda: 0  # type: ignore[method-assign]
        asked, admitted = 0, False
        while not admitted:
            Deaf.looks = 0
            flight._next_look.clear()
            admitted = flight.admits(Deaf(), 2)
            assert Deaf.looks <= 64
            asked += 1
            assert asked <= len(receivers) // 64 + 1
