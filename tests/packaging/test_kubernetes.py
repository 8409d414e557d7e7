"""packaging/kubernetes/: what kustomize makes of it, and its pods in namespaces of their own."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from machine_containers import SOCKET_FOLDER, Container, Containers
from pod_security import Pod, violations

FOLDER = Path(__file__).parents[2] / "packaging/kubernetes"
OVERLAYS = ("access", "namespace", "node")
PLAIN = ("client", "policy", "sidecar")
#: The first release with all of it, for the policy, and the newest one.
VERSIONS = ("1.30", kubernetes_validate.latest_version())
#: The image's user, and that of clients.
IMAGE_USER, CLIENT_USER = 10001, 20001

Document = dict[str, Any]

HOLDER = """
import os
import gdrpy
with gdrpy.connect() as broker:
    region = broker.allocate("shared", 6, mode=0o666)
    region.write(b"shared")
    names = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    print(*(os.readlink(f"/proc/self/ns/{name}") for name in names), flush=True)
    input()
    print(region.read(), flush=True)
    input()
"""
READER = """
import os
import gdrpy
from gdrpy import cuda
with gdrpy.connect() as broker:
    with broker.get("shared", gpu=False) as seen:
        print(seen.read())
    with broker.get("shared") as seen, cuda.context(0):
        copied = bytearray(6)
        cuda.call("cuMemcpyDtoH", copied, seen.ptr, 6)
        print(bytes(copied))
        seen.write(b"SHARED")
    names = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    print(*(os.readlink(f"/proc/self/ns/{name}") for name in names))
"""
WAITER = """
import gdrpy
with gdrpy.connect() as broker:
    print(broker.stat("shared").writers, flush=True)
    broker.delete("shared")
    try:
        broker.allocate("all", 4 << 20)
    except gdrpy.QuotaExceeded:
        print("held", flush=True)
    with broker.allocate("all", 4 << 20, wait=60):
        print("free")
"""

ALLOCATOR = """
import sys
import gdrpy
with gdrpy.connect() as broker:
    for name in sys.argv[1:]:
        try:
            broker.allocate(name, 2 << 20)
            print("allocated")
        except gdrpy.QuotaExceeded:
            print("refused")
