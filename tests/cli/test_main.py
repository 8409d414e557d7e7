"""The command line as a whole: help, wrong usage, errors, Ctrl-C."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gdrpy import cuda
from gdrpy.cli import COMMANDS, GROUPS, info, main
from gdrpy.cli.header import gdrpy_version

#: The simulated driver's cuInit fails as on a machine without GPUs.
NO_DEVICE = "cuInit:1:100"
NAMES = [*COMMANDS]

WATCHED_HELP = """
import sys
from gdrpy.cli import main
try:
    main(["--help"])
except SystemExit:
    heavy = {"numpy", "cuda.bindings", "rich", "asyncio", "matplotlib", "multiprocessing"}
    commands = {name for name in sys.modules if name.startswith("gdrpy.cli.measure")}
    print(sorted(heavy & set(sys.modules) | commands), file=sys.stderr)
"""

INTERRUPTED_IMPORT = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "gdrpy.cli.output":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from gdrpy.__main__ import main
sys.exit(main())
"""


class TestHelp:
    def test_lists_every_command(self, capsys):
        with pytest.raises(SystemExit) as ended:
            main(["--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert re.findall(r"^  (\w+) +\w", text, re.MULTILINE) == NAMES
        assert re.findall(r"^(.+):$", text, re.MULTILINE) == ["options", *GROUPS]

    def test_imports_no_command_and_nothing_heavy(self):
        done = subprocess.run(
            [sys.executable, "-c", WATCHED_HELP], capture_output=True, text=True, check=True
        )
        assert done.stderr == "[]\n"

    @pytest.mark.parametrize("name", NAMES)
    def test_of_a_command_teaches(self, capsys, name):
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        assert re.search(rf"examples:\n  gdrpy {name}", text)
        assert "exit status:\n  0  " in text
        assert "--json" in text

    @pytest.mark.parametrize("words", [[], *([name] for name in NAMES)])
    def test_is_a_command_too(self, capsys, words):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        text = capsys.readouterr().out
        assert main(["help", *words]) == 0
        assert capsys.readouterr().out == text

    @pytest.mark.parametrize("words", [[], *([name] for name in NAMES)])
    def test_fits_the_terminal_and_loses_no_word(self, capsys, monkeypatch, words):
        def text(columns: int) -> str:
            monkeypatch.setenv("COLUMNS", str(columns))
            with pytest.raises(SystemExit):
                main([*words, "--help"])
            return capsys.readouterr().out

        wide = text(200)
        for columns in (60, 80, 120):
            narrow = text(columns)
            long = [line for line in narrow.splitlines() if len(line) > columns]
            assert long == []
            assert words_of(narrow) == words_of(wide)

    @pytest.mark.parametrize("columns", [60, 200])
    @pytest.mark.parametrize("name", NAMES)
    def test_says_in_comments_what_its_examples_do(self, capsys, monkeypatch, name, columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit):
            main([name, "--help"])
        (examples,) = re.findall(r"\nexamples:\n(.*?)\n\n", capsys.readouterr().out, re.DOTALL)
        for line in examples.splitlines():
            assert re.search(r"\S {2,}[^# ]", line) is None

    def test_has_the_room_of_wide_terminals_and_60_columns_at_least(self, capsys, monkeypatch):
        def paragraph(columns: int) -> list[int]:
            monkeypatch.setenv("COLUMNS", str(columns))
            with pytest.raises(SystemExit):
                main(["watch", "--help"])
            return [len(line) for line in capsys.readouterr().out.split("\n\n")[1].splitlines()]

        assert len(paragraph(60)) > len(paragraph(80)) > len(paragraph(120))
        assert 110 < max(paragraph(120)) < 120
        assert paragraph(30) == paragraph(60)

    def test_keeps_examples_and_columns_apart(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "60")
        with pytest.raises(SystemExit):
            main(["load", "--help"])
        assert capsys.readouterr().out.endswith("""
examples:
  gdrpy load ~/models/llama llama --seal
  gdrpy load ~/models/llama llama --seal --digest
  gdrpy load weights.safetensors weights --device 1 --mode
      0644

exit status:
  0  the tensors are published
  1  they are not, and what had the name before still has
     it: memory or permission is missing, or a file is
     missing or invalid; or a digest differs
  2  wrong usage, or no broker: start one with 'gdrpy
     serve'
""")


def words_of(text: str) -> list[str]:
    """The words of help after its usage, without the signs of comments."""
    return [word for word in text.partition("\n\n")[2].split() if word != "#"]


class TestVersion:
    @pytest.mark.parametrize("word", ["-V", "--version"])
    def test_is_printed(self, capsys, word):
        with pytest.raises(SystemExit) as ended:
            main([word])
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"gdrpy {gdrpy_version()}\n"


class TestWrongUsage:
    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            ([], "this machine and this process:\n  info "),
            (["juggle"], "there is no command 'juggle': 'gdrpy --help' lists them"),
            (["lst"], "there is no command 'lst': did you mean 'ls'? "),
            (["list"], "there is no command 'list': did you mean 'ls'? "),
            (["LS"], "there is no command 'LS': did you mean 'ls'? "),
            (["ls", "--JSON"], "unrecognized arguments: --JSON: did you mean '--json'?\n"),
            (["status"], "there is no command 'status': did you mean 'top'? "),
            (["attach", "x"], "there is no command 'attach': did you mean 'get'? "),
            (["remove", "x"], "there is no command 'remove': did you mean 'rm'? "),
            (["delet", "x"], "there is no command 'delet': did you mean 'rm'? "),
            (["help", "lst"], "there is no command 'lst': did you mean 'ls'? "),
            (["copy-bw"], "there is no command 'copy-bw': did you mean 'copybw'? "),
            (["alloc", "x", "1M", "--mod=0600"], "--mod=0600: did you mean '--mode'?\n"),
            (["get", "x", "--nbtyes", "4K", "y"], ": did you mean '--nbytes'?\n"),
            (["ls", "--nothing-like-it"], "unrecognized arguments: --nothing-like-it\n"),
            (["top", "--once"], "unrecognized arguments: --once\n"),
            (["--versoin"], "unrecognized arguments: --versoin: did you mean '--version'?\n"),
            (["validate", "--size", "1.5M"], "'1.5M' is not a size: give whole bytes"),
            (["validate", "--size", "0"], "'0' is not a size from 1 byte to less than 4 EiB\n"),
            (["validate", "--backend", "magic"], "invalid choice: 'magic'"),
            (["validate", "--device", "-1"], "torch's name ('cuda:0'), not '-1'"),
            (["validate", "--device", "one"], "torch's name ('cuda:0'), not 'one'"),
            (["validate", "--check", "nothing"], "invalid choice: 'nothing'"),
            (["validate", "--seed", "x"], "'x' is not a whole number"),
            (["tune", "--show", "--reset"], "not allowed with argument"),
            (["copybw", "--seconds", "0"], "'0' is not a number of seconds above 0"),
            (["copybw", "--seconds", "nan"], "'nan' is not a number of seconds above 0"),
            (["copybw", "--plot", "x.pdf"], "'x.pdf' must end in .png or .svg"),
            (["copybw", "--plot", "nowhere/x.png"], "there is no folder 'nowhere'"),
            (["copylat", "--sizes", "4,x"], "'x' is not a size: give whole bytes"),
            (["copylat", "--seconds", "0"], "'0' is not a number of seconds above 0"),
            (["apiperf", "--size", "0"], "'0' is not a size from 1 byte"),
            (["apiperf", "--count", "0"], "'0' is not a whole number from 1 up"),
            (["pplat", "--count", "many"], "'many' is not a whole number"),
            (["pplat", "--what", "flag,ring"], "'ring' is none of flag, push, pop, call"),
            (["pplat", "--cpu", "99999"], "no thread may run on CPU 99999: see lscpu -e"),
            (["pplat", "--cpu", "9" * 30], f"no thread may run on CPU {'9' * 30}: see lscpu -e"),
            (["pplat", "--plot", "x.pdf"], "'x.pdf' must end in .png or .svg"),
            (["producer", "--count", "0"], "'0' is not a whole number from 1 up"),
            (["consumer", "--timeout", "soon"], "'soon' is not a number of seconds"),
            (["consumer", "--socket", "x" * 108], "is too long: a socket's path has 107 bytes"),
            (["producer", "--socket", "/nowhere/x"], "there is no folder '/nowhere': make it"),
            (["serve", "--mode", "0700"], "'0700' is not an octal mode from 0 to 0666"),
            (["serve", "--group", "no such"], "there is no group 'no such'"),
            (["serve", "--metrics", "9464"], "'9464' is not HOST:PORT, as 127.0.0.1:9464 is"),
            (["serve", "--metrics", "[::1]:65536"], "'[::1]:65536' is not HOST:PORT"),
            (["serve", "--linger", "0"], "'0' is not a number of seconds above 0"),
            (["serve", "--max-regions", "0"], "'0' is not a whole number from 1 up"),
            (["serve", "--socket", "/nowhere/x"], "there is no folder '/nowhere': make it"),
            (["serve", "--socket", "x" * 101], "is too long: a socket's path has 107 bytes"),
            (["alloc", "x", "1M", "--device", "gpu"], "('cuda:0') or 'cpu', not 'gpu'\n"),
            (["alloc", "x", "1M", "--device", "gpu"], "argument --device: device must be a CUDA"),
            (["rm"], "the following arguments are required: NAME"),
            (["copybw", "extra"], "usage: gdrpy copybw"),
            (["copybw", "extra"], "unrecognized arguments: extra"),
            (["info", "--", "--json"], "unrecognized arguments: "),
            (["--socket", "a b", "stat", "x"], "command: gdrpy stat x --socket 'a b'\n"),
        ],
    )
    def test_ends_with_2_and_says_what_is_wrong(self, capsys, words, complaint):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        captured = capsys.readouterr()
        assert complaint in captured.err
        assert captured.out == ""

    @pytest.mark.parametrize(
        ("name", "value", "complaint"),
        [
            ("GDRPY_BACKEND", "magic", "GDRPY_BACKEND is 'magic': unset it, or set it to one of"),
            ("GDRPY_SIM", "yes", "GDRPY_SIM is 'yes': unset it, or set it to one of 0, 1"),
            ("GDRPY_TUNING", "no", "GDRPY_TUNING is 'no': unset it, or set it to one of 0, 1"),
        ],
    )
    def test_of_the_environment_ends_with_2(self, capsys, monkeypatch, name, value, complaint):
        monkeypatch.setenv(name, value)
        assert main(["validate"]) == 2
        assert capsys.readouterr().err.startswith(f"error: {complaint}")

    @pytest.mark.parametrize(
        ("name", "value", "complaint"),
        [
            ("GDRPY_SIM_MEMORY", "1M", "a multiple of 2M up to 64T: a number, then K, M, G, T or"),
            ("GDRPY_SIM_DEVICES", "17", "a number from 1 to 16"),
            ("GDRPY_SIM_FAULT", "cuNothing:1", "a list of FUNCTION:CALL or FUNCTION:CALL:CURE"),
        ],
    )
    def test_of_the_simulated_gpu_is_told_once(self, gdrpy_command, name, value, complaint):
        done = gdrpy_command("info", **{name: value})
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"error: {name}='{value}' is not {complaint}")


