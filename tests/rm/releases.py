#!/usr/bin/env python3
"""Write releases.tsv: what NVIDIA's drivers say of their interface, by the branch of the release.

    tests/rm/releases.py SOURCE... > tests/rm/releases.tsv

SOURCE is the source of NVIDIA's open kernel modules: the folder of one release (unpacked, or of a
Debian package of the nvidia-open-kernel-source kind), or a clone of
github.com/NVIDIA/open-gpu-kernel-modules, of which each tag from 535 on is taken. The headers are
compiled, so gcc is needed; which questions the kernel answers is read from its C sources. Only the
numbers are kept.

A line is a fact and its value in each branch, "-" where the branch lacks it. The names are those of
gdrpy/_core/rm/abi.h, in small letters: ``size.map`` is that of struct nvrm_map, ``at.map.fd`` the
offset of a field. A branch whose releases disagree has one column for each run of them.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("releases.tsv")
OLDEST = 535
ABSENT = "-"

INCLUDE = ("src/nvidia/arch/nvalloc/unix/include", "src/common/sdk/nvidia/inc")
GENERATED = "src/nvidia/generated"
SURFACE_SOURCE = "src/nvidia/src/kernel/gpu/mem_mgr/mem_ctrl.c"
HEADERS = (
    "nvtypes.h nvlimits.h nvos.h nvstatus.h nv-ioctl.h nv-ioctl-numbers.h nv_escape.h "
    "nv-unix-nvos-params-wrappers.h class/cl0041.h class/cl0080.h class/cl2080.h class/clc637.h "
    "class/clcb33.h ctrl/ctrl0000/ctrl0000gpu.h ctrl/ctrl0000/ctrl0000unix.h ctrl/ctrl0041.h "
    "ctrl/ctrl0080/ctrl0080gpu.h ctrl/ctrlcb33.h alloc/alloc_channel.h class/cl0005.h "
    "class/cl003e.h class/cl0040.h class/cl0070.h class/cl0071.h class/cl90f1.h class/cla06c.h "
    "class/clb0b5sw.h class/clc661.h class/clc86f.h class/clc8b5.h ctrl/ctrl2080/ctrl2080ce.h "
    "ctrl/ctrla06c.h ctrl/ctrla06f/ctrla06fgpfifo.h ctrl/ctrlc36f.h"
)

#: Structures: NVIDIA's type, and NVIDIA's name of each field.
STRUCTURES = {
    "alloc": (
        "NVOS21_PARAMETERS",
        "root=hRoot parent=hObjectParent object=hObjectNew class_id=hClass params=pAllocParms "
        "params_size=paramsSize status=status",
    ),
    "free": (
        "NVOS00_PARAMETERS",
        "root=hRoot parent=hObjectParent object=hObjectOld status=status",
    ),
    "control": (
        "NVOS54_PARAMETERS",
        "client=hClient object=hObject command=cmd flags=flags params=params "
        "params_size=paramsSize status=status",
    ),
    "dup": (
        "NVOS55_PARAMETERS",
        "client=hClient parent=hParent object=hObject source_client=hClientSrc "
        "source_object=hObjectSrc flags=flags status=status",
    ),
    "map": (
        "nv_ioctl_nvos33_parameters_with_fd",
        "client=params.hClient device=params.hDevice memory=params.hMemory offset=params.offset "
        "length=params.length linear=params.pLinearAddress status=params.status "
        "flags=params.flags fd=fd",
    ),
    "unmap": (
        "NVOS34_PARAMETERS",
        "client=hClient device=hDevice memory=hMemory linear=pLinearAddress status=status "
        "flags=flags",
    ),
    "card_info": (
        "nv_ioctl_card_info_t",
        "valid=valid domain=pci_info.domain bus=pci_info.bus slot=pci_info.slot gpu_id=gpu_id "
        "minor=minor_number",
    ),
    "device_params": (
        "NV0080_ALLOC_PARAMETERS",
        "device_instance=deviceId client_share=hClientShare target_client=hTargetClient "
        "target_device=hTargetDevice flags=flags va_space_size=vaSpaceSize "
        "va_start=vaStartInternal va_limit=vaLimitInternal va_mode=vaMode",
    ),
    "subdevice_params": ("NV2080_ALLOC_PARAMETERS", "sub_device=subDeviceId"),
    "instance_params": ("NVC637_ALLOCATION_PARAMETERS", "capability=capDescriptor id=swizzId"),
    "gpu_id_info": (
        "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS",
        "gpu_id=gpuId device_instance=deviceInstance",
    ),
    "export_info": (
        "NV0000_CTRL_OS_UNIX_GET_EXPORT_OBJECT_INFO_PARAMS",
        "fd=fd device_instance=deviceInstance gpu_instance=gpuInstanceId max_objects=maxObjects "
        "metadata=metadata",
    ),
    "import": (
        "NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS",
        "fd=fd parent=hParent objects=objects types=objectTypes count=numObjects index=index",
    ),
    "surface_entry": ("NV0041_CTRL_SURFACE_INFO", "index=index value=data"),
    "surface_info": (
        "NV0041_CTRL_GET_SURFACE_INFO_PARAMS",
        "count=surfaceInfoListSize entries=surfaceInfoList",
    ),
    "confidential": (
        "NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES_PARAMS",
        "feature=ccFeature multi_gpu=multiGpuMode",
    ),
    "virtualization": (
        "NV0080_CTRL_GPU_GET_VIRTUALIZATION_MODE_PARAMS",
        "mode=virtualizationMode",
    ),
}

#: The same of channels: what a copy engine without CUDA takes.
CHANNEL_STRUCTURES = {
    "register_fd": ("nv_ioctl_register_fd_t", "fd=ctl_fd"),
    "os_event": ("nv_ioctl_alloc_os_event_t", "client=hClient device=hDevice fd=fd status=Status"),
    "user_memory": (
        "nv_ioctl_nvos02_parameters_with_fd",
        "root=params.hRoot parent=params.hObjectParent object=params.hObjectNew "
        "class_id=params.hClass flags=params.flags address=params.pMemory limit=params.limit "
        "status=params.status fd=fd",
    ),
    "map_dma": (
        "NVOS46_PARAMETERS",
        "client=hClient device=hDevice dma=hDma memory=hMemory offset=offset length=length "
        "flags=flags flags2=flags2 kind=kindOverride address=dmaOffset status=status",
    ),
    "unmap_dma": (
        "NVOS47_PARAMETERS",
        "client=hClient device=hDevice dma=hDma memory=hMemory flags=flags address=dmaOffset "
        "size=size status=status",
    ),
    "address_space_params": (
        "NV_VASPACE_ALLOCATION_PARAMETERS",
        "index=index flags=flags size=vaSize base=vaBase",
    ),
    "virtual_params": (
        "NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS",
        "offset=offset limit=limit address_space=hVASpace",
    ),
    "memory_params": (
        "NV_MEMORY_ALLOCATION_PARAMS",
        "owner=owner type=type flags=flags attributes=attr attributes2=attr2 size=size "
        "alignment=alignment",
    ),
    "channel_params": (
        "NV_CHANNEL_ALLOC_PARAMS",
        "error=hObjectError buffer=hObjectBuffer ring=gpFifoOffset entries=gpFifoEntries "
        "flags=flags context_share=hContextShare address_space=hVASpace userd=hUserdMemory "
        "userd_offset=userdOffset engine=engineType",
    ),
    "group_params": (
        "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
        "error=hObjectError ecc_error=hObjectEccError address_space=hVASpace engine=engineType",
    ),
    "copy_params": ("NVB0B5_ALLOCATION_PARAMETERS", "version=version engine=engineType"),
    "usermode_params": ("NV_HOPPER_USERMODE_A_PARAMS", "bar1=bBar1Mapping privileged=bPriv"),
    "event_params": (
        "NV0005_ALLOC_PARAMETERS",
        "client=hParentClient source=hSrcResource class_id=hClass index=notifyIndex data=data",
    ),
    "class_list": ("NV0080_CTRL_GPU_GET_CLASSLIST_PARAMS", "count=numClasses list=classList"),
    "copy_caps": ("NV2080_CTRL_CE_GET_CAPS_V2_PARAMS", "engine=ceEngineType caps=capsTbl"),
    "bind": ("NVA06F_CTRL_BIND_PARAMS", "engine=engineType"),
    "schedule": ("NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS", "enable=bEnable"),
    "group_schedule": ("NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS", "enable=bEnable"),
    "timeslice": ("NVA06C_CTRL_TIMESLICE_PARAMS", "us=timesliceUs"),
    "token": ("NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS", "token=workSubmitToken"),
    "notification": ("NvNotification", "time=timeStamp info32=info32 info16=info16 status=status"),
    "userd": ("Nvc86fControl", "get=GPGet put=GPPut"),
}

VALUES = {
    "nr.free": "NV_ESC_RM_FREE",
    "nr.control": "NV_ESC_RM_CONTROL",
    "nr.alloc": "NV_ESC_RM_ALLOC",
    "nr.dup": "NV_ESC_RM_DUP_OBJECT",
    "nr.map": "NV_ESC_RM_MAP_MEMORY",
    "nr.unmap": "NV_ESC_RM_UNMAP_MEMORY",
    "nr.card_info": "NV_ESC_CARD_INFO",
    "class.root_client": "NV01_ROOT_CLIENT",
    "class.device": "NV01_DEVICE_0",
    "class.subdevice": "NV20_SUBDEVICE_0",
    "class.instance": "AMPERE_SMC_PARTITION_REF",
    "class.confidential": "NV_CONFIDENTIAL_COMPUTE",
    "ctrl.gpu_get_id_info_v2": "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2",
    "ctrl.get_export_object_info": "NV0000_CTRL_CMD_OS_UNIX_GET_EXPORT_OBJECT_INFO",
    "ctrl.import_objects_from_fd": "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECTS_FROM_FD",
    "ctrl.get_surface_info": "NV0041_CTRL_CMD_GET_SURFACE_INFO",
    "ctrl.get_confidential": "NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES",
    "ctrl.get_virtualization": "NV0080_CTRL_CMD_GPU_GET_VIRTUALIZATION_MODE",
    "max_cards": "NV_MAX_DEVICES",
    "max_import": "NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_TO_FD_MAX_OBJECTS",
    "object_video_memory": "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_TYPE_VIDMEM",
    "virtualization_guest": "NV0080_CTRL_GPU_VIRTUALIZATION_MODE_VGX",
    "surface_size": "NV0041_CTRL_SURFACE_INFO_INDEX_PHYS_SIZE",
    "surface_size_unit": "NV0041_CTRL_SURFACE_INFO_PHYS_SIZE_SCALE_FACTOR",
    "status.insufficient_resources": "NV_ERR_INSUFFICIENT_RESOURCES",
    "status.insufficient_permissions": "NV_ERR_INSUFFICIENT_PERMISSIONS",
    "status.invalid_argument": "NV_ERR_INVALID_ARGUMENT",
    "status.invalid_object_handle": "NV_ERR_INVALID_OBJECT_HANDLE",
    "status.invalid_parameter": "NV_ERR_INVALID_PARAMETER",
    "status.no_memory": "NV_ERR_NO_MEMORY",
    "status.not_supported": "NV_ERR_NOT_SUPPORTED",
    "status.object_not_found": "NV_ERR_OBJECT_NOT_FOUND",
}

CHANNEL_VALUES = {
    "nr.register_fd": "NV_ESC_REGISTER_FD",
    "nr.os_event": "NV_ESC_ALLOC_OS_EVENT",
    "nr.free_os_event": "NV_ESC_FREE_OS_EVENT",
    "nr.user_memory": "NV_ESC_RM_ALLOC_MEMORY",
    "nr.map_dma": "NV_ESC_RM_MAP_MEMORY_DMA",
    "nr.unmap_dma": "NV_ESC_RM_UNMAP_MEMORY_DMA",
    "class.local_memory": "NV01_MEMORY_LOCAL_USER",
    "class.virtual": "NV01_MEMORY_VIRTUAL",
    "class.user_memory": "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR",
    "class.event": "NV01_EVENT_OS_EVENT",
    "class.address_space": "FERMI_VASPACE_A",
    "class.group": "KEPLER_CHANNEL_GROUP_A",
    "class.usermode": "HOPPER_USERMODE_A",
    "class.channel": "HOPPER_CHANNEL_GPFIFO_A",
    "class.copy": "HOPPER_DMA_COPY_A",
    "ctrl.class_list": "NV0080_CTRL_CMD_GPU_GET_CLASSLIST",
    "ctrl.copy_caps": "NV2080_CTRL_CMD_CE_GET_CAPS_V2",
    "ctrl.bind": "NVA06F_CTRL_CMD_BIND",
    "ctrl.schedule": "NVA06F_CTRL_CMD_GPFIFO_SCHEDULE",
    "ctrl.group_schedule": "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE",
    "ctrl.set_timeslice": "NVA06C_CTRL_CMD_SET_TIMESLICE",
    "ctrl.get_timeslice": "NVA06C_CTRL_CMD_GET_TIMESLICE",
    "ctrl.token": "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN",
    "engine_copy0": "NV2080_ENGINE_TYPE_COPY0",
    "notifier_copy0": "NV2080_NOTIFIERS_CE0",
}

#: Which indices the kernel's own switch answers; not each that a header names is.
SURFACE_CASES = "surface_answered"


class Release(NamedTuple):
    """A column of the table: releases of one branch that agree, the oldest and the newest."""

    first: str
    last: str
    facts: dict[str, str]


def read() -> list[Release]:
    """The table, the oldest first."""
    lines = [line.split("\t") for line in TABLE.read_text().splitlines()]
    columns = [
        dict(zip((line[0] for line in lines), column, strict=True))
        for column in zip(*(line[1:] for line in lines), strict=True)
    ]
    return [Release(column.pop("first"), column.pop("last"), column) for column in columns]


def mapping_facts(facts: dict[str, str]) -> dict[str, str]:
    """What mapping memory takes: the facts without those of channels."""
    channels = layouts(CHANNEL_STRUCTURES) | CHANNEL_VALUES
    return {name: value for name, value in facts.items() if name not in channels}


def facts_of(source: Path) -> dict[str, str]:
    """What one release's sources say."""
    facts = compiled(source)
    dispatched = {
        int(number, 0)
        for file in (source / GENERATED).glob("g_*_nvoc.c")
        for number in re.findall(r"methodId=\*/\s*(0x[0-9a-f]+)u", file.read_text())
    }
    for name, value in facts.items():
        if name.startswith("ctrl.") and int(value, 0) not in dispatched:
            facts[name] = ABSENT
    facts[SURFACE_CASES] = surface_cases(source)
    return facts


