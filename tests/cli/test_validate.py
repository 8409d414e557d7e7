"""``gdrpy validate``, with everything in order."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gdrpy
from gdrpy.cli import checks, data, main, output
from gdrpy.cli.checks import peer
from gdrpy.cli.data import Mismatch, Noise, difference

#: Those that the simulated backend runs.
NAMES = [check.name for check in checks.ALL if check.backend is None]


class TestValidate:
    def test_passes_every_check_on_the_simulated_gpu(self, gdrpy_command):
        done = gdrpy_command("validate", "--seed", "7")
        assert (done.returncode, done.stderr) == (0, "")
        first, *lines, last = done.stdout.splitlines()
        assert "simulated GPU, device 0, backend sim, 1 MiB, seed 7" in first
        assert [line.split()[:2] for line in lines] == [["pass", name] for name in NAMES]
        assert last == f"{len(NAMES)} passed, 0 failed"

    @pytest.mark.parametrize("size", ["1", "5", "100", "4097", "3M"])
    def test_passes_at_any_size(self, json_of, size):
        status, result = json_of("validate", "--size", size)
        assert [one for one in result["checks"] if one["verdict"] != "passed"] == []
        assert status == 0

    def test_samples_what_is_too_large_to_see_whole(self, json_of):
        words = [word for name in NAMES[:5] for word in ("--check", name)]
        status, result = json_of("validate", "--size", "300M", *words)
        assert status == 0
        assert result["counts"] == {"passed": 5, "failed": 0, "skipped": 0}

    @pytest.mark.parametrize(
        "device", ["1", "cuda:1", "GPU-67647270-7920-7369-6d75-6c6174656401", "0000:02:00.0"]
    )
    def test_passes_on_a_second_device(self, gdrpy_command, device):
        done = gdrpy_command("validate", "--device", device, GDRPY_SIM_DEVICES="2")
        assert done.returncode == 0
        assert "simulated GPU, device 1" in done.stdout

    def test_shows_the_seconds_of_every_check_in_a_narrow_terminal(self, capsys, monkeypatch):
        monkeypatch.setattr(output, "_PLAIN_WIDTH", 60)
        assert main(["validate", "--check", "writes-anywhere", "--check", "flags-32"]) == 0
        lines = capsys.readouterr().out.splitlines()[1:-1]
        assert all(re.search(r" [0-9]\.[0-9]{3} s$", line) for line in lines)
        assert [len(line) for line in lines] == [60, 60]

    def test_runs_chosen_checks_only(self, json_of):
        status, result = json_of("validate", "--check", "read-only", "--check", "flags-64")
        assert status == 0
        assert [one["name"] for one in result["checks"]] == ["read-only", "flags-64"]

    def test_json_tells_what_it_ran_on(self, json_of):
        _, result = json_of("validate", "--check", "read-only", "--seed", "3", "--size", "64K")
        assert (result["seed"], result["size"]) == (3, 65536)
        header = result["header"]
        assert header["command"] == "gdrpy validate --check read-only --seed 3 --size 64K --json"
        assert header["simulated"] is True
        assert [header[key] for key in ("device", "uuid", "gpu")] == [
            0,
            "GPU-67647270-7920-7369-6d75-6c6174656400",
            "gdrpy simulated GPU",
        ]
        assert header["backend"] == "sim"
        assert re.fullmatch(r"\d+\.\d+", header["cuda_driver"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", header["date"])
        assert {"cpu", "python", "gdrpy", "kernel", "nvidia_driver", "pci"} <= set(header)

    def test_that_ctrl_c_ends_tells_the_checks_until_then(self, json_of, monkeypatch):
        run, calls = checks.run, itertools.count(1)

        def interrupted(*words):
            if next(calls) == 3:
                raise KeyboardInterrupt
            return run(*words)

        monkeypatch.setattr(checks, "run", interrupted)
        status, told = json_of("validate")
        assert (status, told["interrupted"]) == (130, True)
        assert told["counts"] == {"passed": 2, "failed": 0, "skipped": 0}
        assert len(told["checks"]) == 2

    def test_skips_what_the_driver_does_not_support(self, capsys):
        assert main(["validate", "--backend", "dmabuf", "--check", "pin-interior"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith("skip  pin-interior")
        assert "CUDA_ERROR_NOT_SUPPORTED" in lines[2]
        assert lines[-1] == "0 passed, 0 failed, 1 skipped"


class TestDifference:
    def test_is_none_between_equals(self):
        assert difference(b"same", bytearray(b"same")) is None

    def test_tells_where_what_and_how_many(self):
        found = difference(b"\x00\x01\x02\x03", b"\x00\xff\x02\xfe", base=100)
        assert found is not None
        assert (found.offset, found.differing, found.nbytes) == (101, 2, 4)
        assert (found.expected, found.got) == ("01 02 03", "ff 02 fe")

    def test_of_another_length_is_a_mismatch(self):
        with pytest.raises(Mismatch, match="3 bytes were read instead of 4"):
            difference(b"four", b"thr")


class TestSample:
    def test_windows_cover_a_small_region_whole(self):
        assert data.windows(1) == [(0, 1)]
        assert data.windows(data.WHOLE_UP_TO) == [(0, data.WHOLE_UP_TO)]

    @pytest.mark.parametrize("nbytes", [data.WHOLE_UP_TO + 1, 3 << 30])
    def test_windows_reach_both_ends_of_a_large_one(self, nbytes):
        windows = data.windows(nbytes)
        assert len(windows) == 16
        assert windows[0][0] == 0
        assert sum(windows[-1]) == nbytes
        assert all(offset >= 0 and offset + size <= nbytes for offset, size in windows)

    def test_noise_is_the_same_for_the_same_seeds(self):
        assert Noise(1, 2).bytes(9).tobytes() == Noise(1, 2).bytes(9).tobytes()
        assert Noise(1, 2).bytes(9).tobytes() != Noise(1, 3).bytes(9).tobytes()

    def test_repeated_words_start_anywhere(self):
        assert data.repeated(0x04030201, 5, 6).tolist() == [2, 3, 4, 1, 2, 3]


class TestPeer:
    def test_tells_what_it_found_wrong_and_writes_all_the_same(self):
        with gdrpy.alloc(4096) as region:
            region.write(Noise(5, peer.OURS).bytes(4096))
            region.write(bytes([region.read(1, 99)[0] ^ 1]), 99)
            found = peer.exchange(region, (5,))
            assert found is not None
            assert (found.offset, found.differing) == (99, 1)
            assert region.read() == Noise(5, peer.THEIRS).bytes(4096).tobytes()

    def test_notices_cuda_in_a_process(self, checkout: Path):
        script = (
            "from gdrpy.cli.checks.peer import cuda_loaded\n"
            "before = cuda_loaded()\n"
            "from gdrpy import cuda\n"
            "cuda.driver()\n"
            "print(before, cuda_loaded())"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True, check=True
        )
        assert done.stdout == "False True\n"