"""
CONNECTOR = """
import gdrpy
brokers = [gdrpy.connect() for _ in range(200)]
print(len([broker.list() for broker in brokers]), flush=True)
input()
"""


def documents(name: str) -> list[Document]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text()))


@pytest.fixture(scope="session")
def rendered() -> dict[str, list[Document]]:
    """What is applied, by overlay or file."""
    made = {name: list(documents(name)) for name in PLAIN}
    for name in OVERLAYS:
        done = subprocess.run(
            ["kubectl", "kustomize", FOLDER / name], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        made[name] = list(yaml.safe_load_all(done.stdout))
    return made


Rendered = dict[str, list[Document]]


def of_kind(documents: list[Document], kind: str) -> dict[str, Document]:
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


def pods(documents: list[Document]) -> dict[str, Pod]:
    """The pods that there will be, by the name of what makes them."""
    sets = of_kind(documents, "DaemonSet").items()
    return of_kind(documents, "Pod") | {name: one["spec"]["template"] for name, one in sets}


def containers_of(pod: Pod) -> list[Document]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


class TestFiles:
    """Where there is kubectl 1.21 or newer, whose kustomize makes them: Debian has an older one."""

    __test__ = shutil.which("kubectl") is not None

    @pytest.mark.parametrize("version", VERSIONS)
    def test_are_what_the_interface_takes(self, rendered: Rendered, version: str) -> None:
        for applied in rendered.values():
            for document in applied:
                kubernetes_validate.validate(document, version, strict=True)

    def test_with_an_unknown_field_are_not(self) -> None:
        (pod,) = documents("client")
        pod["spec"]["hostPid"] = True
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(pod, VERSIONS[0], strict=True)

    def test_pass_restricted_but_for_the_container_that_makes_the_nodes_folder(
        self, rendered: Rendered
    ) -> None:
        found = {
            f"{name}/{pod}": violations(template, "restricted")
            for name, applied in rendered.items()
            for pod, template in pods(applied).items()
        }
        folder = "spec.initContainers[0].securityContext"
        assert found == {
            "client/gdrpy-client": [],
            "sidecar/gdrpy-sidecar": [],
            "namespace/gdrpy-broker": [],
            "namespace/gdrpy-keeper": [],
            "node/gdrpy-broker": [],
            "node/gdrpy-keeper": [
                f"{folder}.capabilities.add: ['CHOWN', 'FOWNER']",
                f"{folder}.runAsNonRoot: False",
                f"{folder}.runAsUser: 0",
            ],
        }

    def test_pass_the_level_that_their_namespace_enforces(self, rendered: Rendered) -> None:
        (namespace,) = of_kind(rendered["node"], "Namespace").values()
        level = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        assert level == "baseline"
        assert [violations(pod, level) for pod in pods(rendered["node"]).values()] == [[], []]

    def test_of_an_overlay_are_in_its_namespace(self, rendered: Rendered) -> None:
        for overlay, name in {"access": "team-b", "namespace": "team-a", "node": "gdrpy"}.items():
            (volume,) = of_kind(rendered[overlay], "PersistentVolume").values()
            (claim,) = of_kind(rendered[overlay], "PersistentVolumeClaim").values()
            reference = volume["spec"]["claimRef"]
            assert (reference["namespace"], reference["name"]) == (name, claim["metadata"]["name"])
            assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"]
            assert volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""
            inside = [one for one in rendered[overlay] if "namespace" in one["metadata"]]
            assert {one["metadata"]["namespace"] for one in inside} == {name}

    def test_of_access_lead_to_the_nodes_folder_and_those_of_a_namespace_do_not(
        self, rendered: Rendered
    ) -> None:
        folders = {
            overlay: [
                volume["spec"]["hostPath"]["path"]
                for volume in of_kind(rendered[overlay], "PersistentVolume").values()
            ]
            for overlay in OVERLAYS
        }
        assert folders["access"] == folders["node"] == [str(SOCKET_FOLDER)]
        assert folders["namespace"] == [f"{SOCKET_FOLDER}-team-a"]

    def test_bind_the_user_of_every_pod_with_the_claim(self, rendered: Rendered) -> None:
        policy, binding = rendered["policy"]
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        (condition,) = policy["spec"]["matchConditions"]
        for overlay in OVERLAYS:
            (claim,) = of_kind(rendered[overlay], "PersistentVolumeClaim")
            assert f"claimName == '{claim}'" in condition["expression"]

    def test_of_sets_select_their_own_pods(self, rendered: Rendered) -> None:
        for overlay in ("namespace", "node"):
            for name, one in of_kind(rendered[overlay], "DaemonSet").items():
                assert one["spec"]["selector"]["matchLabels"] == {"app": name}
                assert one["spec"]["template"]["metadata"]["labels"] == {"app": name}

    def test_of_pods_mount_the_socket_where_the_image_looks_and_nothing_of_the_node(
        self, rendered: Rendered
    ) -> None:
        for name, applied in rendered.items():
            for pod in pods(applied).values():
                kinds = {
                    one["name"]: [key for key in one if key != "name"]
                    for one in pod["spec"]["volumes"]
                }
                own = "emptyDir" if name == "sidecar" else "persistentVolumeClaim"
                assert kinds.pop("socket") == [own]
                assert set(map(tuple, kinds.values())) <= {("emptyDir",)}
                for container in containers_of(pod):
                    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
                    assert mounted["socket"] == str(SOCKET_FOLDER)
                    assert set(mounted) <= {"socket", *kinds}

    def test_of_pods_ask_nothing_of_the_cluster(self, rendered: Rendered) -> None:
        for applied in rendered.values():
            for pod in pods(applied).values():
                assert pod["spec"]["automountServiceAccountToken"] is False

    def test_run_brokers_as_the_images_user_and_clients_as_another(
        self, rendered: Rendered
    ) -> None:
        for name, applied in rendered.items():
            for pod in pods(applied).values():
                expected = CLIENT_USER if name == "client" else IMAGE_USER
                assert pod["spec"]["securityContext"]["runAsUser"] == expected

    def test_give_the_broker_options_that_it_has(self, rendered: Rendered) -> None:
        (container,) = pods(rendered["namespace"])["gdrpy-broker"]["spec"]["containers"]
        words = [sys.executable, "-m", *container["command"], "--print-unit", "service"]
        unit = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert "--metrics 0.0.0.0:9464" in unit
        assert f"--max-bytes {20 << 30}" in unit
        assert container["ports"] == [{"name": "metrics", "containerPort": 9464}]


def start(containers: Containers, pod: str, name: str, *words: str, **others: Any) -> Container:
    """Starts a container of a pod, with more words."""
    files = ("client", "base/broker", "base/keeper")
    template = pods([one for file in files for one in documents(file)])[pod]
    (container,) = [one for one in containers_of(template) if one["name"] == name]
    mounts = {one["name"]: one for one in container["volumeMounts"]}
    command = [*others.pop("command", container["command"]), *words]
    others.setdefault("user", template["spec"]["securityContext"]["runAsUser"])
    return containers.start(command, readonly=mounts["socket"].get("readOnly", False), **others)


def broker_of(containers: Containers, *limit: str) -> Container:
    """Starts a broker beside a keeper that runs; it has read nothing yet."""
    start(containers, "gdrpy-broker", "keeper").done()
    return start(containers, "gdrpy-broker", "broker", *limit, "--json")


def client_of(containers: Containers, program: str, *words: str, **others: Any) -> Container:
    """Starts a program in a pod of a client."""
    command = ["python", "-P", "-c", program]
    return start(containers, "gdrpy-client", "client", *words, command=command, **others)


@pytest.fixture(scope="class")
def client(containers_of_class: Containers) -> Callable[..., Container]:
    """Starts programs beside one broker, which gives each user 2 MB of the GPU."""
    start(containers_of_class, "gdrpy-keeper", "keeper")
    broker_of(containers_of_class, "--max-bytes-per-user", "2M").line()
    return functools.partial(client_of, containers_of_class)


class TestPods:
    """Each container has namespaces of its own: pid, ipc, mount, net, uts, and a client's user."""

    @pytest.fixture
    def told_apart(self) -> None:
        major, minor = (int(number) for number in os.uname().release.split(".")[:2])
        if (major, minor) < (6, 9):
            pytest.skip("needs Linux 6.9, which numbers the processes of all namespaces")

    def test_share_a_region_by_name_with_the_sockets_folder_alone_in_common(
        self, client: Callable[..., Container]
    ) -> None:
        holder = client(HOLDER, first_user=300000)
        one = holder.line().split()
        cpu, gpu, other = client(READER, first_user=400000).done().splitlines()
        assert cpu == gpu == "b'shared'"
        two = other.split()
        here = [str(Path(f"/proc/self/ns/{found.partition(':')[0]}").readlink()) for found in one]
        apart = [len({*three}) for three in zip(one, two, here, strict=True)]
        assert apart == [1, 3, 3, 3, 3, 3, 3]  # but for the cgroup
        holder.enter()
        assert holder.line() == "b'SHARED'\n"
        assert holder.done("\n") == ""

    @pytest.mark.usefixtures("told_apart")
    def test_of_clients_keep_their_leases_when_the_brokers_is_replaced_until_they_are_killed(
        self, containers: Containers
    ) -> None:
        start(containers, "gdrpy-keeper", "keeper")
        running = broker_of(containers, "--max-bytes", "4M")
        assert json.loads(running.line())["recovered"] == 0
        holder = client_of(containers, HOLDER, first_user=300000)
        holder.line()
        running.stop()
        running = broker_of(containers, "--max-bytes", "4M")
        assert json.loads(running.line())["recovered"] == 1
        waiter = client_of(containers, WAITER, first_user=400000)
        assert (waiter.line(), waiter.line()) == ("1\n", "held\n")
        holder.stop()
        assert waiter.done() == "free\n"

    def test_of_a_sidecar_share_a_folder_that_kubelet_makes(
        self, containers: Containers, tmp_path: Path
    ) -> None:
        (tmp_path / "socket").chmod(0o777)
        (pod,) = documents("sidecar")
        user = pod["spec"]["securityContext"]["runAsUser"]
        for container in pod["spec"]["initContainers"]:
            containers.start(container["command"], user=user, readonly=False)
            probe = shlex.join(container["startupProbe"]["exec"]["command"])
            wait = ["sh", "-c", f"until {probe} 2> /dev/null; do sleep 0.2; done"]  # as kubelet
            containers.start(wait, user=user, readonly=True).done()
        (client,) = pod["spec"]["containers"]
        assert "example" in containers.start(client["command"], user=user, readonly=True).done()

    def test_share_the_limits_of_their_user_and_not_of_their_namespace(
        self, client: Callable[..., Container]
    ) -> None:
        assert client(ALLOCATOR, "a").done() == "allocated\n"
        others = [
            client(ALLOCATOR, "b"),
            client(ALLOCATOR, "c", user=CLIENT_USER + 1),
            client(ALLOCATOR, "d", first_user=500000),  # as hostUsers: false
            client(ALLOCATOR, "e", "f", user=IMAGE_USER),
        ]
        told = [one.done().split() for one in others]
        assert told == [["refused"], ["allocated"], ["allocated"], ["allocated"] * 2]

    @pytest.mark.usefixtures("told_apart")
    def test_of_one_user_have_the_limit_of_a_process_each(
        self, client: Callable[..., Container]
    ) -> None:
        two = [client(CONNECTOR), client(CONNECTOR)]
        assert [one.line() for one in two] == ["200\n", "200\n"]
