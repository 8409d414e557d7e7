"""What is tried with programs of others, as far as it goes without them and without a GPU."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest

import clients
import clients_gdrcopy
import clients_nvshmem
import clients_program
import clients_row
import clients_ucx
from clients_program import Done, Program
from clients_row import FAIL, NOT_RUN, PASS, WAIVED, Client, Row

PYTHON = (sys.executable, "-c")


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libgdrapi.so.2").touch()
    return folder


def filled(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.fixture
def sources(tmp_path):
    return filled(tmp_path / "gdrcopy-2.6", clients_gdrcopy.NEEDED)


@pytest.fixture
def prefix(tmp_path):
    return filled(tmp_path / "ucx-1.22", clients_ucx.NEEDED)


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        clients.parse([str(one) for one in arguments])
    assert exit_.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


class TestOptions:
    def test_without_the_library_are_refused(self, tmp_path, sources, capsys):
        said = refused(["--library", tmp_path, "--gdrcopy", sources], capsys)
        assert said.endswith(f"--library {tmp_path.name}: no libgdrapi.so.2 there")

    def test_without_a_client_are_refused(self, library, capsys):
        said = refused(["--library", library], capsys)
        assert said.endswith("nothing to try: give --gdrcopy, --ucx or --nvshmem")

    @pytest.mark.parametrize(
        ("option", "missing"),
        [
            ("--gdrcopy", "tests/sanity.cpp"),
            ("--ucx", "bin/ucx_perftest"),
            ("--nvshmem", "bin/ucx_info"),
        ],
    )
    def test_of_an_incomplete_client_are_refused(
        self, option, missing, library, sources, prefix, capsys
    ):
        folder = sources if option == "--gdrcopy" else prefix
        (folder / missing).unlink()
        said = refused(["--library", library, option, folder], capsys)
        assert said.endswith(f"{option} {folder.name}: no {missing} there")

    def test_are_recorded_without_their_places(self, library, sources, prefix):
        places = ["--library", library, "--gdrcopy", sources, "--nvshmem", prefix]
        options = clients.parse([str(one) for one in places])
        assert clients.measuring_arguments(options) == [
            *("--library", "lib"),
            *("--gdrcopy", "gdrcopy-2.6"),
            *("--nvshmem", "ucx-1.22"),
        ]


class TestMachine:
    def test_without_a_gpu_is_told_so(self, library, sources, capsys):
        assert clients.main(["--library", str(library), "--gdrcopy", str(sources)]) == 2
        assert capsys.readouterr().err == (
            "benchmarks/clients.py: needs a GPU, and this machine has none\n"
        )

    @pytest.fixture
    def one_gpu(self, monkeypatch):
        monkeypatch.setattr(clients.cuda, "simulated", lambda: False)
        monkeypatch.setattr(clients.cuda, "device_count", lambda: 1)

    def test_with_one_gpu_has_too_few_for_nvshmem(self, one_gpu):
        assert clients.why_not(["ucx", "nvshmem"]) == "needs two GPUs, and this machine has 1"

    def test_without_nvcc_is_told_so(self, one_gpu, monkeypatch):
        monkeypatch.setattr(clients, "nvcc", lambda: None)
        assert clients.why_not(["ucx"]) == "needs CUDA's nvcc, which is missing"

    def test_without_the_wheel_of_nvshmem_is_told_so(self, monkeypatch):
        monkeypatch.setattr(clients_nvshmem.importlib.util, "find_spec", lambda name: None)
        assert clients_nvshmem.why_not() == (
            "needs NVSHMEM's wheel, nvidia-nvshmem-cu13 or nvidia-nvshmem-cu12, "
            "and none is installed"
        )


class TestProgram:
    def test_that_ends_gives_both_its_outputs(self):
        script = "import sys; print('a', flush=True); print('b', file=sys.stderr); sys.exit(3)"
        done = clients_program.run([*PYTHON, script], {}, 30)
        assert (done.status, done.output, done.how) == (3, "a\nb\n", "exit status 3")

    def test_that_was_killed_names_the_signal(self):
        script = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
        assert clients_program.run([*PYTHON, script], {}, 30).how == "ended by SIGSEGV"

    def test_that_takes_too_long_is_ended(self):
        with Program([*PYTHON, "import signal; signal.pause()"], {}) as program:
            done = program.done(0.1)
            assert (done.status, program.runs) == (None, False)
        assert done.end() == ["was ended after 0 s"]

    def test_finds_libraries_in_the_folders_first(self, monkeypatch):
        monkeypatch.setenv("LD_LIBRARY_PATH", "/there")
        found = clients_program.libraries_in(Path("/a"), Path("/b"))
        assert found == {"LD_LIBRARY_PATH": "/a:/b:/there"}


LISTED = """List of available tests:
    basic_cumemalloc
    basic_vmmalloc
List of extended tests:
    slow_cumemalloc
