"""The checker of the pod security standard: each rule sees what it forbids, and nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from pod_security import Pod, violations

#: A pod that passes ``restricted``, with what many pods have.
GOOD: Pod = {
    "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/a": ""}},
    "spec": {
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            "sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}],
        },
        "containers": [
            {
                "name": "a",
                "ports": [{"containerPort": 80}],
                "livenessProbe": {"httpGet": {"port": 80}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
                },
            }
        ],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    },
}
CONTEXT = "spec.containers[0].securityContext"
FORBIDDEN_BY_BASELINE = {
    "spec.hostNetwork": True,
    "spec.hostPID": True,
    "spec.hostIPC": True,
    "spec.securityContext.windowsOptions.hostProcess": True,
    "spec.securityContext.seccompProfile.type": "Unconfined",
    "spec.securityContext.appArmorProfile.type": "Unconfined",
    "spec.securityContext.seLinuxOptions.type": "spc_t",
    "spec.securityContext.seLinuxOptions.user": "sysadm_u",
    "spec.securityContext.seLinuxOptions.role": "sysadm_r",
    "spec.securityContext.sysctls[0].name": "kernel.msgmax",
    "spec.volumes[0].hostPath": {"path": "/"},
    "spec.containers[0].ports[0].hostPort": 80,
    "spec.containers[0].livenessProbe.httpGet.host": "10.0.0.1",
    "spec.containers[0].lifecycle.preStop.tcpSocket.host": "10.0.0.1",
    f"{CONTEXT}.privileged": True,
    f"{CONTEXT}.capabilities.add": ["SYS_ADMIN"],
    f"{CONTEXT}.procMount": "Unmasked",
    f"{CONTEXT}.seccompProfile.type": "Unconfined",
    "metadata.annotations['container.apparmor.security.beta.kubernetes.io/a']": "unconfined",
}
FORBIDDEN_BY_RESTRICTED = {
    "spec.securityContext.runAsUser": 0,
    "spec.securityContext.runAsNonRoot": False,
    f"{CONTEXT}.runAsUser": 0,
    f"{CONTEXT}.runAsNonRoot": False,
    f"{CONTEXT}.allowPrivilegeEscalation": None,
    f"{CONTEXT}.capabilities.drop": ["NET_RAW"],
    f"{CONTEXT}.capabilities.add": ["CHOWN"],
    "spec.volumes[0]": {"name": "v", "nfs": {"server": "s", "path": "/"}},
}


def changed(path: str, value: Any) -> Pod:
    """The good pod with one field set, or removed if its value is None."""
    pod: Any = copy.deepcopy(GOOD)
    if path.startswith("metadata"):
        pod["metadata"]["annotations"][path.split("'")[1]] = value
        return pod
    *parents, last = path.replace("[0]", ".0").split(".")
    place = pod
    for name in parents:
        place = place[0] if name == "0" else place.setdefault(name, {})
    if value is None:
        del place[last]
    else:
        place[0 if last == "0" else last] = value
    return pod


class TestChecker:
    def test_allows_what_both_levels_allow(self) -> None:
        assert violations(GOOD, "baseline") == violations(GOOD, "restricted") == []

    @pytest.mark.parametrize("path", FORBIDDEN_BY_BASELINE)
    def test_sees_what_baseline_forbids(self, path: str) -> None:
        value = FORBIDDEN_BY_BASELINE[path]
        pod = changed(path, value)
        assert violations(pod, "baseline") == [f"{path}: {value!r}"]
        assert f"{path}: {value!r}" in violations(pod, "restricted")

    @pytest.mark.parametrize("path", FORBIDDEN_BY_RESTRICTED)
    def test_sees_what_restricted_forbids_beyond(self, path: str) -> None:
        value = FORBIDDEN_BY_RESTRICTED[path]
        pod = changed(path, value)
        assert violations(pod, "baseline") == []
        assert violations(pod, "restricted") == [f"{path}: {value!r}"]

    @pytest.mark.parametrize("field", ["runAsNonRoot", "seccompProfile"])
    def test_restricted_needs_it_in_the_pod_or_in_each_container(self, field: str) -> None:
        value = GOOD["spec"]["securityContext"][field]
        pod = changed(f"spec.securityContext.{field}", None)
        (missing,) = violations(pod, "restricted")
        assert missing.startswith(f"{CONTEXT}.{field}")
        pod["spec"]["containers"][0]["securityContext"][field] = value
        assert violations(pod, "restricted") == []

    def test_looks_at_every_kind_of_container(self) -> None:
        for kind in ("initContainers", "ephemeralContainers"):
            container = {"name": "b", "securityContext": {"privileged": True}}
            (found,) = violations(changed(f"spec.{kind}", [container]), "baseline")
            assert found == f"spec.{kind}[0].securityContext.privileged: True"

    def test_lets_a_pod_in_its_own_user_namespace_be_root_there(self) -> None:
        pod = changed("spec.hostUsers", False)
        pod["spec"]["containers"][0]["securityContext"]["runAsUser"] = 0
        del pod["spec"]["securityContext"]["runAsNonRoot"]
        assert violations(pod, "restricted") == []
