"""packaging/: the image's steps, and containers that share a broker, without a container engine.

The steps run in a copy of this machine, and the containers' commands in namespaces of their own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from machine_copy import Machine, Machines

FOLDER = Path(__file__).parents[2] / "packaging"
SOCKET_FOLDER = "/run/gdrpy"
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


def instructions() -> dict[str, list[str]]:
    """What the Dockerfile says, by kind, each on one line."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE)
    found: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        kind, _, words = line.partition(" ")
        found.setdefault(kind, []).append(words.strip())
    return found


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


class Container:
    """A command of a service in namespaces of its own, as a container engine would start it."""

    def __init__(self, service: dict[str, Any], folder: Path, *words: str) -> None:
        readonly = any(volume.endswith(":ro") for volume in service["volumes"])
        mount = 'mount --bind "$0" "$0"' + ' && mount -o remount,bind,ro "$0"' * readonly
        namespaces = ["--mount", "--net", "--ipc", "--uts"]
        if service.get("pid") != "host":
            namespaces += ["--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [word.replace(SOCKET_FOLDER, str(folder)) for word in service["command"]]
        self.process = subprocess.Popen(
            ["unshare", *namespaces, "sh", "-c", f'{mount} && exec "$@"', folder, *command, *words],
            env=os.environ
            | {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "GDRPY_SOCKET": str(folder / "broker.sock"),
                "GDRPY_SIM": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def stop(self) -> None:
        """What an engine does with the image's STOPSIGNAL."""
        with self.process:
            self.process.send_signal(signal.SIGKILL)

    def done(self) -> str:
        """What it prints, if it succeeds."""
        printed, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return printed


class TestContainers:
    @pytest.fixture
    def start(
        self, need: Callable[..., None], tmp_path: Path
    ) -> Iterator[Callable[..., Container]]:
        """Starts a service of compose.yaml, or another command of it, with more words."""
        need("util-linux")
        if os.geteuid():
            pytest.skip("needs root, to make namespaces")
        started: list[Container] = []

        def start(name: str, *words: str, command: list[str] | None = None) -> Container:
            service = COMPOSE["services"][name]
            made = Container(service | {"command": command or service["command"]}, tmp_path, *words)
            started.append(made)
            return made

        yield start
        for container in reversed(started):
            container.stop()

    def test_share_regions_that_outlive_the_brokers_container(
        self, start: Callable[..., Container]
    ) -> None:
        assert instructions()["STOPSIGNAL"] == ["SIGKILL"]
        start("keeper")
        pod = documents("broker.yaml")[0]["spec"]["template"]["spec"]
        start("client", command=pod["initContainers"][0]["command"]).done()
        broker = start("broker", "--json")
        assert json.loads(broker.line())["recovered"] == 0
        holder = start("client", command=["python", "-P", "-c", HOLDER])
        assert holder.line() == "written\n"
        broker.stop()
        broker = start("broker", "--json")
        assert json.loads(broker.line())["recovered"] == 1
        assert start("client", command=["python", "-P", "-c", READER]).done() == "b'shared'\n"
        assert holder.process.communicate("\n", timeout=60)[0] == "1\n"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / "kubernetes" / name).read_text()))


def pods() -> dict[str, dict[str, Any]]:
    """The specifications of all pods, by name."""
    _, keeper = documents("keeper.yaml")
    (broker,) = documents("broker.yaml")
    (client,) = documents("client.yaml")
    sets = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in (keeper, broker)}
    return sets | {"client": client["spec"]}


def containers() -> list[Any]:
    """All of them, each with its pod's name."""
    return [
        pytest.param(pod, container, id=f"{name}-{container['name']}")
        for name, pod in pods().items()
        for container in [*pod.get("initContainers", []), *pod["containers"]]
    ]


class TestKubernetes:
    def test_sets_select_their_own_pods(self) -> None:
        for one in (documents("keeper.yaml")[1], *documents("broker.yaml")):
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"] == labels
            assert one["metadata"]["namespace"] == "gdrpy"

    def test_all_pods_share_the_nodes_folder(self) -> None:
        for pod in pods().values():
            paths = [volume.get("hostPath", {}).get("path") for volume in pod["volumes"]]
            assert SOCKET_FOLDER in paths

    def test_no_pod_asks_the_cluster(self) -> None:
        assert {pod["automountServiceAccountToken"] for pod in pods().values()} == {False}

    @pytest.mark.parametrize(("pod", "container"), containers())
    def test_containers_mount_volumes_that_there_are(self, pod, container) -> None:
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert mounted <= {volume["name"] for volume in pod["volumes"]}

    @pytest.mark.parametrize(("pod", "container"), containers())
    def test_containers_run_as_the_images_user_but_to_make_the_folder(self, pod, container) -> None:
        (user,) = instructions()["USER"]
        expected = 0 if container["name"] == "folder" else int(user.partition(":")[0])
        assert container["securityContext"]["runAsUser"] == expected

    def test_the_brokers_options_are_options(self, tmp_path: Path) -> None:
        (broker,) = pods()["broker"]["containers"]
        assert broker["command"][:2] == json.loads(instructions()["CMD"][0])
        words = [sys.executable, "-m", *broker["command"], "--print-unit", "service"]
        unit = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert "--metrics 0.0.0.0:9464" in unit
        assert broker["ports"] == [{"name": "metrics", "containerPort": 9464}]
