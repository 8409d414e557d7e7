"""What rm/engine_abi.h says of the interface is what every release of the driver says."""

import subprocess
from pathlib import Path

import pytest

import releases
from build import CORE, compile_c

RELEASES = {release.first: release.facts for release in releases.read()}

#: The core's structures, and its names of the fields that it uses.
FIELDS = {
    "user_memory": ("host_memory", "root parent object class_id flags address limit status fd"),
    "virtual_params": ("virtual_memory_params", "offset limit address_space"),
    "memory_params": ("gpu_memory_params", "owner attributes size alignment"),
    "channel_params": (
        "channel_params",
        "error=error_notifier ring=ring_va entries=ring_entries flags context_share address_space "
        "userd=userd_memory userd_offset engine",
    ),
    "usermode_params": ("usermode_params", "bar1 privileged"),
    "group_params": ("group_params", "error=error_notifier address_space engine"),
    "copy_params": ("copy_params", "version engine"),
    "class_list": ("class_list", "count list=classes"),
    "copy_caps": ("ce_caps", "engine caps"),
    "schedule": ("schedule", "enable"),
    "group_schedule": ("schedule", "enable"),
    "os_event": ("os_event", "client device fd status"),
    "event_params": ("event_params", "client source class_id index data"),
    "notification": ("notification", "time info32=xid info16=engine status"),
}
#: Of structures that grew: with the older one's name.
GROWN = {
    "map_dma": (
        "client device dma=virtual_memory memory offset length flags flags2 kind address=va status"
    ),
    "unmap_dma": "client device dma=virtual_memory memory flags address=va size status",
}
VALUES = {
    "class.local_memory": "NVRM_CLASS_GPU_MEMORY",
    "class.virtual": "NVRM_CLASS_VIRTUAL_MEMORY",
    "class.user_memory": "NVRM_CLASS_HOST_MEMORY",
    "class.address_space": "NVRM_CLASS_ADDRESS_SPACE",
    "class.event": "NVRM_CLASS_EVENT",
    "class.group": "NVRM_CLASS_CHANNEL_GROUP",
    "ctrl.class_list": "NVRM_CTRL_GET_CLASSES",
    "ctrl.copy_caps": "NVRM_CTRL_GET_CE_CAPS",
    "ctrl.bind": "NVRM_CTRL_BIND",
    "ctrl.schedule": "NVRM_CTRL_SCHEDULE",
    "ctrl.group_schedule": "NVRM_CTRL_SCHEDULE_GROUP",
    "ctrl.set_timeslice": "NVRM_CTRL_SET_TIME_SLICE",
    "ctrl.token": "NVRM_CTRL_GET_TOKEN",
    "nr.register_fd": "_IOC_NR(NVRM_IOCTL_REGISTER_FD)",
    "nr.os_event": "_IOC_NR(NVRM_IOCTL_OS_EVENT)",
    "nr.user_memory": "_IOC_NR(NVRM_IOCTL_HOST_MEMORY)",
    "nr.map_dma": "_IOC_NR(NVRM_IOCTL_MAP_DMA)",
    "nr.unmap_dma": "_IOC_NR(NVRM_IOCTL_UNMAP_DMA)",
    "at.userd.put": "CORE_USERD_PUT",
    **{
        f"size.{fact}": f"sizeof(struct nvrm_{FIELDS[fact][0]})"
        for fact in (
            *("user_memory", "virtual_params", "class_list", "copy_caps", "notification"),
            *("os_event", "event_params"),
        )
    },
}


def offsets(fact: str, struct: str, fields: str) -> dict[str, str]:
    pairs = [(one.split("=")[0], one.split("=")[-1]) for one in fields.split()]
    return {f"at.{fact}.{name}": f"offsetof(struct nvrm_{struct}, {own})" for name, own in pairs}


def expressions(facts: dict[str, str]) -> dict[str, str]:
    """The core's expression for each fact, with the structures that a driver of them takes."""
    found = dict(VALUES)
    for fact, (struct, fields) in FIELDS.items():
        found |= offsets(fact, struct, fields)
    for fact, fields in GROWN.items():
        newest = int(facts[f"size.{fact}"]) == int(RELEASES["595.44.02"][f"size.{fact}"])
        struct = fact if newest else f"{fact}_old"
        there = " ".join(
            one
            for one in fields.split()
            if facts[f"at.{fact}.{one.split('=')[0]}"] != releases.ABSENT
        )
        found |= offsets(fact, struct, there)
        found[f"size.{fact}"] = f"sizeof(struct nvrm_{struct})"
    for fact in ("schedule", "group_schedule"):
        newest = facts[f"size.{fact}"] == "3"
        found[f"size.{fact}"] = (
            "sizeof(struct nvrm_schedule)" if newest else "NVRM_SCHEDULE_OLD_SIZE"
        )
    return found


def values(directory: Path, wanted: list[str]) -> dict[str, int]:
    """What the C expressions come to."""
    prints = "".join(f'printf("%llu\\n", (unsigned long long)({one}));\n' for one in wanted)
    source = directory / "abi.c"
    source.write_text(
        '#include <stdio.h>\n#include "rm/engine_abi.h"\n#include "engine/methods.h"\n'
        f"int main(void)\n{{\n{prints}return 0;\n}}\n"
    )
    compile_c(directory / "abi", [source], [f"-I{CORE}"])
    run = subprocess.run([directory / "abi"], capture_output=True, text=True, check=True)
    return dict(zip(wanted, map(int, run.stdout.split()), strict=True))


@pytest.mark.parametrize("first", RELEASES)
def test_the_engines_interface_is_nvidias(first: str, tmp_path: Path) -> None:
    facts = RELEASES[first]
    wanted = expressions(facts)
    found = values(tmp_path, sorted(set(wanted.values())))
    assert {fact: found[one] for fact, one in wanted.items()} == {
        fact: int(facts[fact], 0) for fact in wanted
    }


@pytest.mark.parametrize("struct", ["memory", "channel", "group", "copy"])
def test_parameters_have_room_for_those_of_every_release(struct: str, tmp_path: Path) -> None:
    own = f"sizeof(struct nvrm_{FIELDS[f'{struct}_params'][0]})"
    most = max(int(facts[f"size.{struct}_params"]) for facts in RELEASES.values())
    assert values(tmp_path, [own])[own] >= most
