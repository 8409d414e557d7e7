"""The ends of named rings are killed at random moments, and others take over.

Every record arrives whole, once, and in its producer's order; those whose push had returned all
arrive, but for those that a consumer had taken when it was killed.
"""

from __future__ import annotations

import os
import random
import threading
from contextlib import suppress

import pytest
from ringchildren import NBYTES, SOON, answer_to, kill, read, record, records

import gdrpy
from gdrpy.channel import KernelEnd

CAPACITY = 16
#: On a real GPU each kernel's process makes a CUDA context.
KILLS = 60 if os.environ["GDRPY_SIM"] == "1" else 6


class Arrived:
    """What came from each producer, in order."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, data: bytes) -> int:
        found = records(data)
        for producer, number in found:
            assert number == self.counts.get(producer, 0), (producer, number, self.counts)
            self.counts[producer] = number + 1
        return len(found)


@pytest.fixture
def ring(broker, tmp_path):
    """Arguments of children at the ends of one ring."""
    return {"socket": broker.socket, "name": "ring"}


@pytest.fixture
def choice(request) -> random.Random:
    return random.Random(request.node.originalname)


class TestProducers:
    def test_that_are_killed_leave_neither_parts_nor_holes(
        self, broker, ring, nursery, notes, choice, tmp_path
    ):
        arrived, living, born = Arrived(), {}, 0
        ring["notes"] = str(tmp_path / "notes")
        with (
            gdrpy.Channel(NBYTES, CAPACITY, broker=broker, name="ring") as channel,
            KernelEnd(broker, "ring") as end,
        ):
            reader = end.reader()
            for _ in range(3 * KILLS):
                while len(living) < 3:
                    born += 1
                    many = choice.choice((1, 3))
                    living[born] = nursery.start(
                        "produce", **ring, number=born, capacity=CAPACITY, many=many
                    )
                for _ in range(choice.randrange(1, 60)):
                    arrived.add(reader.pop_many(5, SOON))
                kill(living.pop(choice.choice(list(living))))
            for pid in living.values():
                kill(pid)
            while channel.pushed > channel.popped:
                arrived.add(reader.pop_many(5, SOON))
            channel.push(record(0, 0), SOON)  # the lock is free
            arrived.add(reader.pop(SOON))
            del reader
        assert arrived.counts.pop(0) == 1
        assert all(arrived.counts.get(number, 0) >= notes[number] for number in range(1, born + 1))
        assert sum(arrived.counts.values()) > 3 * KILLS

    def test_that_are_killed_are_followed_for_the_kernel(
        self, broker, ring, nursery, notes, choice, tmp_path
    ):
        arrived, ends = Arrived(), 0
        ring["notes"] = str(tmp_path / "notes")
        for number in range(1, KILLS + 1):
            pid = nursery.start("produce", **ring, number=number, capacity=CAPACITY, many=2)
            if number == 1:
                end = KernelEnd(broker, "ring", wait=SOON)
            assert end.wait(SOON)
            reader = end.reader()
            # The first may be the end of the one before, which this end had not heard of.
            for _ in range(choice.randrange(1, 100)):
                arrived.add(reader.pop_many(5, SOON))
            kill(pid)
            while data := reader.pop_many(None, SOON):
                arrived.add(data)
            ends += 1
            del reader
            assert arrived.counts.get(number, 0) >= notes[number]
        end.close()
        assert ends == KILLS


class TestConsumers:
    def test_that_are_killed_are_followed_where_they_stopped(
        self, broker, ring, nursery, choice, tmp_path
    ):
        out, pushed = tmp_path / "out", 0
        out.touch()
        with gdrpy.Channel(NBYTES, CAPACITY, broker=broker, name="ring") as channel:
            for number in range(KILLS):
                begun, size = channel.popped, out.stat().st_size
                with nursery.running("consume", **ring, out=str(out), number=number):
                    until = pushed + choice.randrange(1, 200)
                    while pushed < until:
                        try:
                            channel.push(record(0, pushed), SOON)
                        except gdrpy.Closed:  # of the consumer before
                            threading.Event().wait(0.001)
                        else:
                            pushed += 1
                taken = records(out.read_bytes()[size:])
                first = range(begun, begun + len(taken))
                assert taken == [(0, number) for number in first]
                # At most the last few were taken, and not written down any more.
                assert begun + len(taken) <= channel.popped <= begun + len(taken) + 5
            with KernelEnd(broker, "ring", wait=SOON) as end:
                reader = end.reader()
                left = channel.pushed - channel.popped
                assert records(reader.pop_many(left + 1, SOON) if left else b"") == [
                    (0, number) for number in range(pushed - left, pushed)
                ]
                del reader


class TestKernelsOfAnInbox:
    def test_that_are_killed_hold_no_record_back(
        self, broker, ring, nursery, notes, choice, tmp_path
    ):
        arrived = Arrived()
        ring["notes"] = str(tmp_path / "notes")
        with gdrpy.Inbox(NBYTES, CAPACITY, broker=broker, name="ring") as inbox:
            for number in range(1, KILLS + 1):
                with nursery.running("write", **ring, number=number):
                    left = choice.randrange(1, 200)
                    while left > 0:
                        try:
                            left -= arrived.add(inbox.pop_many(5, SOON))
                        except gdrpy.Closed:  # of the kernel before
                            threading.Event().wait(0.001)
                with suppress(gdrpy.Closed):
                    while arrived.add(inbox.pop_many(5, SOON)):
                        pass
                assert arrived.counts.get(number, 0) >= notes[number]


class TestReadersOfAnInbox:
    def test_that_are_killed_are_followed_where_they_stopped(
        self, broker, ring, nursery, choice, tmp_path
    ):
        out, pushed = tmp_path / "out", 0
        out.touch()
        for number in range(KILLS):
            pid = nursery.start("take", **ring, out=str(out), capacity=CAPACITY)
            if number == 0:
                end = KernelEnd(broker, "ring", wait=SOON)
            until = pushed + choice.randrange(1, 200)
            while pushed < until:
                assert end.wait(SOON)
                writer = end.writer()
                try:
                    while pushed < until:
                        writer.push(record(0, pushed), SOON)
                        pushed += 1
                except gdrpy.Closed:  # of the reader before
                    pass
                del writer
            kill(pid)
        end.close()
        taken = [number for _, number in records(out.read_bytes())]
        assert taken == sorted(taken), "out of order"
        # Some were taken by a reader that did not write them down, or were taken twice.
        lost = set(range(max(taken) + 1)) - set(taken)
        assert len(lost) <= 5 * KILLS
        assert len(taken) - len(set(taken)) <= 5 * KILLS
        with gdrpy.Inbox(NBYTES, CAPACITY, broker=broker, name="ring", wait=SOON) as inbox:
            left = [read(inbox.pop(SOON))[1] for _ in range(pushed - inbox.popped)]
            assert left == list(range(pushed - len(left), pushed))


class TestServersOfALink:
    def test_that_are_killed_answer_no_request_twice_or_in_part(
        self, broker, ring, nursery, choice
    ):
        answered = done = 0
        with gdrpy.Link(NBYTES, capacity=CAPACITY, broker=broker, name="ring") as link:
            for _ in range(KILLS):
                with nursery.running("answer", **ring):
                    left = choice.randrange(1, 60)
                    while left:
                        try:
                            some = [link.submit(record(1, done + i), SOON) for i in range(3)]
                            for i, one in enumerate(some):
                                assert one.result(SOON) == answer_to(record(1, done + i))
                                answered += 1
                            left -= 1
                        except gdrpy.Closed:  # of the server before
                            threading.Event().wait(0.001)
                        done += 3
        assert answered > 3 * KILLS


class TestCallersOfALink:
    def test_that_are_killed_leave_no_request_in_part(
        self, broker, ring, nursery, notes, choice, tmp_path
    ):
        ring["notes"] = str(tmp_path / "notes")
        served: dict[int, int] = {}
        for number in range(1, KILLS + 1):
            pid = nursery.start("call", **ring, number=number, capacity=CAPACITY)
            if number == 1:
                end = KernelEnd(broker, "ring", wait=SOON)
            count = choice.randrange(1, 100)
            while served.get(number, 0) < count:
                assert end.wait(SOON)
                server = end.server()
                while served.get(number, 0) < count and (request := server.pop(SOON)):
                    server.answer(server.popped - 1, answer_to(request))
                    caller, asked = read(request)
                    assert asked == served.get(caller, 0)
                    served[caller] = asked + 1
                del server
            kill(pid)
            assert notes[number + 512] == 0
            assert served[number] >= notes[number]
        end.close()
