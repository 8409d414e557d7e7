"""NCCL's runs, as far as they go without two GPUs."""

from __future__ import annotations

import json
import re
import signal
import sys
from dataclasses import asdict
from functools import partial

import pytest

import nccl
import nccl_pair
import nccl_trial
from gpumemory import Use
from harness import Check
from nccl_log import Log
from nccl_pair import Pair, RankFailed
from results import file_stem
from tables import tables

ENABLED = "host:1:2 [0] NCCL INFO GDRCOPY enabled library 2.6 driver 2.6\n"
CHANNEL = "host:1:3 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0\n"
BY_P2P = "host:1:3 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
NOT_FOUND = "host:1:2 [0] misc/gdrwrap.cc:60 NCCL WARN Failed to open libgdrapi.so\n"
FAILED = "host:1:2 [0] include/gdrwrap.h:208 NCCL WARN GDRCOPY failure 22\n"
OTHER = "host:1:2 [0] misc/socket.cc:1 NCCL WARN the network is slow\n"

#: Answers everything with what it was asked, but for some that end it.
RANK = """
import json, signal, sys
rank = int(sys.argv[1])
print(json.dumps({"nccl": "2.0"}), flush=True)
for line in sys.stdin:
    action, *arguments = json.loads(line)
    if action == "fail" and rank == 1:
        sys.exit("out of memory")
    print(json.dumps([rank, action, *arguments]), flush=True)
    if action == "wait":
        signal.pause()
    if action == "leave" and rank == 0:
        sys.exit(7)
"""


class TestLog:
    def test_with_versions_and_socket_channels_shows_that_gdrcopy_is_in_use(self):
        log = Log.read(ENABLED + CHANNEL * 2 + OTHER)
        assert asdict(log) == {
            "gdrcopy": ("2.6", "2.6"),
            "socket_channels": 2,
            "other_ways": [],
            "trouble": [],
        }
        assert log.why_not_in_use() is None

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (CHANNEL, "no line «GDRCOPY enabled»"),
            (
                NOT_FOUND + CHANNEL,
                "no line «GDRCOPY enabled»; Failed to open libgdrapi.so",
            ),
            (ENABLED + CHANNEL + FAILED, "GDRCOPY failure 22"),
            (ENABLED, "no channel goes through NET/Socket"),
            (ENABLED + CHANNEL + BY_P2P, "channels go via P2P/CUMEM"),
        ],
    )
    def test_that_lacks_something_says_what(self, text, reason):
        assert Log.read(text).why_not_in_use() == reason


@pytest.fixture
def pair(tmp_path):
    with Pair({}, tmp_path, (sys.executable, "-c", RANK)) as pair:
        yield pair


class TestPair:
    def test_has_both_do_what_is_asked(self, pair):
        assert pair.versions == {"nccl": "2.0"}
        assert pair.ask("check", 4, "int32") == [[0, "check", 4, "int32"], [1, "check", 4, "int32"]]

    def test_whose_rank_fails_says_what_that_one_said(self, pair):
        with pytest.raises(RankFailed, match="rank 1 ended, with exit status 1:\nout of memory"):
            pair.ask("fail")

    def test_ends_a_rank_that_waits_for_a_killed_one(self, pair, monkeypatch):
        monkeypatch.setattr(nccl_pair, "_GRIEF", 0.1)
        pair.ask("wait")
        assert pair.kill_one() == "was ended after 0.1 s"

    def test_sees_a_rank_end_by_itself_when_the_other_is_killed(self, pair):
        pair.ask("leave")
        assert pair.kill_one() == "ended by itself, with exit status 7"

    def test_that_does_not_meet_is_given_up(self, tmp_path, monkeypatch):
        monkeypatch.setattr(nccl_pair, "_PATIENCE", 0.1)
        with pytest.raises(RankFailed, match="rank 0 ended, by SIGKILL:\n"):
            Pair({}, tmp_path, (sys.executable, "-c", "import signal; signal.pause()"))


@pytest.fixture
def library(tmp_path):
    (tmp_path / "libgdrapi.so").touch()
    return str(tmp_path)