def compiled(source: Path) -> dict[str, str]:
    """The values of NVIDIA's macros and layouts; what is not there is ABSENT."""
    wanted = {
        **layouts(STRUCTURES),
        **VALUES,
        **layouts(CHANNEL_STRUCTURES),
        **CHANNEL_VALUES,
    }
    errors = gcc(source, wanted.values(), "-fsyntax-only").stderr
    absent = {int(line) for line in re.findall(r"^facts:(\d+):\d+: error", errors, re.MULTILINE)}
    there = {name: text for at, (name, text) in enumerate(wanted.items(), 1) if at not in absent}
    numbers = evaluate(source, *there.values())
    shown = {
        name: str(number) if name.startswith(("size.", "at.")) else hex(number)
        for name, number in zip(there, numbers, strict=True)
    }
    return {name: shown.get(name, ABSENT) for name in wanted}


def layouts(structures: dict[str, tuple[str, str]]) -> dict[str, str]:
    """The C expressions of the sizes and the fields' offsets."""
    return {
        **{f"size.{name}": f"sizeof({type_})" for name, (type_, _) in structures.items()},
        **{
            f"at.{name}.{ours}": f"__builtin_offsetof({type_}, {theirs})"
            for name, (type_, fields) in structures.items()
            for ours, theirs in (field.split("=") for field in fields.split())
        },
    }


