"""What ``gdrpy serve --print-cdi`` prints for container engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gdrpy.cli import main

DOCKERFILE = Path(__file__).parents[2] / "packaging/Dockerfile"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["serve", "--print-cdi", *words]) == 0
    return json.loads(capsys.readouterr().out)


def edits(specification: Any) -> dict[str, Any]:
    return {one["name"]: one["containerEdits"] for one in specification["devices"]}


class TestSpecification:
    def test_uses_nothing_newer_than_its_version(self, capsys) -> None:
        """Since 0.4 mounts have a type, since 0.5 nodes a hostPath, since 0.6 classes a dot."""
        specification = printed(capsys)
        assert set(specification) == {"cdiVersion", "kind", "devices"}
        assert (specification["cdiVersion"], specification["kind"]) == ("0.3.0", "gdrpy/gdrpy")
        mount = {"hostPath", "containerPath", "options"}
        for device in ("client", "broker"):
            assert [set(one) for one in edits(specification)[device]["mounts"]] == [mount]

    def test_gives_brokers_and_clients_the_folder_where_the_image_looks(self, capsys) -> None:
        found = edits(printed(capsys))
        for device, access in {"client": "ro", "broker": "rw"}.items():
            (mount,) = found[device]["mounts"]
            assert mount["hostPath"] == mount["containerPath"] == "/run/gdrpy"
            assert mount["options"][:2] == ["bind", access]
            (variable,) = found[device]["env"]
            assert f"ENV {variable}" in DOCKERFILE.read_text()

    def test_gives_the_modules_node_by_itself(self, capsys) -> None:
        assert edits(printed(capsys))["gdrdrv"] == {"deviceNodes": [{"path": "/dev/gdrdrv"}]}

    def test_of_another_broker_has_another_kind_and_the_same_place(
        self, capsys, tmp_path: Path
    ) -> None:
        folder = tmp_path / "gdrpy-team-a"
        folder.mkdir()
        specification = printed(capsys, "--socket", f"{folder}/my.sock")
        assert specification["kind"] == "gdrpy/gdrpy-team-a"
        client = edits(specification)["client"]
        assert client["env"] == ["GDRPY_SOCKET=/run/gdrpy/my.sock"]
        (mount,) = client["mounts"]
        assert (mount["hostPath"], mount["containerPath"]) == (str(folder), "/run/gdrpy")

    @pytest.mark.parametrize("name", ["a b", "1st", "a.b", "a-"])
    def test_of_a_folder_that_cannot_name_a_kind_is_refused(
        self, capsys, tmp_path: Path, name: str
    ) -> None:
        (tmp_path / name).mkdir()
        assert main(["serve", "--print-cdi", "--socket", f"{tmp_path / name}/my.sock"]) == 2
        assert f"--print-cdi: {name!r}, the folder of" in capsys.readouterr().err

    def test_is_a_string_in_json(self, capsys) -> None:
        specification = printed(capsys)
        assert json.loads(printed(capsys, "--json")["cdi"]) == specification