class TestErrors:
    def test_of_a_missing_device_end_with_2(self, capsys):
        assert main(["validate", "--device", "7"]) == 2
        assert capsys.readouterr().err.startswith("error: --device: there is no CUDA device 7")

    def test_of_a_backend_that_cannot_serve_end_with_2_and_its_reason(self, capsys):
        assert main(["validate", "--backend", "gdrdrv"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(
            "error: no backend can map this memory: gdrdrv: the simulated GPU's memory is not PCI"
        )

    def test_of_too_large_a_size_end_with_2(self, capsys):
        assert main(["validate", "--size", "1T"]) == 2
        assert capsys.readouterr().err == (
            "error: cuMemCreate: GPU 0 has no 1 TiB left: it has 16 GiB in all: allocate less\n"
        )

    def test_are_an_object_on_stdout_where_json_is_wanted(self, json_of):
        status, result = json_of("validate", "--device", "7")
        assert status == 2
        assert result["error"]["type"] == "NotFound"
        assert result["error"]["message"].startswith("--device: there is no CUDA device 7")

    @pytest.mark.parametrize("words", [["ls"], ["watch"], ["top"], ["serve"]], ids=" ".join)
    def test_are_one_line_of_json_beside_that_on_stderr(self, tmp_path, capsys, words):
        (tmp_path / "b.sock").touch()
        assert main([*words, "--json", "--socket", str(tmp_path / "b.sock")]) == 2
        told = capsys.readouterr()
        (line,) = told.out.splitlines()
        error = json.loads(line)["error"]
        assert (error["type"], told.err) == ("CommandError", f"error: {error['message']}\n")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["ls", "--json", "--device", "9"], "unrecognized arguments: --device"),
            (["stat", "--json"], "the following arguments are required: NAME"),
            (["copybw", "--sizes", "x", "--json"], "argument --sizes: 'x' is not a size: "),
            (["validate", "--module", "--seed", "1", "--size", "2M", "--json"], "--module goes "),
        ],
    )
    def test_of_usage_are_json_too(self, capsys, words, message):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        told = capsys.readouterr()
        error = json.loads(told.out)["error"]
        assert error["type"] == "CommandError"
        assert error["message"].startswith(message)
        assert told.err.endswith(f"gdrpy {words[0]}: error: {error['message']}\n")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["lss", "--json"], "there is no command 'lss': did you mean 'ls'? "),
            (["--json", "ls"], "--json belongs after the command: gdrpy ls --json"),
            (["--json"], "unrecognized arguments: --json"),
        ],
    )
    def test_of_the_command_itself_are_json_too(self, capsys, words, message):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
        told = capsys.readouterr()
        error = json.loads(told.out)["error"]["message"]
        assert error.startswith(message)
        assert told.err.endswith(f"gdrpy: error: {error}\n")

    def test_of_a_cuda_without_devices_end_with_2_and_no_traceback(self, gdrpy_command):
        done = gdrpy_command("copybw", GDRPY_SIM_FAULT=NO_DEVICE)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr == (
            "error: cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected; check "
            "CUDA_VISIBLE_DEVICES, and whether nvidia-smi lists a GPU; host memory needs none: "
            'device="cpu"\n'
        )

    def test_of_cuda_in_the_middle_of_it_end_with_1(self, gdrpy_command):
        done = gdrpy_command("copybw", GDRPY_SIM_FAULT="cuMemHostAlloc:1:719")
        assert done.returncode == 1
        assert done.stderr.startswith("error: cuMemHostAlloc: CUDA_ERROR_LAUNCH_FAILED")
        assert "Traceback" not in done.stderr


