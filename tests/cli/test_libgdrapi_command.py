"""``gdrpy libgdrapi``: paths that exist, lines that work, and the backend that is used."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path

import pytest

from gdrpy import sim
from gdrpy.cli import main

NO_PCI_MEMORY = "cannot use gdrdrv: the simulated GPU's memory is not PCI memory"
SIMULATED = "programs on the simulated GPU: LD_PRELOAD=$(python -m gdrpy.sim)"


class TestPaths:
    def test_are_those_of_files_that_are_there(self, json_of):
        status, printed = json_of("libgdrapi")
        assert status == 0
        there = {path.name for path in Path(printed["dir"]).iterdir()}
        assert there == {
            "libgdrapi.so",
            "libgdrapi.so.2",
            "libgdrpy-broker.so.1",
            "libgdrpy_arena.so",
            "pkgconfig",
        }
        assert all(Path(printed[name]).is_file() for name in ("library", "header", "pkg_config"))

    def test_dir_prints_the_folder_alone(self, capsys, json_of):
        assert main(["libgdrapi", "--dir"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert json_of("libgdrapi", "--dir") == (0, {"dir": line})
        assert line == json_of("libgdrapi")[1]["dir"]

    def test_lines_to_copy_keep_what_the_variables_held(self, json_of):
        _, printed = json_of("libgdrapi")
        *exports, _ = printed["commands"]
        shell = "\n".join([*exports, 'echo "$LD_LIBRARY_PATH"'])
        for before, after in (("", ""), ("/there", ":/there")):
            done = subprocess.run(
                ["sh", "-c", shell],
                env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": before},
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout == f"{printed['dir']}{after}\n"

    def test_a_library_that_is_not_built_is_told(self, capsys, monkeypatch, tmp_path):
        monkeypatch.setattr("gdrpy.cli.libgdrapi.SHARED_OBJECT", tmp_path / "libgdrapi.so.2")
        assert main(["libgdrapi"]) == 2
        assert capsys.readouterr().err == (
            f"error: there is no {tmp_path}/libgdrapi.so.2: build it by 'make build'\n"
        )

    def test_a_package_without_it_is_to_be_installed_again(self, capsys, monkeypatch, tmp_path):
        monkeypatch.setattr("gdrpy.cli.libgdrapi._PACKAGE", tmp_path / "gdrpy")
        monkeypatch.setattr("gdrpy.cli.libgdrapi.SHARED_OBJECT", tmp_path / "libgdrapi.so.2")
        assert main(["libgdrapi"]) == 2
        assert capsys.readouterr().err == (
            f"error: there is no {tmp_path}/libgdrapi.so.2: install gcc, then gdrpy again: "
            "pip install --force-reinstall --no-deps, and the folder of its sources\n"
        )


@pytest.fixture
def on_simulated_gpu(gdrpy_command):
    """The command as a program that the user puts on the simulated GPU."""
    return partial(gdrpy_command, LD_PRELOAD=sim.driver_path())


class TestBackend:
    """On a machine without a GPU."""

    def test_is_none_for_a_program_though_python_has_the_simulated_gpu(self, gdrpy_command):
        done = gdrpy_command("libgdrapi", "--json", GDRPY_SIM="1")
        assert done.returncode == 0
        printed = json.loads(done.stdout)
        assert printed["backend"] is None
        without_cuda, nothing, *reasons = printed["told"]
        assert without_cuda.startswith("CUDA cannot be used: ")
        assert nothing == "nothing can map GPU memory here:"
        assert [line.partition(":")[0] for line in reasons] == [
            "cannot use nvrm",
            "cannot use dmabuf",
            "cannot use gdrdrv",
        ]

    def test_that_is_none_is_followed_by_a_way_without_a_gpu(self, gdrpy_command, on_simulated_gpu):
        done = gdrpy_command("libgdrapi")
        assert done.returncode == 0
        assert "\nbackend     none\n" in done.stdout
        assert f"\n            {SIMULATED}\n\n" in done.stdout
        assert SIMULATED not in on_simulated_gpu("libgdrapi").stdout

    def test_is_the_simulated_gpus_if_the_user_asks_for_it(self, on_simulated_gpu):
        done = on_simulated_gpu("libgdrapi", "--json")
        assert done.returncode == 0
        printed = json.loads(done.stdout)
        assert printed["backend"] == "sim"
        not_the_module, using = printed["told"]
        assert not_the_module.startswith(NO_PCI_MEMORY)
        assert using == "using sim: the simulated GPU is in use"

    def test_that_is_forced_and_cannot_serve_is_none_with_the_reason(self, on_simulated_gpu):
        done = on_simulated_gpu("libgdrapi", "--json", GDRPY_BACKEND="gdrdrv")
        assert done.returncode == 0
        printed = json.loads(done.stdout)
        assert printed["backend"] is None
        nothing, reason = printed["told"]
        assert nothing == "nothing can map GPU memory here:"
        assert reason.startswith(NO_PCI_MEMORY)

    def test_is_among_what_people_read(self, on_simulated_gpu):
        done = on_simulated_gpu("libgdrapi")
        assert done.returncode == 0
        assert "\nbackend     sim\n" in done.stdout
        assert f"\n            {NO_PCI_MEMORY}" in done.stdout

    def test_where_cuda_fails_names_its_answer(self, on_simulated_gpu):
        done = on_simulated_gpu("libgdrapi", "--json", GDRPY_SIM_FAULT="cuInit:1:100")
        assert done.returncode == 0
        told = json.loads(done.stdout)["told"]
        assert told[0] == "CUDA cannot be used: cuInit answers CUresult 100"