class TestOptions:
    def test_without_a_library_are_refused(self, tmp_path, capsys):
        with pytest.raises(SystemExit) as exit_:
            nccl.parse(["--library", str(tmp_path)])
        assert exit_.value.code == 2
        assert "no libgdrapi.so there, which NCCL loads" in capsys.readouterr().err

    @pytest.mark.parametrize("seconds", ["0", "21", "nan"])
    def test_of_no_time_or_too_much_are_refused(self, seconds, library, capsys):
        with pytest.raises(SystemExit):
            nccl.parse(["--library", library, "--seconds", seconds])
        assert "--seconds must be more than 0 and at most 20" in capsys.readouterr().err

    def test_are_recorded_without_the_place_of_the_library(self, library, tmp_path):
        options = nccl.parse(["--library", library, "--seconds", "1"])
        assert nccl.measuring_arguments(options) == [
            "--library",
            tmp_path.name,
            "--seconds",
            "1",
        ]


class TestMachine:
    def test_without_two_gpus_is_told_so(self, library, capsys):
        assert nccl.main(["--library", library]) == 2
        assert capsys.readouterr().err == (
            "benchmarks/nccl.py: needs two GPUs, and this machine has none\n"
        )

    def test_without_torch_is_told_so(self, monkeypatch):
        monkeypatch.setattr(nccl.cuda, "simulated", lambda: False)
        monkeypatch.setattr(nccl.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(nccl.importlib.util, "find_spec", lambda name: None)
        assert nccl.why_not() == "needs torch, which brings NCCL, and it is not installed"


#: A rank that never computes: what a real one says, and its log.
DONE_RANK = """
import json, os, signal, sys
log = open(os.environ["NCCL_DEBUG_FILE"].replace("%p", sys.argv[1]), "w")
gdrcopy = os.environ["NCCL_GDRCOPY_ENABLE"] == "1"
print((ENABLED if gdrcopy else "") + CHANNEL, file=log, flush=True)
assert os.environ["LD_LIBRARY_PATH"].split(":")[0] == LIBRARY
answers = {
    "check": lambda nbytes, name: WRONG != [nbytes, name],
    "check_group": lambda count: True,
    "timed": lambda nbytes, calls: 1000 * nbytes * calls * (1 if gdrcopy else 2),
    "iterate": lambda count: count,
    "mappings": lambda: {"libraries": ["libgdrapi.so"] * gdrcopy, "mappings": 3 + 4 * gdrcopy},
    "forever": lambda: "going",
}
print(json.dumps({"nccl": "2.0"}), flush=True)
for line in sys.stdin:
    action, *arguments = json.loads(line)
    if action == "check_group":
        print(LATE, file=log, flush=True)
    print(json.dumps(answers[action](*arguments)), flush=True)
    if action == "forever" and sys.argv[1] == "0":
        os.kill(os.getpid(), END)
    if action == "forever":
        signal.pause()
"""


@pytest.fixture
def trial(library, tmp_path, monkeypatch):
    """Runs nccl.py where the ranks compute nothing; the result, and its exit status."""

    def run(wrong, states, *, late="", end=signal.SIGABRT):
        names = {"ENABLED": ENABLED, "CHANNEL": CHANNEL, "LIBRARY": library, "WRONG": wrong}
        names |= {"LATE": late, "END": int(end)}
        script = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + DONE_RANK
        pair = partial(Pair, command=(sys.executable, "-c", script))
        monkeypatch.setattr(nccl_trial, "Pair", pair)
        monkeypatch.setattr(nccl_trial, "_state", partial(next, iter(states)))
        monkeypatch.setattr(nccl_trial, "_SETTLED", 0)
        monkeypatch.setattr(nccl, "why_not", lambda: None)
        output = tmp_path / "results"
        status = nccl.main(["--library", library, "--seconds", "0.01", "--output", str(output)])
        (path,) = output.iterdir()
        return status, json.loads(path.read_text())

    return run


EMPTY = nccl_trial.State((Use(0, 0), Use(0, 0)), frozenset())
LEFT = nccl_trial.State((Use(0, 0), Use(0, 65536)), frozenset({1}))


class TestTrial:
    def test_in_which_all_is_right_passes_and_keeps_times_and_logs(self, trial, capsys):
        status, result = trial(None, [EMPTY, EMPTY])
        assert (status, [one for one in result["checks"] if not one["passed"]]) == (0, [])
        (sweep,) = result["sweeps"]
        assert set(sweep["ratios"][nccl_trial.GAIN]) == {2}
        assert (sweep["wrong"], sweep["unverified"]) == ([], [])
        log = {"gdrcopy": ["2.6", "2.6"], "socket_channels": 1, "other_ways": [], "trouble": []}
        assert result["logs"]["GDRCopy"] == [log] * 2
        assert result["header"]["nccl"] == "2.0"
        said = capsys.readouterr().out
        iterations = r"1000 iterations, GDRCopy +│ +1000 of them right in every element +│ +passed"
        killed = r"rank 1 killed by SIGKILL while it iterates +│ +rank 0 ended by itself"
        assert re.search(iterations, said)
        assert re.search(killed, said)

    def test_with_a_wrong_sum_fails_and_says_which(self, trial):
        status, result = trial([65536, "int32"], [EMPTY, EMPTY])
        failed = {one["what"]: one["found"] for one in result["checks"] if not one["passed"]}
        wrong = "64 sizes and types, 4 B to 256 MiB; WRONG: 65536 B of int32"
        assert (status, failed) == (
            1,
            {f"sums, {way}": wrong for way in ("GDRCopy", "GDRCopy on cudaMalloc", "without")},
        )

    def test_with_a_channel_that_goes_another_way_later_on_fails(self, trial):
        status, result = trial(None, [EMPTY, EMPTY], late=BY_P2P)
        failed = {one["what"]: one["found"] for one in result["checks"] if not one["passed"]}
        other_ways = "channels go via P2P/CUMEM; channels go via P2P/CUMEM"
        assert (status, failed) == (
            1,
            {
                "log with GDRCopy": other_ways,
                "log with GDRCopy on cudaMalloc": other_ways,
                "log without GDRCopy": "not as asked for",
            },
        )

    def test_in_which_a_rank_crashes_when_it_loses_the_other_fails(self, trial):
        status, result = trial(None, [EMPTY, EMPTY], end=signal.SIGSEGV)
        failed = {one["what"]: one["found"] for one in result["checks"] if not one["passed"]}
        assert (status, failed) == (
            1,
            {
                "rank 1 killed by SIGKILL while it iterates": (
                    "rank 0 ended by itself, by SIGSEGV"
                ),
            },
        )

    def test_that_leaves_something_behind_fails_and_says_what(self, trial):
        status, result = trial(None, [EMPTY, LEFT])
        failed = {one["what"]: one["found"] for one in result["checks"] if not one["passed"]}
        assert (status, failed) == (
            1,
            {
                "GPU 1 after all ranks: memory and BAR1 in use as before": (
                    "memory +0 B, BAR1 +65536 B"
                ),
                "processes that have a GPU open, more than before": "1",
            },
        )


class TestState:
    def state(self, memory, bar1, *users):
        return nccl_trial.State((Use(memory, bar1), Use(5, 5)), frozenset(users))

    def test_exceeds_one_with_less_in_use_or_fewer_users(self):
        before = self.state(4, 4, 1)
        for after in (self.state(5, 4), self.state(4, 5), self.state(4, 4, 2)):
            assert after.exceeds(before)

    def test_that_is_as_before_or_less_exceeds_nothing(self):
        assert not self.state(3, 4).exceeds(self.state(4, 4, 1))


class TestTable:
    def test_tells_of_each_check_whether_it_passed(self):
        checks = [asdict(Check("sums", passed, "7 sizes")) for passed in (True, False)]
        (table,) = tables({"measurements": [], "goals": [], "modules": [], "checks": checks})
        assert table.rows == [["sums", "7 sizes", "passed"], ["sums", "7 sizes", "FAILED"]]


class TestFile:
    def test_of_two_gpus_says_so(self):
        header = {"gpu": "NVIDIA H200", "date": "2026-11-21T07", "simulated": False, "gpus": 2}
        result = {"header": header, "modules": ["nccl"], "quick": False}
        assert file_stem(result) == "h200-x2-2026-11-21-nccl"