class TestWarnings:
    def test_are_one_line_on_stderr(self, capsys, monkeypatch):
        import warnings

        def warn(args, output) -> int:
            del args, output
            warnings.warn("the moon is full", RuntimeWarning, stacklevel=1)
            return 0

        monkeypatch.setattr(info, "run", warn)
        assert main(["info"]) == 0
        assert capsys.readouterr().err == "warning: the moon is full\n"


class TestInterrupt:
    def test_ends_with_130_and_without_a_word(self, capsys, monkeypatch):
        def interrupted(args, output) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr(info, "run", interrupted)
        assert main(["info"]) == 130
        assert capsys.readouterr() == ("", "")
        assert main(["info", "--json"]) == 130
        told = capsys.readouterr()
        ended = {"error": {"type": "KeyboardInterrupt", "message": "ended by Ctrl-C"}}
        assert (json.loads(told.out), told.err) == (ended, "")

    def test_after_the_result_adds_nothing_to_it(self, json_of, monkeypatch):
        def interrupted(args, output) -> int:
            output.finish({"all": 1})
            raise KeyboardInterrupt

        monkeypatch.setattr(info, "run", interrupted)
        assert json_of("info") == (130, {"all": 1})

    def test_while_the_command_line_is_imported_is_quiet(self):
        done = subprocess.run(
            [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")

    @pytest.mark.parametrize(
        ("said", "told"),
        [("Unable to allocate 256. MiB", "Unable to allocate 256. MiB"), ("", "use less")],
    )
    def test_host_memory_that_is_used_up_is_an_error_without_a_traceback(
        self, capsys, monkeypatch, said, told
    ):
        def greedy(args, output) -> int:
            raise MemoryError(said)

        monkeypatch.setattr(info, "run", greedy)
        assert main(["info"]) == 2
        assert capsys.readouterr().err == f"error: the host's memory is used up: {told}\n"

    def test_of_a_waiting_producer_leaves_nothing(self, checkout, tmp_path):
        path = tmp_path / "meet.sock"
        producer = subprocess.Popen(
            [sys.executable, "-m", "gdrpy", "producer", "--count", "1", "--socket", str(path)],
            cwd=checkout,
            env=os.environ | {"GDRPY_SIM": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with producer:
            assert producer.stdout is not None
            assert producer.stderr is not None
            while "Listening" not in producer.stdout.readline():
                assert producer.poll() is None
            producer.send_signal(signal.SIGINT)
            assert producer.stderr.read() == ""
        assert producer.returncode == 130
        assert not path.exists()


class TestPipe:
    @pytest.mark.parametrize(
        "words",
        [
            ["info"],
            ["info", "--json"],
            ["completion", "bash"],
            ["--help"],
            ["--version"],
            ["ls", "-h"],
        ],
        ids=" ".join,
    )
    def test_whose_reader_has_ended_ends_it_as_sigpipe_would(self, checkout, words):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, "-m", "gdrpy", *words],
            cwd=checkout,
            env=os.environ | {"GDRPY_SIM": "1"},
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, "")


class TestStdout:
    @pytest.mark.parametrize("unbuffered", ["", "1"])
    @pytest.mark.parametrize("words", [["info"], ["info", "--json"], ["--help"]])
    def test_that_is_full_is_an_error_of_one_line(self, checkout, words, unbuffered):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "gdrpy", *words],
                cwd=checkout,
                env=os.environ | {"GDRPY_SIM": "1", "PYTHONUNBUFFERED": unbuffered},
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        said = "error: cannot write to stdout: No space left on device\n"
        assert (done.returncode, done.stderr) == (1, said)

    def test_that_is_closed_is_an_error_of_one_line(self, capsys, monkeypatch):
        monkeypatch.setattr(sys, "stdout", None)
        assert main(["info"]) == 1
        assert capsys.readouterr().err == "error: cannot write to stdout: it is closed\n"


class TestTools:
    @pytest.mark.parametrize(
        "name",
        ["validate", "copybw", "copylat", "pplat", "apiperf", "tune", "producer", "consumer"],
    )
    def test_run_from_the_checkout(self, checkout: Path, tmp_path, name):
        done = subprocess.run(
            [checkout / "tools" / name, "--help"],
            cwd=tmp_path,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: gdrpy {name} ")

    def test_say_to_build_where_the_c_parts_are_missing(self, checkout: Path, tmp_path):
        (tmp_path / "tools").mkdir()
        for name in ("validate", "_checkout.py"):
            shutil.copy(checkout / "tools" / name, tmp_path / "tools")
        done = subprocess.run(
            [sys.executable, "-S", "-E", tmp_path / "tools" / "validate"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.endswith("run make build\n")


class TestInfo:
    def test_shows_the_simulated_gpu_and_every_backend(self, gdrpy_command):
        done = gdrpy_command("info")
        assert (done.returncode, done.stderr) == (0, "")
        assert "GPU 0           gdrpy simulated GPU" in done.stdout
        for backend in ("dmabuf", "nvrm", "sim"):
            assert f"│ {backend} " in done.stdout

    @pytest.mark.parametrize(
        ("environment", "line"),
        [
            ({}, "1 simulated GPU, not real: GDRPY_SIM=1"),
            ({"GDRPY_SIM_DEVICES": "2"}, "2 simulated GPUs, not real: GDRPY_SIM=1"),
            ({"GDRPY_SIM_FAULT": NO_DEVICE}, "no GPU: see CUDA driver"),
        ],
    )
    def test_begins_with_whether_the_gpu_is_real(self, gdrpy_command, environment, line):
        assert gdrpy_command("info", **environment).stdout.splitlines()[0] == line

    def test_has_all_lines_in_the_columns_that_are_told(self, monkeypatch, capsys):
        monkeypatch.setenv("COLUMNS", "60")
        assert main(["info"]) == 0
        assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 60] == []

    def test_says_how_to_find_out_why_the_gpu_is_simulated(self, monkeypatch):
        device = cuda.device_info(0)
        monkeypatch.delenv("GDRPY_SIM", raising=False)
        assert info._kind([device]) == (
            "1 simulated GPU, not real: no NVIDIA driver was found ('GDRPY_SIM=0 gdrpy info' shows "
            "what is missing)"
        )

    def test_begins_with_the_names_of_real_gpus(self, monkeypatch, capsys):
        real = cuda.device_info

        def named(ordinal: int) -> cuda.DeviceInfo:
            return real(ordinal)._replace(name="NVIDIA H200", simulated=False)

        monkeypatch.setattr(cuda, "device_info", named)
        monkeypatch.setattr(cuda, "device_count", lambda: 1)
        assert main(["info"]) == 0
        assert capsys.readouterr().out.startswith("1 real GPU: NVIDIA H200\n")

    def test_json_says_why_a_backend_is_not_usable_and_what_would_help(self, gdrpy_command):
        result = json.loads(gdrpy_command("info", "--json", GDRPY_SIM_DEVICES="2").stdout)
        assert [device["ordinal"] for device in result["devices"]] == [0, 1]
        assert all(device["simulated"] for device in result["devices"])
        states = {(one["backend"], one["device"]): one for one in result["backends"]}
        assert states["sim", 1]["usable"]
        for state in states.values():
            assert state["reason"]
            assert state["usable"] or state["remedy"]

    def test_json_names_each_device_by_uuid_and_product(self, gdrpy_command):
        result = json.loads(gdrpy_command("info", "--json", GDRPY_SIM_DEVICES="2").stdout)
        names = {one["ordinal"]: (one["uuid"], one["name"]) for one in result["devices"]}
        assert len({uuid for uuid, _ in names.values()}) == 2
        lists = (*result["backends"], *result["fabric_handles"])
        assert len(lists) == 2 * 4 + 2
        assert all((one["uuid"], one["gpu"]) == names[one["device"]] for one in lists)

    @pytest.mark.parametrize(
        ("environment", "chosen"),
        [({}, ["sim"]), ({"GDRPY_BACKEND": "dmabuf"}, ["dmabuf"]), ({"GDRPY_BACKEND": "nvrm"}, [])],
    )
    def test_marks_the_backend_that_a_region_takes(self, gdrpy_command, environment, chosen):
        done = gdrpy_command("info", "--json", **environment)
        states = json.loads(done.stdout)["backends"]
        assert [state["backend"] for state in states if state["chosen"]] == chosen
        assert gdrpy_command("info", **environment).stdout.count("yes, chosen") == len(chosen)

    def test_never_sends_to_itself_for_a_remedy(self, gdrpy_command):
        done = gdrpy_command("info", "--json", GDRPY_SIM_FAULT=NO_DEVICE)
        remedies = {one["backend"]: one["remedy"] for one in json.loads(done.stdout)["backends"]}
        assert (
            remedies["sim"] == remedies["dmabuf"] == "see CUDA driver above (cuda_problem in JSON)"
        )
        assert "gdrpy info" not in done.stdout.partition('"backends"')[2]

    @pytest.mark.parametrize(
        ("result", "look_at"),
        [
            (999, ["nvidia-smi", "NVRM in dmesg", "/dev/nvidia-uvm"]),
            (100, ["CUDA_VISIBLE_DEVICES", "nvidia-smi"]),
            (803, ["libcuda.so.1", "reboot"]),
            (802, ["nvidia-fabricmanager"]),
        ],
    )
    def test_tells_where_to_look_when_cuda_does_not_start(self, gdrpy_command, result, look_at):
        done = gdrpy_command("info", "--json", GDRPY_SIM_FAULT=f"cuInit:1:{result}")
        problem = json.loads(done.stdout)["cuda_problem"]
        assert [words for words in look_at if words not in problem] == []

    def test_json_names_the_copy_routines(self, json_of):
        status, result = json_of("info")
        assert status == 0
        for routines in result["copy_routines"].values():
            assert {*routines["chosen"].values()} <= {*routines["supported"]}
            assert all(routines["supported"][name] for name in routines["chosen"].values())

    def test_prints_what_it_can_without_cuda(self, gdrpy_command):
        done = gdrpy_command("info", "--json", GDRPY_SIM_FAULT=NO_DEVICE)
        assert (done.returncode, done.stderr) == (0, "")
        result = json.loads(done.stdout)
        assert result["devices"] == []
        assert result["cuda_problem"].startswith("cuInit: CUDA_ERROR_NO_DEVICE")
        states = {state["backend"]: state for state in result["backends"]}
        assert list(states) == ["gdrdrv", "dmabuf", "nvrm", "sim"]
        assert not states["dmabuf"]["usable"]
        assert result["copy_routines"]["to"]["chosen"]


class TestImports:
    def test_inside_functions_are_of_rich_and_matplotlib_alone(self, checkout: Path):
        found = set()
        for file in (checkout / "gdrpy" / "cli").rglob("*.py"):
            for function in ast.walk(ast.parse(file.read_text())):
                if isinstance(function, ast.FunctionDef):
                    nodes = list(ast.walk(function))
                    found |= {n.module for n in nodes if isinstance(n, ast.ImportFrom)}
                    found |= {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
        assert {str(name).partition(".")[0] for name in found} == {"rich", "matplotlib"}
