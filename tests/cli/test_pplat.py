"""``gdrpy pplat``: its figures and its checks, and the kernels of records."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
from contextlib import contextmanager

import pytest

import gdrpy
from gdrpy import cuda
from gdrpy.channel import ChannelReader, InboxWriter, LinkServer
from gdrpy.cli import main
from gdrpy.cli.measure import pingpong, pplat, records
from gdrpy.cli.measure.pingpong import OUT_OF_TIME, Ending

QUICK = ["--count", "20"]
FLAGS = ["--what", "flag", *QUICK]
BY_THREAD = "a Python thread, since the simulated GPU has no kernels"
ROWS = {"push": "Channel.push", "pop": "Inbox.pop", "call": "Link.call"}


class TestPplat:
    def test_prints_a_table_with_a_row_for_each_way_and_who_answered(self, gdrpy_command):
        done = gdrpy_command("pplat", *QUICK)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"\nanswered by {BY_THREAD}; reading the clock costs " in done.stdout
        assert "us a round, 20 rounds" in done.stdout
        rows = [line for line in done.stdout.splitlines() if line.startswith("│")]
        assert [row.split("│")[1].strip() for row in rows] == [
            "flag GPU -> pinned",
            "flag pinned -> pinned",
            "flag GPU -> GPU",
            "flag pinned -> GPU",
            *ROWS.values(),
        ]

    @pytest.mark.parametrize(("needed", "shown"), [(21, "max"), (20, "p99.99")])
    def test_shows_a_percentile_that_the_rounds_can_tell(self, capsys, monkeypatch, needed, shown):
        monkeypatch.setattr(pplat, "_TAIL_ROUNDS", needed)
        assert main(["pplat", *QUICK, "--what", "pop"]) == 0
        (head,) = [line for line in capsys.readouterr().out.splitlines() if " median " in line]
        columns = [word for word in head.split() if word in ("max", "p99.99")]
        assert columns == [shown]

    def test_says_from_where_to_where_the_rounds_go_that_it_measured(self, capsys):
        assert main(["pplat", *QUICK, "--what", "pop,call"]) == 0
        assert " from Python: Flag.set to Inbox.pop, Link.call; " in capsys.readouterr().out

    def test_json_holds_the_distribution_of_each_way_and_who_answered(self, json_of):
        status, result = json_of("pplat", "--count", "30")
        assert status == 0
        assert result["answered_by"] == BY_THREAD
        assert result["clock_nanoseconds"] > 0
        flags, rings = result["results"][:4], result["results"][4:]
        assert {one["what"] for one in flags} == {"flag"}
        assert [(one["flag"], one["reply"]) for one in flags] == [*pplat.WAYS]
        assert [(one["what"], one["record_nbytes"]) for one in rings] == [
            (what, 64) for what in ROWS
        ]
        for one in result["results"]:
            assert one["verified"] is True
            assert one["nanoseconds"]["count"] == sum(one["histogram"]["counts"]) == 30

    def test_measures_what_is_named_in_the_order_of_the_table(self, json_of):
        status, result = json_of("pplat", *QUICK, "--what", "call,push")
        assert (status, [one["what"] for one in result["results"]]) == (0, ["push", "call"])

    @pytest.mark.parametrize("words", ["", "push,", "Push", "flags"])
    def test_refuses_to_measure_what_it_does_not_know(self, capsys, words):
        with pytest.raises(SystemExit) as ended:
            main(["pplat", "--what", words])
        assert ended.value.code == 2
        unknown = words.split(",")[-1]
        said = f"argument --what: {unknown!r} is none of flag, push, pop, call\n"
        assert capsys.readouterr().err.endswith(said)

    def test_plays_on_the_cpu_that_is_named_and_leaves_it_afterwards(self, json_of, monkeypatch):
        before = os.sched_getaffinity(0)
        seen = []

        def playing(*args):
            seen.append(os.sched_getaffinity(0))
            return pingpong.play(*args)

        def pushing(*args):
            seen.append(os.sched_getaffinity(0))
            return push(*args)

        push = records.Push.play
        monkeypatch.setattr(pplat, "play", playing)
        monkeypatch.setattr(records.Push, "play", pushing)
        status, result = json_of("pplat", *QUICK, "--cpu", str(max(before)))
        assert (status, result["cpu"], os.sched_getaffinity(0)) == (0, max(before), before)
        assert seen == [{max(before)}] * (len(pplat.WAYS) + 1)

    def test_plays_many_rounds_in_several_runs(self, json_of, monkeypatch):
        monkeypatch.setattr(pplat, "_ROUNDS_A_RUN", 8)
        monkeypatch.setattr(pplat, "_RECORDS_A_RUN", 9)
        status, result = json_of("pplat", *QUICK)
        assert status == 0
        assert {one["nanoseconds"]["count"] for one in result["results"]} == {20}

    def test_fails_when_an_answer_is_wrong(self, capsys, monkeypatch):
        def answer_wrongly(self):
            ping, reply = self._flags
            ping.wait(1)
            reply.set(2)
            self.ending = Ending(OUT_OF_TIME, 0)

        monkeypatch.setattr(pingpong._Thread, "_answer", answer_wrongly)
        assert main(["pplat", *FLAGS]) == 1
        assert capsys.readouterr().err == "error: round 1 was answered by 2\n"

    def test_fails_when_no_answer_comes(self, json_of, monkeypatch):
        def give_up(self):
            self.ending = Ending(OUT_OF_TIME, 0)

        monkeypatch.setattr(pingpong._Thread, "_answer", give_up)
        monkeypatch.setattr(pplat, "play", functools.partial(pingpong.play, timeout=0.01))
        status, result = json_of("pplat", *FLAGS)
        assert status == 1
        assert result["error"]["message"] == (
            f"{BY_THREAD}: out of time after 0 of 120 rounds: "
            f"Flag.wait: the word at offset 128 is 0, and not >= 1 in time"
        )

    @pytest.mark.parametrize(
        ("what", "end", "call", "said"),
        [
            ("push", ChannelReader, "pop", f"120 of 120 records reached {BY_THREAD} wrong"),
            ("pop", InboxWriter, "push", "the record of round 1 is wrong"),
            ("call", LinkServer, "answer", "the answer of round 1 is wrong"),
        ],
    )
    def test_fails_when_a_record_is_wrong(self, capsys, monkeypatch, what, end, call, said):
        def wrongly(self, *args):
            if call == "pop":
                return torn(really(self, *args))
            return really(self, *args[:-1], torn(args[-1]))

        def torn(one: bytes) -> bytes:
            return one[:-1] + bytes([one[-1] ^ 1])

        threads, really = threading.active_count(), getattr(end, call)
        monkeypatch.setattr(end, call, wrongly)
        assert main(["pplat", *QUICK, "--what", what]) == 1
        assert capsys.readouterr().err == f"error: {ROWS[what]}: {said}\n"
        assert threading.active_count() == threads

    @pytest.mark.parametrize(
        ("what", "said"),
        [
            ("push", "Channel.drain: of 1 records, 0 were taken in time"),
            ("pop", "Inbox.pop: no record arrived in time"),
            ("call", "Link.call: request 0 was not answered in time"),
        ],
    )
    def test_fails_when_the_other_end_does_nothing(self, capsys, monkeypatch, what, said):
        monkeypatch.setattr(records, "_TIMEOUT", 0.01)
        monkeypatch.setattr(records.WAYS[what], "stand_in", lambda self, numbers: 0)
        assert main(["pplat", *QUICK, "--what", what]) == 1
        assert capsys.readouterr().err == f"error: {said}\n"

    @pytest.mark.parametrize("what", ROWS)
    def test_takes_the_backend_of_rings_from_the_command_line(self, capsys, monkeypatch, what):
        monkeypatch.setenv("GDRPY_BACKEND", "sim")
        assert main(["pplat", *QUICK, "--what", what, "--backend", "nvrm"]) == 2
        assert "nvrm" in capsys.readouterr().err
        assert os.environ["GDRPY_BACKEND"] == "sim"


class TestKernelOfRecords:
    @pytest.fixture
    def flags(self):
        with gdrpy.alloc(4096) as region, gdrpy.page_locked(4096) as host:
            yield region.flag(0), host.flag(0)

    @pytest.mark.parametrize(
        ("what", "name"), [("push", "take"), ("pop", "report"), ("call", "answer")]
    )
    def test_is_launched_with_the_ring_the_flags_and_the_rounds(self, flags, what, name):
        with cuda.context(0), records.opened(what, *flags, 0, None) as way:
            launched = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(records, "Resident", lambda *args: launched.append(args))
                way.launch(range(3, 10))
            ptx, kernel, device, arguments, kinds = launched[0]
            addresses = way._ring.ptr, *(flag.ptr for flag in flags)
            assert (kernel, device, arguments) == (name, 0, (*addresses, 3, 7))
            assert [ctypes.sizeof(kind) for kind in kinds] == [8, 8, 8, 4, 4]
            declared = re.search(rf"\.entry {name}\((.*?)\)", ptx.read_text(), re.DOTALL)
            assert declared
            assert re.findall(r"\.param \.(\w+)", declared[1]) == ["u64"] * 3 + ["u32"] * 2

    @pytest.mark.parametrize("what", records.WAYS)
    def test_is_waited_for_after_its_rounds(self, monkeypatch, flags, what):
        class Launched:
            def __init__(self, ptx, name, device, arguments, kinds):
                first, rounds = arguments[3:]
                told.append("launched")
                numbers = range(first, first + rounds)
                self._thread = threading.Thread(target=way.stand_in, args=(numbers,))
                self._thread.start()

            @contextmanager
            def ended(self):
                self._thread.join()
                told.append("ended")
                yield None

        told: list[str] = []
        with records.opened(what, *flags, 0, None) as way:
            monkeypatch.setattr(records, "Resident", Launched)
            monkeypatch.setattr(cuda, "simulated", lambda: False)
            for _ in range(2):
                with way.other_end(3) as numbers:
                    assert len(way.play(numbers)) == 3
        assert told == ["launched", "ended"] * 2

    def test_ends_by_a_closed_ring_when_the_block_raises(self, flags):
        before = threading.active_count()
        for what in records.WAYS:
            with records.opened(what, *flags, 0, None) as way:
                with pytest.raises(ZeroDivisionError), way.other_end(1000) as numbers:
                    divmod(len(way.play(numbers[:3])), 0)
                assert threading.active_count() == before