"""


class TestGdrcopy:
    def test_runs_the_tests_listed_less_those_that_take_long(self):
        assert clients_gdrcopy.test_names(LISTED) == ["basic_cumemalloc", "basic_vmmalloc"]

    @pytest.mark.parametrize(
        ("variant", "name", "expected"),
        [
            ("stock", "basic_cumemalloc", PASS),
            ("stock", "basic_vmmalloc", FAIL),
            ("exportable", "basic_vmmalloc", PASS),
            ("exportable", "basic_v2_forcepci_vmmalloc", WAIVED),
            ("stock", "basic_unaligned_mapping", FAIL),
            ("stock", "invalidation_unix_sock_shared_fd_gdr_map_vmmalloc", NOT_RUN),
        ],
    )
    def test_has_an_expectation_of_each_test_and_a_reason_if_it_is_no_pass(
        self, variant, name, expected
    ):
        found, why = clients_gdrcopy.expectation(variant, name)
        assert (found, why is None) == (expected, expected == PASS)

    @pytest.mark.parametrize(
        ("output", "found"),
        [
            ("Total: 1, Passed: 1, Failed: 0, Waived: 0", PASS),
            ("Total: 1, Passed: 0, Failed: 0, Waived: 1", WAIVED),
            ("Total: 1, Passed: 0, Failed: 1, Waived: 0", FAIL),
            ("Segmentation fault", FAIL),
        ],
    )
    def test_judges_by_the_summary(self, output, found):
        assert clients_gdrcopy.verdict(output) == found

    def test_asks_for_exportable_memory_in_the_one_place_that_allocates(self):
        asking = clients_gdrcopy.exportable("x; mprop.allocFlags.gpuDirectRDMACapable = 1;\n")
        assert asking.endswith(
            "= 1; mprop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;\n"
        )

    def test_refuses_sources_that_allocate_in_another_way(self):
        with pytest.raises(ValueError, match="this gdrcopy allocates in another way"):
            clients_gdrcopy.exportable("cuMemCreate(...);")

    def test_keeps_the_first_complaints_less_the_summary(self):
        output = "Total: 1, Failed: 1\nAssertion one failed\nok\nError: two\nError: three\n"
        assert clients_gdrcopy.complaints(output) == ["Assertion one failed", "Error: two"]


UCX_LOG = """
x gdr_copy_md.c:212 UCX TRACE registered memory 0x7f00..0x7f01 length 65536 bar_ptr 0x7e
x gdr_copy_ep.c:70 UCX DATA PUT_SHORT size 64 from 0x1 to 0x2
x gdr_copy_ep.c:70 UCX DATA PUT_SHORT size 64 from 0x3 to 0x4
"""


class TestUcx:
    def test_counts_the_lines_of_its_log_that_prove_use(self):
        found = clients_ucx.proofs(UCX_LOG)
        assert {what: one["count"] for what, one in found.items()} == {
            "memory is pinned and mapped": 1,
            "gdr_copy_to_mapping is called": 2,
            "gdr_copy_from_mapping is called": 0,
            "memory is unmapped and unpinned": 0,
        }
        assert found["gdr_copy_to_mapping is called"]["first"] == (
            "gdr_copy_ep.c:70 UCX DATA PUT_SHORT size 64 from 0x1 to 0x2"
        )

    def test_holds_a_text_against_what_the_example_sends(self):
        said = "----- UCP TEST SUCCESS ----\n\nABCDE\n\n---------------------------\n"
        assert clients_ucx.texts_in(said) == [clients_ucx.text(6)] == ["ABCDE"]
        assert clients_ucx.text(28).endswith("YZA")

    def test_reads_the_median_of_each_size_in_ns(self):
        csv = "batch,iterations,50.0_percentile_lat\n8, 500,6.4,7.1,7.2,0,0\n64, 500,7,7,7,0,0\n"
        assert clients_ucx.latencies(csv) == {8: 6400.0, 64: 7000.0}

    def test_compares_the_ways_round_by_round(self):
        sizes = len(clients_ucx.TIMED)
        samples = {
            clients_ucx.WITH: [[1000.0] * sizes, [2000.0] * sizes, [4000.0] * sizes],
            clients_ucx.WITH_AGAIN: [[1000.0] * sizes, [2000.0] * sizes, [4000.0] * sizes],
            clients_ucx.WITHOUT: [[3000.0] * sizes, [8000.0] * sizes, [8000.0] * sizes],
        }
        timed = clients_ucx.sweep(samples)
        assert clients_ucx.by_size(timed)["gdr_copy"]["8 B"] == [1.0, 2.0, 4.0]
        found = timed.json()
        assert found["ratios"] == {
            "without over gdr_copy": [3.0] * sizes,
            "gdr_copy over itself": [1.0] * sizes,
        }
        assert found["median"]["without"] == [8.0] * sizes
        assert found["unverified"] == sorted(samples)

    def test_sees_a_server_listen_without_being_noticed(self):
        script = (
            "import signal, socket, sys; one = socket.socket(); one.bind(('127.0.0.1', 0)); "
            "print(one.getsockname()[1], flush=True); sys.stdin.readline(); one.listen(); "
            "print(flush=True); sys.stdin.readline()"
        )
        server = partial(
            clients_program.subprocess.Popen, [*PYTHON, script], stdin=-1, stdout=-1, text=True
        )
        with server() as process:
            port = int(process.stdout.readline())
            assert not clients_ucx.listens(port)
            print(file=process.stdin, flush=True)
            process.stdout.readline()
            assert clients_ucx.listens(port)
            process.communicate("\n", 30)


OPENED = "a.cpp 73 GDR driver version: (2, 6)\n"
PINNED = "libgdrapi: gdr_pin_buffer: 536870912 bytes at 0x420000000 by nvrm on gpu0\n"
SUMS = "reached: kernel, 9.00 us for fetch_add and add\nsums: 500500 and 1000, right\n"
REFUSED = "ucx.cpp:837: AMO 8 not supported with the current configuration (GDRCopy Disabled)\n"


class TestNvshmem:
    def judged(self, way, *ends):
        client = Client("nvshmem")
        clients_nvshmem.judge(client, way, [Done(status, said, 1.0) for status, said in ends])
        return client, [(row.test, row.found) for row in client.rows]

    def test_with_gdrcopy_opens_it_pins_and_adds_right(self):
        client, found = self.judged(clients_nvshmem.WITH, (0, OPENED + PINNED + SUMS))
        assert found == [
            ("PE 0: the library is opened", PASS),
            ("PE 0: memory is pinned", PASS),
            ("PE 0: sums of the peer's atomics", PASS),
        ]
        log = client.logs["GDRCopy, PE 0"]
        assert log["reached"] == ["kernel, 9.00 us for fetch_add and add"]
        assert log[clients_nvshmem.PINNED] == ["536870912 bytes at 0x420000000 by nvrm on gpu0"]

    @pytest.mark.parametrize(
        "end",
        [
            (None, OPENED + PINNED),
            (1, OPENED + PINNED + SUMS.replace("right", "WRONG")),
            (1, OPENED + PINNED + SUMS),
        ],
    )
    def test_that_does_not_add_right_or_end_well_fails(self, end):
        client, found = self.judged(clients_nvshmem.WITH, end)
        assert [one for _, one in found] == [PASS, PASS, FAIL]
        assert Done(*end, 1.0).how in client.rows[-1].said

    def test_without_gdrcopy_must_refuse_atomics(self):
        gone, done = (255, ""), (0, SUMS)
        for ends, found in (
            ([(255, REFUSED), (255, REFUSED)], PASS),
            ([gone, (255, REFUSED)], PASS),
            ([gone, gone], FAIL),
            ([done, done], FAIL),
            ([done, (255, REFUSED)], FAIL),
        ):
            _, rows = self.judged(clients_nvshmem.WITHOUT, *ends)
            assert rows == [("atomics are refused", found)]


def rows(*some):
    return [row.json() for row in some]


class TestLines:
    def test_tell_what_is_as_expected_and_why(self):
        passing = Row("ucx", "tcp", "a text", PASS)
        failing = Row("gdrcopy", "stock", "maps", FAIL, expected=FAIL, why="it is refused")
        assert list(clients_row.lines(rows(passing, failing))) == [
            "pass    ucx, tcp: a text",
            "fail    gdrcopy, stock: maps  as expected: it is refused",
            "2 tests, 0 surprises",
        ]

    @pytest.mark.parametrize(("found", "expected"), [(FAIL, PASS), (PASS, FAIL)])
    def test_tell_a_surprise_with_what_was_said(self, found, expected):
        row = Row("ucx", "tcp", "a text", found, expected=expected, said=["exit status 1"])
        assert list(clients_row.lines(rows(row))) == [
            f"{found}    ucx, tcp: a text  SURPRISE, expected: {expected}",
            "    exit status 1",
            "1 tests, 1 surprises",
        ]


class TestRun:
    @pytest.mark.parametrize(("found", "status"), [(PASS, 0), (FAIL, 1)])
    def test_keeps_every_test_and_fails_by_a_surprise(
        self, found, status, library, sources, tmp_path, monkeypatch, capsys
    ):
        def attempt(place, library_, folder, step):
            client = Client("gdrcopy", "2.6")
            client.add("stock", "basic", found, seconds=0.123)
            return client

        monkeypatch.setattr(clients, "why_not", lambda chosen: None)
        monkeypatch.setattr(clients_gdrcopy, "attempt", attempt)
        places = ["--library", library, "--gdrcopy", sources, "--output", tmp_path / "results"]
        assert clients.main([*map(str, places), "--commit", "abc"]) == status
        (path,) = (tmp_path / "results").iterdir()
        result = json.loads(path.read_text())
        assert result["header"]["gdrcopy"] == "2.6"
        assert result["header"]["commit"] == "abc"
        assert [(one["test"], one["found"], one["seconds"]) for one in result["tests"]] == [
            ("basic", found, 0.12)
        ]
        assert f"1 tests, {status} surprises\n" in capsys.readouterr().out
