"""packaging/: the image's steps, and the services of Compose, without a container engine."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from machine_containers import Container, Containers, instructions
from machine_copy import Machine, Machines

from gdrpy.cli import main

FOLDER = Path(__file__).parents[2] / "packaging"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())

HOLDER = """
import gdrpy
broker = gdrpy.connect()
region = broker.allocate("shared", 6)
region.write(b"shared")
print("written", flush=True)
input()
print(broker.stat("shared").writers)
"""
READER = "import gdrpy; print(gdrpy.connect().get('shared', gpu=False).read())"


class TestDockerfile:
    """Its steps, on a copy of this machine with this machine's Python in place of its base's."""

    @pytest.fixture
    def machine(self, need: Callable[..., None], tmp_path: Path) -> Iterator[Machine]:
        need("mount")
        if os.geteuid():
            pytest.skip("needs root, to copy the machine")
        machines = Machines(tmp_path)
        yield machines.copy()
        machines.close()

    def test_makes_an_image_that_serves_as_its_user(self, machine: Machine, dist) -> None:
        said = instructions()
        assert said["FROM"] == ["python:3.12-slim"]
        machine.run("rm", "-rf", "/run/gdrpy")  # of a broker that this machine itself ran
        machine.run("mkdir", "/dist")
        for wheel in (dist.x86_64, dist.aarch64):
            machine.run("mv", machine.put(wheel), "/dist")
        path = f"PATH={Path(sys.base_prefix, 'bin')}:/usr/sbin:/usr/bin:/sbin:/bin"
        machine.run("chmod", "0755", "/root")  # where that Python may lie
        for step in said["RUN"]:
            machine.run(
                "env", path, "sh", "-ec", step.removeprefix("--mount=type=bind,target=/dist")
            )
        (variables,), (user,), (command,) = said["ENV"], said["USER"], said["CMD"]
        uid, gid = user.split(":")
        script = f"""
            mkfifo /tmp/ready
            {shlex.join(json.loads(command))} --json > /tmp/ready &
            read ready < /tmp/ready
            gdrpy alloc example 1M > /tmp/told
            gdrpy ls --json
            kill $!
        """
        printed = machine.run(
            *("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"),
            *("env", "-i", path, *variables.split(), "GDRPY_SIM=1", "sh", "-ec", script),
        )
        (region,) = json.loads(printed)["regions"]
        assert (region["name"], region["uid"]) == ("example", int(uid))

    def test_has_a_user_beside_whom_the_pages_ranges_can_be_mapped(self, monkeypatch, capsys):
        ((uid, _),) = (words.split(":") for words in instructions()["USER"])
        page = (FOLDER.parent / "docs/broker.md").read_text()
        (ranges,) = re.findall(r"`((?:--map-users \S+ ?){2})`", page)
        monkeypatch.setattr(os, "geteuid", lambda: int(uid))
        assert main(["serve", *ranges.split(), "--print-unit", "service"]) == 0
        assert ranges in capsys.readouterr().out


class TestContainers:
    @pytest.fixture
    def start(self, containers: Containers) -> Callable[..., Container]:
        """Starts a service of compose.yaml, or another command of it, with more words."""
        (user,) = instructions()["USER"]

        def start(name: str, *words: str, command: list[str] | None = None) -> Container:
            service = COMPOSE["services"][name]
            (volume,) = service["volumes"]
            return containers.start(
                [*(command or service["command"]), *words],
                user=int(user.partition(":")[0]),
                readonly=volume.endswith(":ro"),
            )

        return start

    def test_share_regions_that_outlive_the_brokers_container(
        self, start: Callable[..., Container]
    ) -> None:
        assert instructions()["STOPSIGNAL"] == ["SIGKILL"]
        keeper = start("keeper")
        healthy, *words = COMPOSE["services"]["keeper"]["healthcheck"]["test"]
        assert healthy == "CMD"
        start("client", command=["sh", "-c", f"until {shlex.join(words)}; do :; done"]).done()
        broker = start("broker", "--json")
        assert json.loads(broker.line())["recovered"] == 0
        holder = start("client", command=["python", "-P", "-c", HOLDER])
        assert holder.line() == "written\n"
        broker.stop()
        broker = start("broker", "--json")
        assert json.loads(broker.line())["recovered"] == 1
        assert start("client", command=["python", "-P", "-c", READER]).done() == "b'shared'\n"
        assert holder.done("\n") == "1\n"
        assert keeper.process.poll() is None

    def test_take_nothing_of_the_machine(self) -> None:
        allowed = {"image", "command", "gpus", "volumes", "profiles", "restart"}
        allowed |= {"depends_on", "healthcheck", "cap_drop", "security_opt"}
        for service in COMPOSE["services"].values():
            assert set(service) <= allowed
            assert service["cap_drop"] == ["ALL"]
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert [volume.partition(":")[0] for volume in service["volumes"]] == ["socket"]
