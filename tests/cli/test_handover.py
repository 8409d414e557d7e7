"""The frames that producer and consumer exchange, and the descriptors beside them."""

from __future__ import annotations

import fcntl
import os
import socket
from array import array
from collections.abc import Iterator

import pytest

from gdrpy.cli import handover
from gdrpy.cli.handover import HandoverError, Kind

OFFER_OF_1_MIB = bytes.fromhex("47445248 0100 0100 0000100000000000")
ANSWER_YES = bytes.fromhex("47445248 0100 0200 0100000000000000")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(autouse=True)
def nothing_leaks(no_descriptors_leak):
    """No test here may leave a descriptor open."""


@pytest.fixture
def pair(nothing_leaks) -> Iterator[Pair]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        there.settimeout(5)
        yield here, there


@pytest.fixture
def fd(nothing_leaks) -> Iterator[int]:
    fd = os.memfd_create("something to send")
    yield fd
    os.close(fd)


def send(sock: socket.socket, frame: bytes, *fds: int) -> None:
    sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else [])


class TestFrame:
    def test_bytes_of_an_offer_never_change(self):
        assert handover.encode(Kind.OFFER, 1 << 20) == OFFER_OF_1_MIB

    def test_bytes_of_an_answer_never_change(self):
        assert handover.encode(Kind.ANSWER, 1) == ANSWER_YES

    def test_golden_bytes_decode(self):
        assert handover.decode(OFFER_OF_1_MIB, Kind.OFFER) == 1 << 20
        assert handover.decode(ANSWER_YES, Kind.ANSWER) == 1

    @pytest.mark.parametrize("length", [0, 1, 15, 17])
    def test_of_another_length_is_refused(self, length):
        with pytest.raises(HandoverError, match=f"sent {length} bytes, and a frame has 16"):
            handover.decode((OFFER_OF_1_MIB + b"\0")[:length], Kind.OFFER)

    def test_of_another_protocol_is_refused(self):
        with pytest.raises(HandoverError, match="does not speak this protocol"):
            handover.decode(b"GET / HTTP/1.1\r\n", Kind.OFFER)

    def test_of_another_version_is_refused(self):
        frame = bytearray(OFFER_OF_1_MIB)
        frame[4] = 2
        with pytest.raises(HandoverError, match="speaks version 2, this program 1"):
            handover.decode(bytes(frame), Kind.OFFER)

    def test_of_another_kind_is_refused(self):
        with pytest.raises(HandoverError, match="kind 2, not OFFER"):
            handover.decode(ANSWER_YES, Kind.OFFER)


class TestOffer:
    def test_carries_size_and_descriptor(self, pair, fd):
        handover.send_offer(pair[0], 1 << 20, fd)
        nbytes, received = handover.receive_offer(pair[1])
        try:
            assert nbytes == 1 << 20
            assert os.path.sameopenfile(received, fd)
        finally:
            os.close(received)

    def test_descriptor_is_not_inherited_over_exec(self, pair, fd):
        handover.send_offer(pair[0], 1, fd)
        _, received = handover.receive_offer(pair[1])
        try:
            assert fcntl.fcntl(received, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
        finally:
            os.close(received)

    def test_without_descriptor_is_refused(self, pair):
        send(pair[0], OFFER_OF_1_MIB)
        with pytest.raises(HandoverError, match="0 descriptors with OFFER, not 1"):
            handover.receive_offer(pair[1])

    @pytest.mark.parametrize("count", [2, 16])
    def test_with_several_descriptors_is_refused_and_closes_them(self, pair, fd, count):
        send(pair[0], OFFER_OF_1_MIB, *[fd] * count)
        with pytest.raises(HandoverError, match=f"{count} descriptors with OFFER, not 1"):
            handover.receive_offer(pair[1])

    def test_with_more_descriptors_than_there_is_room_for_closes_those_that_came(self, pair, fd):
        send(pair[0], OFFER_OF_1_MIB, *[fd] * 200)
        with pytest.raises(HandoverError, match="did not all arrive"):
            handover.receive_offer(pair[1])

    def test_garbage_with_a_descriptor_is_refused_and_closes_it(self, pair, fd):
        send(pair[0], b"garbage", fd)
        with pytest.raises(HandoverError, match="sent 7 bytes"):
            handover.receive_offer(pair[1])

    def test_longer_than_a_frame_is_refused_and_closes_it(self, pair, fd):
        send(pair[0], OFFER_OF_1_MIB * 100, fd)
        with pytest.raises(HandoverError, match="more than 16 bytes"):
            handover.receive_offer(pair[1])

    @pytest.mark.parametrize("nbytes", [0, 1 << 62, (1 << 64) - 1])
    def test_of_an_impossible_size_is_refused_and_closes_it(self, pair, fd, nbytes):
        send(pair[0], handover.encode(Kind.OFFER, nbytes), fd)
        with pytest.raises(HandoverError, match=f"a region of {nbytes} bytes"):
            handover.receive_offer(pair[1])

    def test_from_a_dead_peer_never_comes(self, pair):
        pair[0].close()
        with pytest.raises(HandoverError, match="closed the connection instead of sending OFFER"):
            handover.receive_offer(pair[1])

    def test_from_a_silent_peer_times_out(self, pair):
        pair[1].settimeout(0.01)
        with pytest.raises(HandoverError, match="said nothing within the timeout"):
            handover.receive_offer(pair[1])

    def test_to_a_dead_peer_says_so(self, pair, fd):
        pair[1].close()
        with pytest.raises(HandoverError, match="the peer is gone"):
            handover.send_offer(pair[0], 1, fd)


class TestAnswer:
    @pytest.mark.parametrize("good", [True, False])
    def test_says_whether_the_data_was_right(self, pair, good):
        handover.send_answer(pair[0], good)
        assert handover.receive_answer(pair[1]) is good

    def test_with_a_descriptor_is_refused_and_closes_it(self, pair, fd):
        send(pair[0], ANSWER_YES, fd)
        with pytest.raises(HandoverError, match="1 descriptors with ANSWER, not 0"):
            handover.receive_answer(pair[1])

    def test_of_another_value_is_refused(self, pair):
        send(pair[0], handover.encode(Kind.ANSWER, 2))
        with pytest.raises(HandoverError, match="answered 2, which is neither 0 nor 1"):
            handover.receive_answer(pair[1])