def surface_cases(source: Path) -> str:
    """The indices that GET_SURFACE_INFO answers, with commas."""
    text = (source / SURFACE_SOURCE).read_text()
    cases = re.findall(r"case (NV0041_CTRL_SURFACE_INFO_INDEX_\w+):", text)
    return ",".join(map(str, sorted(evaluate(source, *cases))))


def evaluate(source: Path, *expressions: str) -> list[int]:
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/program"
        gcc(source, expressions, "-o", program).check_returncode()
        printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return [int(line) for line in printed.splitlines()]


def gcc(
    source: Path, expressions: Iterable[str], *options: str
) -> "subprocess.CompletedProcess[str]":
    """Compile a program that prints the values of the expressions."""
    headers = "".join(f"#include <{header}>\n" for header in HEADERS.split())
    prints = "".join(f'printf("%llu\\n", (unsigned long long)({one}));\n' for one in expressions)
    return subprocess.run(
        ["gcc", "-w", "-x", "c", "-", *(f"-I{source / folder}" for folder in INCLUDE), *options],
        input=f"#include <stdio.h>\n{headers}int main(void)\n{{\n"
        f'#line 1 "facts"\n{prints}return 0;\n}}\n',
        capture_output=True,
        text=True,
    )


def version_key(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def releases(source: Path) -> Iterator[tuple[str, Path]]:
    """Each release in a SOURCE: its version, and a folder with what facts_of() reads."""
    tags = git(source, "tag")
    if tags is None:
        (makefile,) = sorted(source.rglob("version.mk"))[:1] or sys.exit(f"{source}: no version.mk")
        version = re.search(r"^NVIDIA_VERSION = ([\d.]+)", makefile.read_text(), re.MULTILINE)
        yield version[1] if version else sys.exit(f"{makefile}: no version"), makefile.parent
        return
    for tag in tags.split():
        if not re.fullmatch(r"\d{3}(\.\d+){1,2}", tag) or version_key(tag)[0] < OLDEST:
            continue
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.Popen(
                ["git", "-C", source, "archive", tag, "--", *INCLUDE, GENERATED, SURFACE_SOURCE],
                stdout=subprocess.PIPE,
            )
            subprocess.run(["tar", "-xC", folder], stdin=archive.stdout, check=True)
            yield tag, Path(folder)


def git(source: Path, *arguments: str) -> str | None:
    run = subprocess.run(
        ["git", "--git-dir", source / ".git" if (source / ".git").exists() else source, *arguments],
        capture_output=True,
        text=True,
    )
    return None if run.returncode else run.stdout


def columns(found: dict[str, dict[str, str]]) -> list[Release]:
    """One for each branch, or for each run of releases in it that agree."""
    runs: list[Release] = []
    for version in sorted(found, key=version_key):
        facts = found[version]
        if runs and runs[-1].facts == facts and runs[-1].first[:3] == version[:3]:
            runs[-1] = Release(runs[-1].first, version, facts)
        else:
            runs.append(Release(version, version, facts))
    return runs


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    found = {}
    for argument in sys.argv[1:]:
        for version, folder in releases(Path(argument)):
            print(version, file=sys.stderr)
            found[version] = facts_of(folder)
    runs = columns(found)
    print("first", *(run.first for run in runs), sep="\t")
    print("last", *(run.last for run in runs), sep="\t")
    for name in runs[0].facts:
        print(name, *(run.facts[name] for run in runs), sep="\t")


if __name__ == "__main__":
    main()
