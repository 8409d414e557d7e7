"""What is counted of descriptors on their way."""

from __future__ import annotations

import pytest

from gdrpy.broker.server.connection import Flight, User


class Deaf:
    """A connection that reads nothing; counts how often it was looked at."""

    looks = 0

    def __init__(self, user: User) -> None:
        self.in_flight, self.user = 0, user

    def unread(self) -> int:
        Deaf.looks += 1
        return 1


class TestUserOfManyConnectionsThatReadNothing:
    def test_does_not_have_all_looked_at_for_each(self) -> None:
        flight, user = Flight(), User(7)
        receivers: list[Deaf] = []
        while flight.take(receiver := Deaf(user), 250):
            receivers.append(receiver)
        Deaf.looks = 0
        for receiver in receivers:
            assert not flight.admits(receiver, 250)
        assert Deaf.looks <= 3 * len(receivers) + 100

    def test_has_some_looked_at_a_time_in_turn(self) -> None:
        flight, user = Flight(), User(7)
        receivers: list[Deaf] = []
        while flight.take(receiver := Deaf(user), 2):
            receivers.append(receiver)
        receivers[-1].unread = lambda: 0  # type: ignore[method-assign]
        asked, admitted = 0, False
        while not admitted:
            Deaf.looks = 0
            user.next_look = 0.0
            admitted = flight.admits(Deaf(user), 2)
            assert Deaf.looks <= 64
            asked += 1
            assert asked <= len(receivers) // 64 + 1


class TestUsersOfManyConnectionsThatReadNothing:
    @pytest.fixture
    def flight(self, monkeypatch: pytest.MonkeyPatch) -> Flight:
        monkeypatch.setattr("resource.getrlimit", lambda _: (4096, 4096))
        return Flight()

    def fill(self, flight: Flight, user: User, count: int) -> int:
        """How many descriptors a user's connections get, so many at a time."""
        packets = 0
        while flight.take(Deaf(user), count):  # type: ignore[arg-type]
            packets += 1
        return packets * count

    def test_leave_the_first_ones_for_each_user_and_some_for_the_keeper(
        self, flight: Flight
    ) -> None:
        users = [User(uid) for uid in range(67)]
        assert [self.fill(flight, user, 64) for user in users[:3]] == [2048, 1024, 0]
        assert [self.fill(flight, user, 1) for user in users[2:]] == [8] * 64 + [0]

    def test_do_not_count_what_was_read(self, flight: Flight) -> None:
        ann, bob, eve = (User(uid) for uid in range(3))
        readers = [Deaf(ann) for _ in range(16)]
        for reader in readers:
            assert flight.take(reader, 64)  # type: ignore[arg-type]
        assert [self.fill(flight, user, 64) for user in (bob, eve)] == [2048, 0]
        for reader in readers:
            reader.unread = lambda: 0  # type: ignore[method-assign]
        for _ in range(3072 // 64):
            flight._all.next_look = 0.0
            flight.admits(Deaf(eve), 64)  # type: ignore[arg-type]
        assert self.fill(flight, eve, 64) == 1024

    def test_do_not_count_what_could_not_be_sent(self, flight: Flight) -> None:
        receiver = Deaf(User(1))
        for _ in range(100):
            assert flight.take(receiver, 64)  # type: ignore[arg-type]
            flight.give_back(receiver, 64)  # type: ignore[arg-type]
        assert self.fill(flight, User(2), 64) == 2048
