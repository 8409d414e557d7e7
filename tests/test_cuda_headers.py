"""The headers for kernels, compiled by NVRTC, which needs no GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain, groupby
from pathlib import Path

import pytest

import gdrpy

TOP = Path(__file__).parent.parent
INCLUDES = "#include <gdrpy/channel.cuh>"
#: What surrounds a program in a page, and in an example.
PROGRAM = {".md": r"```cuda\n(.*?)```", ".py": r'SOURCE = """\n(.*?)"""'}


def programs() -> Iterator[tuple[str, str]]:
    """The programs of pages, examples, benchmarks and tests that include the header, with names."""
    kernels = (TOP.glob(f"{folder}/*.cu") for folder in ("benchmarks", "tests/hardware"))
    for path in (TOP / "docs/channel.md", *TOP.glob("examples/*.py"), *chain(*kernels)):
        text = path.read_text()
        found = (
            re.findall(PROGRAM[path.suffix], text, re.DOTALL) if path.suffix in PROGRAM else [text]
        )
        yield from (
            (f"{path.name}:{number}", one) for number, one in enumerate(found) if INCLUDES in one
        )


KERNELS = dict(sorted(programs()))
#: The oldest architecture that this NVRTC compiles for, Hopper and Blackwell.
ARCHITECTURES = ("compute_75", "compute_90", "compute_100")


#: Prints the PTX of a program, a file, or its errors and warnings. In a process to itself: NVRTC
#: looks for a driver, and does not survive the simulated one.
COMPILER = """
import sys
from cuda.bindings import nvrtc

source, *options = sys.argv[1:]
text = open(source, "rb").read()
_, program = nvrtc.nvrtcCreateProgram(text, b"kernel.cu", 0, [], [])
(done,) = nvrtc.nvrtcCompileProgram(program, len(options), [one.encode() for one in options])
log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
nvrtc.nvrtcGetProgramLog(program, log)
log = log.decode().strip(" \\0")
if log or done != nvrtc.nvrtcResult.NVRTC_SUCCESS:
    sys.exit(f"{done}: {log}")
ptx = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
nvrtc.nvrtcGetPTX(program, ptx)
print(ptx.decode())
"""


def ptx_of(source: str, folder: Path, architecture: str = "compute_90", *options: str) -> str:
    """The PTX of a program without a warning."""
    path = folder / "kernel.cu"
    path.write_text(source)
    include = f"-I{gdrpy.channel.include_dir()}"
    command = [sys.executable, "-c", COMPILER, path, f"-arch={architecture}", include, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def accesses(ptx: str) -> list[str]:
    """The fences, barriers, votes, atomics, ordered loads and global stores, in their order."""
    found = re.findall(
        r"\b(fence\S+|atom\S+|ld\.(?:acquire|relaxed|volatile)\S+|bar\.warp\S+|vote\S+|"
        r"st\.(?!shared)\S+)",
        ptx,
    )
    return [re.sub(r"[;,]|\.L2.*", "", one) for one in found]


class TestHeader:
    @pytest.mark.parametrize("architecture", ARCHITECTURES)
    @pytest.mark.parametrize("kernel", KERNELS)
    def test_compiles_without_a_warning(self, kernel, architecture, tmp_path):
        assert ".entry" in ptx_of(KERNELS[kernel], tmp_path, architecture)

    def test_compiles_as_the_dialect_that_nvrtc_of_cuda_11_begins_with(self, tmp_path):
        assert ptx_of(ECHO, tmp_path, "compute_90", "--std=c++03") == ptx_of(ECHO, tmp_path)


#: Pushes or answers 16 bytes.
ONE = """
#include <gdrpy/channel.cuh>

extern "C" __global__ void one(const TYPE *at, uint4 value)
{
	END end(at);

	end.CALL;
}
"""
#: Answers requests of 64 bytes by themselves.
ECHO = """
#include <gdrpy/channel.cuh>

struct Request { unsigned long long word[8]; };

extern "C" __global__ void echo(const gdr_link *link)
{
	gdrpy::LinkServer server(link);
	Request request;

	while (server.next(request)) {
		server.answer(0, request);
		server.release(1);
	}
}
"""
#: The same by a warp.
ECHO_BY_WARP = """
#include <gdrpy/channel.cuh>

