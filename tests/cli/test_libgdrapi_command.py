"""``gdrpy libgdrapi``: paths that exist, lines that work, and the backend that is used."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from gdrpy.cli import main

PASSED_OVER = "passed over gdrdrv: the simulated GPU's memory is no PCI memory"


class TestPaths:
    def test_are_those_of_files_that_are_there(self, json_of):
        status, printed = json_of("libgdrapi")
        assert status == 0
        there = {path.name for path in Path(printed["dir"]).iterdir()}
        assert there == {"libgdrapi.so", "libgdrapi.so.2", "pkgconfig"}
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
        monkeypatch.setattr("gdrpy.cli.libgdrapi.LIBRARY", tmp_path / "libgdrapi.so.2")
        assert main(["libgdrapi"]) == 2
        assert capsys.readouterr().err == (
            f"error: there is no {tmp_path}/libgdrapi.so.2: build it by 'make build'\n"
        )


class TestBackend:
    def test_is_the_one_that_the_library_uses_here(self, gdrpy_command):
        done = gdrpy_command("libgdrapi", "--json")
        assert done.returncode == 0
        printed = json.loads(done.stdout)
        assert printed["backend"] == "sim"
        passed_over, using = printed["told"]
        assert passed_over.startswith(PASSED_OVER)
        assert using == "using sim: the simulated GPU is in use"

    def test_that_is_forced_and_cannot_serve_is_none_with_the_reason(self, gdrpy_command):
        done = gdrpy_command("libgdrapi", "--json", GDRPY_BACKEND="gdrdrv")
        assert done.returncode == 0
        printed = json.loads(done.stdout)
        assert printed["backend"] is None
        (told,) = printed["told"]
        assert told.startswith(
            "nothing can map GPU memory here: gdrdrv: the simulated GPU's memory"
        )

    def test_is_among_what_people_read(self, gdrpy_command):
        done = gdrpy_command("libgdrapi")
        assert done.returncode == 0
        assert "\nbackend     sim\n" in done.stdout
        assert f"\n            {PASSED_OVER}" in done.stdout

    def test_of_a_machine_without_cuda_names_that_too(self, gdrpy_command):
        done = gdrpy_command("libgdrapi", "--json", GDRPY_SIM_FAULT="cuInit:1:100")
        assert done.returncode == 0
        assert json.loads(done.stdout)["told"][0].startswith("CUDA cannot be used: cuInit")
