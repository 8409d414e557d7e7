"""The pod security standard of Kubernetes 1.37, field by field, for pods of Linux.

The fields and values are those of https://kubernetes.io/docs/concepts/security/pod-security-standards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

Pod = dict[str, Any]
#: Whether a level allows a field's value; None stands for a field that is not set.
Allowed = Callable[[Any], bool]

_CONTAINERS = ("spec.containers[]", "spec.initContainers[]", "spec.ephemeralContainers[]")
_CONTEXTS = tuple(f"{container}.securityContext" for container in _CONTAINERS)
_ALL_CONTEXTS = ("spec.securityContext", *_CONTEXTS)
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"

_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
    *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
_SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
}
_SELINUX_TYPES = {
    *(None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
}
_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
    *("persistentVolumeClaim", "projected", "secret"),
}
_PROFILES = {"RuntimeDefault", "Localhost"}


def violations(pod: Pod, level: str) -> list[str]:
    """The fields of a pod that a level, ``baseline`` or ``restricted``, forbids, with their values.

    A pod is its metadata and its spec: a Pod, or the template of a set.
    """
    rules = _baseline(pod) if level == "baseline" else [*_baseline(pod), *_restricted(pod)]
    forbidden = [
        f"{at}: {value!r}"
        for paths, allowed in rules
        for path in paths
        for at, value in _fields(pod, path)
        if not allowed(value)
    ]
    return sorted({*forbidden, *_annotations(pod), *(_needed(pod) if level != "baseline" else [])})


def _fields(value: Any, path: str, at: str = "") -> Iterator[tuple[str, Any]]:
    """Each field that a path names, and its value: ``[]`` stands for every element of a list."""
    name, _, rest = path.partition(".")
    key = name.removesuffix("[]")
    place = f"{at}.{key}" if at else key
    found = (value or {}).get(key)
    if name == key:
        places = [(place, found)]
    else:
        places = [(f"{place}[{number}]", one) for number, one in enumerate(found or [])]
    for where, one in places:
        yield from _fields(one, rest, where) if rest else [(where, one)]


def _in(*values: Any) -> Allowed:
    return lambda value: value in values


def _within(names: set[str]) -> Allowed:
    return lambda value: set(value or []) <= names


def _each(parents: tuple[str, ...], *fields: str) -> list[str]:
    return [f"{parent}.{field}" for parent in parents for field in fields]


def _in_user_namespace(pod: Pod) -> bool:
    return pod["spec"].get("hostUsers") is False


def _baseline(pod: Pod) -> list[tuple[list[str], Allowed]]:
    probes = ("livenessProbe", "readinessProbe", "startupProbe")
    handlers = (*probes, "lifecycle.postStart", "lifecycle.preStop")
    hosts = [f"{handler}.{way}.host" for handler in handlers for way in ("httpGet", "tcpSocket")]
    unset_or_false, unset_or_empty = _in(None, False), _in(None, "")
    rules = [
        (_each(_ALL_CONTEXTS, "windowsOptions.hostProcess"), unset_or_false),
        (["spec.hostNetwork", "spec.hostPID", "spec.hostIPC"], unset_or_false),
        (_each(_CONTEXTS, "privileged"), unset_or_false),
        (_each(_CONTEXTS, "capabilities.add"), _within(_CAPABILITIES)),
        (["spec.volumes[].hostPath"], _in(None)),
        (_each(_CONTAINERS, "ports[].hostPort"), _in(None, 0)),
        (_each(_CONTAINERS, *hosts), unset_or_empty),
        (_each(_ALL_CONTEXTS, "appArmorProfile.type"), _in(None, *_PROFILES)),
        (_each(_ALL_CONTEXTS, "seLinuxOptions.type"), _in(*_SELINUX_TYPES)),
        (_each(_ALL_CONTEXTS, "seLinuxOptions.user", "seLinuxOptions.role"), unset_or_empty),
        (_each(_ALL_CONTEXTS, "seccompProfile.type"), _in(None, *_PROFILES)),
        (["spec.securityContext.sysctls[].name"], _in(*_SYSCTLS)),
    ]
    if not _in_user_namespace(pod):
        rules.append((_each(_CONTEXTS, "procMount"), _in(None, "Default")))
    return rules


def _restricted(pod: Pod) -> list[tuple[list[str], Allowed]]:
    rules = [
        (["spec.volumes[]"], lambda volume: set(volume) - {"name"} <= _VOLUMES),
        (_each(_CONTEXTS, "allowPrivilegeEscalation"), _in(False)),
        (_each(_CONTEXTS, "capabilities.drop"), lambda value: "ALL" in (value or [])),
        (_each(_CONTEXTS, "capabilities.add"), _within({"NET_BIND_SERVICE"})),
        (_each(_CONTEXTS, "procMount"), _in(None, "Default")),
    ]
    if not _in_user_namespace(pod):
        rules.append((_each(_ALL_CONTEXTS, "runAsNonRoot"), _in(None, True)))
        rules.append((_each(_ALL_CONTEXTS, "runAsUser"), lambda value: value != 0))
    return rules


def _needed(pod: Pod) -> Iterator[str]:
    """Fields that ``restricted`` requires of each container, or else of its pod."""
    needed = ["seccompProfile.type"] + ["runAsNonRoot"] * (not _in_user_namespace(pod))
    for field in needed:
        ((_, general),) = _fields(pod, f"spec.securityContext.{field}")
        for path in _each(_CONTEXTS, field) if general is None else []:
            yield from (f"{at}: None" for at, value in _fields(pod, path) if value is None)


def _annotations(pod: Pod) -> Iterator[str]:
    """Profiles of AppArmor, as clusters before 1.30 are told them."""
    for name, value in (pod.get("metadata", {}).get("annotations") or {}).items():
        if name.startswith(_APPARMOR) and not re.match(r"$|runtime/default$|localhost/", value):
            yield f"metadata.annotations[{name!r}]: {value!r}"