extern "C" __global__ void echo(const gdr_link *link)
{
	gdrpy::LinkServer server(link);
	uint2 part;

	while (server.next_warp(part)) {
		if (gdrpy::lane() < 8)
			server.answer8(0, gdrpy::lane(), part);
		server.release_warp(1);
	}
}
"""
WORDS = ["st.relaxed.sys.global.v2.u64"] * 2
#: What threads of a warp wait for together: each must have stored what it can.
TOGETHER = "vote.sync.any.pred"
#: A server times loads of both copies of the requests, after some that are not timed.
NEARER = ["ld.volatile.u64"] * 3
RESERVE, ROOM = "atom.relaxed.gpu.global.add.u64", "ld.acquire.sys.global.u64"


@pytest.fixture
def accesses_of(tmp_path) -> Callable[[str, str, str], list[str]]:
    """What a call makes of memory, for records of 16 bytes: the loop for longer ones comes last."""

    def made(kind: str, end: str, call: str) -> list[str]:
        source = ONE.replace("TYPE", kind).replace("END", f"gdrpy::{end}").replace("CALL", call)
        found = accesses(ptx_of(source, tmp_path))
        if end != "LinkServer":
            return found
        assert found[:3] == NEARER
        return found[3:]

    return made


#: A warp waits until all its threads have room, and none found the inbox closed. Then fewer threads
#: than a warp: each waits by itself.
STORED = [ROOM, TOGETHER, TOGETHER, "bar.warp.sync", *WORDS, ROOM, *WORDS]


class TestMemoryOrder:
    def test_of_a_push_is_a_number_a_fence_for_all_room_and_words(self, accesses_of):
        found = accesses_of("gdr_inbox", "InboxWriter", "push(value)")
        assert found[: 3 + 9] == [RESERVE, "bar.warp.sync", "fence.acq_rel.sys", *STORED]
        assert set(found[12:-1]) <= set(WORDS)
        assert found[-1] == TOGETHER

    def test_of_a_push_has_a_warp_wait_together_only_in_a_ring_for_two(self, tmp_path):
        source = ONE.replace("TYPE", "gdr_inbox").replace("END", "gdrpy::InboxWriter")
        ptx = ptx_of(source.replace("CALL", "push(value)"), tmp_path)
        assert re.findall(r"setp\.gt\.u64\s+%p\d+, %rd\d+, (\d+);", ptx) == ["63"]

    def test_of_a_relaxed_push_is_the_same_without_the_fence(self, accesses_of):
        found = accesses_of("gdr_inbox", "InboxWriter", "push_relaxed(value)")
        assert found[: 1 + 9] == [RESERVE, *STORED]
        assert set(found[10:-1]) <= set(WORDS)
        assert found[-1] == TOGETHER

    def test_of_a_push_of_a_record_that_no_warp_shares_is_by_each_thread(self, tmp_path):
        source = ONE.replace("uint4 value", "Record value").replace("TYPE", "gdr_inbox")
        source = source.replace("END", "gdrpy::InboxWriter").replace("CALL", "push_relaxed(value)")
        record = "struct Record { unsigned long long word[6]; };"
        found = accesses(ptx_of(source.replace("extern", f"{record}\nextern"), tmp_path))
        assert found[:2] == [RESERVE, ROOM]
        assert "bar.warp.sync" not in found

    def test_of_a_push_without_waiting_has_a_barrier_between_room_and_the_others_words(
        self, accesses_of
    ):
        found = accesses_of("gdr_inbox", "InboxWriter", "try_push(value)")
        assert found[: 2 + 2] == ["bar.warp.sync", "fence.acq_rel.sys", *WORDS]
        leader = [one for one in found[4:] if one not in WORDS]  # NVRTC puts its branch last
        assert leader == ["ld.acquire.sys.global.u64"] * 3 + ["atom.relaxed.gpu.global.cas.b64"]

    def test_of_an_answer_is_a_fence_and_words(self, accesses_of):
        found = accesses_of("gdr_link", "LinkServer", "answer(0, value)")
        assert found[: 2 + 2] == ["ld.acquire.sys.global.u64", "fence.acq_rel.sys", *WORDS]
        assert set(found[4:]) <= set(WORDS)

    def test_of_the_next_request_is_one_round_of_loads_with_an_ordered_one_last(self, accesses_of):
        found = accesses_of("gdr_link", "LinkServer", "next(value)")
        begin, *words, end = found
        assert (begin, end) == ("ld.acquire.sys.global.u64", "ld.relaxed.sys.global.u64")
        assert words == ["ld.relaxed.sys.global.v2.u64", "ld.acquire.sys.global.v2.u64"]

    def test_of_the_next_relaxed_request_is_the_same_without_an_ordered_load(self, accesses_of):
        begin, *words, end = accesses_of("gdr_link", "LinkServer", "next_relaxed(value)")
        assert (begin, end) == ("ld.acquire.sys.global.u64", "ld.relaxed.sys.global.u64")
        assert words == ["ld.relaxed.sys.global.v2.u64"] * 2

    @pytest.mark.parametrize(
        ("call", "order"), [("next_warp", "acquire"), ("next_warp_relaxed", "relaxed")]
    )
    def test_of_the_next_request_of_a_warp_is_one_load_between_votes(self, call, order, tmp_path):
        found = accesses(ptx_of(ECHO_BY_WARP.replace("next_warp", call), tmp_path))
        assert found[:3] == NEARER
        begin, taken, *rest = found[3:]  # NVRTC puts the loop's end first
        assert (begin, taken) == ("ld.acquire.sys.global.u64", "st.relaxed.sys.global.u64")
        word, vote, end, *rest = rest
        assert (word, vote) == (f"ld.{order}.sys.global.v2.u64", "vote.sync.all.pred")
        assert (end, rest[0]) == ("ld.relaxed.sys.global.u64", "vote.sync.any.pred")
        assert rest[1:] == ["bar.warp.sync", WORDS[0], "bar.warp.sync"]  # the last: at the end

    def test_of_the_end_for_a_warp_is_a_barrier_before_one_thread_stops(self, tmp_path):
        source = ONE.replace("TYPE", "gdr_link").replace("END", "gdrpy::LinkServer")
        source = source.replace("uint4 value", "uint2 part")
        call = "next_warp(part) ? (void)0 : end.stop()"
        found = accesses(ptx_of(source.replace("CALL", call), tmp_path))
        stopped = found.index("fence.acq_rel.sys")
        votes = ["vote.sync.all.pred", "ld.relaxed.sys.global.u64", "vote.sync.any.pred"]
        assert found[stopped - 4 : stopped] == [*votes, "bar.warp.sync"]

    def test_of_a_request_of_64_bytes_needs_registers_alone(self, tmp_path):
        ptx = ptx_of(ECHO, tmp_path)
        loads = [one for one in accesses(ptx) if one.startswith("ld") and "v2" in one]
        assert loads == ["ld.relaxed.sys.global.v2.u64"] * 7 + ["ld.acquire.sys.global.v2.u64"]
        assert ".local" not in ptx

    def test_of_a_request_that_was_waited_for_is_the_same(self, accesses_of):
        _, *words, end = accesses_of("gdr_link", "LinkServer", "load16(0, 1)")
        assert words == ["ld.relaxed.sys.global.v2.u64", "ld.acquire.sys.global.v2.u64"]
        assert end == "ld.relaxed.sys.global.u64"  # else a thread of a block may wait for ever

    def test_of_going_on_to_the_next_request_is_a_store_without_a_fence(self, accesses_of):
        found = accesses_of("gdr_link", "LinkServer", "release(1)")
        assert found == ["ld.acquire.sys.global.u64", "st.relaxed.sys.global.u64"]

    def test_of_stopping_is_a_fence_and_a_store(self, accesses_of):
        found = accesses_of("gdr_link", "LinkServer", "stop()")
        assert found[1:] == ["fence.acq_rel.sys", "st.relaxed.sys.global.u64"]

    def test_of_a_release_is_a_fence_and_the_counter(self, accesses_of):
        found = accesses_of("gdr_channel", "ChannelReader", "release(1)")
        head = "ld.acquire.sys.global.u64"
        assert found == [head, "fence.acq_rel.sys", "st.relaxed.sys.global.u64"]


class TestCompiledKernels:
    def test_of_pplat_make_the_accesses_of_their_source(self, tmp_path):
        source = TOP / "gdrpy/cli/measure/records.cu"
        compiled = source.with_suffix(".ptx").read_text()
        assert ".version 7.8\n.target sm_70\n" in compiled
        newer = orders(ptx_of(source.read_text(), tmp_path, "compute_75"))
        assert orders(compiled) == newer, "run make ptx: the kernels or their headers have changed"
        assert {*orders(compiled)} == {"take", "report", "answer"}


def orders(ptx: str) -> dict[str, list[str]]:
    """The accesses of each kernel, in any number one after the other: compilers unroll loops."""
    _, *kernels = re.split(r"\.entry (\w+)", ptx)
    return {
        name: [access for access, _ in groupby(accesses(body))]
        for name, body in zip(kernels[::2], kernels[1::2], strict=True)
    }
