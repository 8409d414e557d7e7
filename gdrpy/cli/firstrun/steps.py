"""The steps of a first run, in their order.

A step is a function of the run, whose rig releases what the step takes. It returns its findings in
words, and raises :class:`~gdrpy.cli.data.Mismatch` in case of doubt. Users see the first line of
its docstring.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gdrpy import cuda
from gdrpy.cli.checks import module as checks_of_module
from gdrpy.cli.checks import peer as checks_peer
from gdrpy.cli.checks.rig import Rig
from gdrpy.cli.data import Noise, expect, expect_equal
from gdrpy.cli.exits import UNUSABLE, CommandError, words_of
from gdrpy.cli.firstrun import machine, node, peer
from gdrpy.cli.firstrun.node import PAGE, open_node
from gdrpy.cli.firstrun.state import FirstRun, settled
from gdrpy.cli.sizes import approximate_size
from gdrpy.errors import Error
from gdrpy.memory import backends
from gdrpy.memory.node import PATH as NODE

_MIB = 1 << 20
#: Bytes of GPU memory in most steps.
_SCRATCH = 2 * _MIB
_CYCLES = 200
#: Seconds until another process must be ready.
_PEER_TIMEOUT = 300.0
#: Longer than any pin may be. Without that limit nvidia.ko would take 256 MiB for it.
_TOO_LONG = (1 << 40) + PAGE
_NO_HANDLE = 1 << 20


def check_machine(run: FirstRun) -> str:
    """The machine can take a first run."""
    driver = machine.driver()
    try:
        if cuda.simulated() and not Path("/dev/gpustandin").exists():
            raise CommandError("CUDA reaches no GPU here: GDRPY_SIM=0 gdrpy info", UNUSABLE)
        gpu = cuda.device_info(run.device)
        run.rig.cuda_memory(_SCRATCH)
    except Error as error:
        raise CommandError(words_of(error), UNUSABLE) from error
    if "gdrdrv" in run.before.modules:
        if not machine.module_is_ours():
            raise CommandError("another gdrdrv, NVIDIA's, is loaded: unload it first", UNUSABLE)
        if machine.pins():
            holders = ", ".join(sorted({pin["pid"] for pin in machine.pins()}))
            raise CommandError(f"gdrdrv is in use by {holders}: end them first", UNUSABLE)
        then = "gdrdrv is loaded already"
    else:
        then = machine.insmod("--status").splitlines()[-1].removeprefix("next:").strip()
        if " would " not in then:
            raise CommandError(then, UNUSABLE)
    return "; ".join(
        (
            f"{gpu.name}, BAR1 {approximate_size(gpu.bar1) if gpu.bar1 else 'of unknown size'}",
            f"{driver}, Linux {os.uname().release}",
            f"kernel tainted {run.before.taint}" if run.before.taint else "kernel not tainted",
            then,
        )
    )


def load(run: FirstRun) -> str:
    """The module is loaded, and its node is there."""
    words = "loaded already"
    if "gdrdrv" not in run.before.modules:
        words = "built and loaded" if "building:" in run.load() else "loaded"
    problem = machine.node_problem()
    expect(problem is None, str(problem))
    status = backends.ALL["gdrdrv"].status(run.device)
    expect(status.usable, f"{status.reason}: {status.remedy}")
    run.at_rest = machine.registrations()
    return f"{words}; {machine.node_words()}; {machine.parameters()}"


def interface(_run: FirstRun) -> str:
    """Version, attributes and features are those of this gdrpy."""
    with open_node() as opened:
        version, _ = opened.call(node.GET_VERSION, "II", 0, 0)
        expect(version == 2 << 16 | 6, f"the version is {version >> 16}.{version & 0xFFFF}")
        attributes = [opened.call(node.GET_ATTR, "II", number, 0)[1] for number in (1, 2)]
        *_, features = opened.call(node.FEATURES, "IIQ", struct.calcsize("IIQ"), 0, 0)
    names = [name for bit, name in enumerate(node.FEATURE_NAMES) if features >> bit & 1]
    expect(features & 7 == 7, f"the features are {', '.join(names) or 'none'}")
    default = "persistent" if attributes[0] else "revocable"
    return f"2.6, {default} by default, features {', '.join(names)}"


def refusals(run: FirstRun) -> str:
    """Calls that must be refused are refused."""
    page = _pages(run.rig)
    v3, length = "IIQQQ", struct.calcsize("IIQQQ")
    both = node.PERSISTENT | node.REVOCABLE
    calls: list[tuple[str, str, int, str, tuple[int, ...]]] = [
        ("unknown command", "ENOTTY", 0x3F, "Q", (0,)),
        ("unpin of no handle", "EINVAL", node.UNPIN, "Q", (_NO_HANDLE,)),
        ("info of no handle", "EINVAL", node.GET_INFO, "QQQIIQII", (_NO_HANDLE, *[0] * 7)),
        ("wrong size", "EINVAL", node.PIN_V3, v3, (length + 8, 0, page, PAGE, 0)),
        ("two lifetimes", "EINVAL", node.PIN_V3, v3, (length, both, page, PAGE, 0)),
        ("address 0", "EINVAL", node.PIN_V3, v3, (length, 0, 0, PAGE, 0)),
        ("memory of no GPU", "EINVAL", node.PIN_V3, v3, (length, 0, PAGE, PAGE, 0)),
        ("token", "EINVAL", node.PIN, "QQQIIQ", (page, PAGE, 1, 0, 0, 0)),
        ("too long", "EINVAL EDQUOT", node.PIN_V3, v3, (length, 0, page, _TOO_LONG, 0)),
    ]
    with open_node() as opened:
        for what, allowed, number, layout, values in calls:
            answer = opened.answer(number, layout, *values)
            expect(answer in allowed.split(), f"{what}: {answer}, not {allowed}")
    return ", ".join(what for what, *_ in calls)


def pin_page(run: FirstRun) -> str:
    """One page is pinned, listed and unpinned."""
    page = _pages(run.rig)
    with open_node() as opened:
        handle = opened.pin(page, PAGE, node.PERSISTENT)
        info = opened.info(handle)
        expect(info == (page, PAGE, PAGE), f"GET_INFO says {info} of {PAGE} bytes at {page:#x}")
        (told,) = machine.pins()
        expect(
            (int(told["va"], 16), int(told["bytes"]), told["lifetime"])
            == (page, PAGE, "persistent"),
            f"/proc/driver/gdrdrv/pins says {' '.join(told.values())}",
        )
        pinned = machine.registrations()
        if pinned is not None and run.at_rest is not None:
            more = f"nv_get_pages_refcount was {run.at_rest}, and with one pin is {pinned}"
            expect(pinned == run.at_rest + 1, more)
        opened.unpin(handle)
        again = opened.answer(node.UNPIN, "Q", handle)
        expect(again == "EINVAL", f"a second unpin: {again}")
        expect(machine.pins() == [], "the pin is listed after its unpin")
        run.settle_registrations()
    told_of = "" if pinned is None else f", nv_get_pages_refcount {run.at_rest}, {pinned} and back"
    return f"{PAGE} bytes at {page:#x}{told_of}"


def map_pin(run: FirstRun) -> str:
    """CPU and GPU see the same bytes, both ways."""
    refused = machine.counters().get("write_combining_refused", 0)
    memory = run.rig.cuda_memory(_SCRATCH)
    mapping = run.rig.pin(memory, _SCRATCH).map()
    data = run.rig.random(_SCRATCH)
    begun = time.perf_counter()
    mapping.write(data)
    rate = _SCRATCH / _MIB / (time.perf_counter() - begun)
    expect_equal("written by the CPU, read by the driver", data, run.rig.get(memory, _SCRATCH))
    data = run.rig.random(_SCRATCH)
    run.rig.put(memory, data)
    expect_equal("written by the driver, read by the CPU", data, mapping.read())
    (told,) = machine.pins()
    words = f"mapped {told['type']}, written at {rate:.0f} MiB/s"
    if machine.counters().get("write_combining_refused", 0) > refused:
        words += "; the kernel refused to record it as write-combined: it may be uncached"
    return words


def revoke(run: FirstRun) -> str:
    """Freed memory takes its revocable pin along."""
    checks_of_module.revocation(run.rig)
    return "one event came, stores are refused, the old view shows zeros"


def share(run: FirstRun) -> str:
    """Another process uses share descriptors, and is killed."""
    page = _pages(run.rig)
    pin = run.rig.pin(page, PAGE)
    descriptors = pin.export(), pin.export(readonly=True)
    for descriptor in descriptors:
        run.rig.stack.callback(os.close, descriptor)
    run.rig.put(page, Noise(*run.rig.seeds, checks_peer.OURS).bytes(PAGE))
    with _peer("share", *descriptors, *run.rig.seeds, pass_fds=descriptors) as child:
        mapped = _mappings()
        expect(mapped > 0, "no mapping of the child's is counted")
        child.kill()
        child.wait()
        settled(lambda: _mappings() == 0, "the mappings of the killed child are still counted")
    theirs = Noise(*run.rig.seeds, checks_peer.THEIRS).bytes(PAGE)
    expect_equal("written by the child, read by the driver", theirs, run.rig.get(page, PAGE))
    expect_equal("written by the child, mapped here", theirs, pin.map().read())
    return f"read-only was enforced, and the kill gave {mapped} mappings back"


def outlive(run: FirstRun) -> str:
    """A process that inherited the node closes it last."""
    for lifetime in (node.PERSISTENT, node.REVOCABLE):
        page = _pages(run.rig)
        with open_node() as opened:
            opened.pin(page, PAGE, lifetime)
            heir = subprocess.Popen(
                ["cat"], pass_fds=[opened.fd], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
            run.rig.stack.callback(heir.communicate)
        expect(len(machine.pins()) == 1, "the pin ended though the node is still open")
        heir.communicate()
        settled(lambda: machine.pins() == [], "the pin outlives the node's last descriptor")
    run.rig.stack.close()  # the memory too, under what nvidia.ko may still have registered
    run.settle_registrations()
    return "pins of both kinds ended with the last descriptor"


def kill_owner(run: FirstRun) -> str:
    """An owner that is killed leaves nothing pinned."""
    with _peer("owner", run.device) as child:
        lifetimes = sorted(pin["lifetime"] for pin in machine.pins())
        expect(lifetimes == ["persistent", "revocable"], f"the child's pins are {lifetimes}")
        child.kill()
        child.wait()
        settled(lambda: machine.pins() == [], "the pins of a killed process are still listed")
        run.settle_registrations()
    return "a persistent and a revocable pin, both mapped, went with it"


def cycles(run: FirstRun) -> str:
    """Many pins in turn use nothing up."""
    pci = cuda.device_info(run.device).pci
    memory = run.rig.cuda_memory(_SCRATCH)
    bar1, counts = machine.bar1_used(pci), machine.counters()
    gdr = run.rig.open("gdrdrv")
    for number in range(_CYCLES):
        with gdr.pin(memory, _SCRATCH) as pin, pin.map() as mapping:
            mapping.store(0, number)
    grown = {name: value - counts.get(name, 0) for name, value in machine.counters().items()}
    for name in ("pins", "unpins", "mappings"):
        expect(grown[name] == _CYCLES, f"{name} grew by {grown[name]}, not by {_CYCLES}")
    if bar1 is None:
        return f"{_CYCLES} pins of {approximate_size(_SCRATCH)}; the use of BAR1 is unknown here"
    settled(
        lambda: (machine.bar1_used(pci) or 0) <= bar1,
        f"{bar1} MiB of BAR1 were in use, and now {machine.bar1_used(pci)} MiB are",
    )
    return f"{_CYCLES} pins of {approximate_size(_SCRATCH)}, {bar1} MiB of BAR1 in use as before"


def leave(run: FirstRun) -> str:
    """The machine is as it was."""
    words = "gdrdrv stays loaded, as it was"
    if run.loaded:
        run.unload()
        words = "gdrdrv is unloaded"
    now, before = machine.look(), run.before
    here = "gdrdrv" in now.modules
    expect(here == ("gdrdrv" in before.modules), f"gdrdrv is {'' if here else 'not '}loaded")
    expect(now.has_node == before.has_node, f"{NODE} is {'' if now.has_node else 'not '}there")
    others = sorted((now.modules - before.modules) | (before.modules - now.modules))
    if others:
        words += f"; others loaded or unloaded meanwhile: {', '.join(others)}"
    taint = sorted(set(now.taint) - set(before.taint))
    if taint:
        words += f"; kernel tainted {' and '.join(taint)}, as by every module from outside it"
    return words


@dataclass(frozen=True)
class Step:
    """A step: its name, its function, and where to look after a doubt."""

    name: str
    function: Callable[[FirstRun], str]
    look: str

    @property
    def shows(self) -> str:
        """What the step shows, in one line."""
        return str(self.function.__doc__).splitlines()[0].removesuffix(".")


_LOG = "sudo dmesg, from 'gdrpy validate --module: ' on"
_PINS = f"{_LOG}; /proc/driver/gdrdrv/pins and stats"

ALL = (
    Step("machine", check_machine, "gdrpy info; ./insmod.sh --status"),
    Step("load", load, f"{_LOG}; Troubleshooting in docs/kernel-module.md"),
    Step("interface", interface, "./insmod.sh --status: whose module is loaded"),
    Step("refusals", refusals, f"{_LOG}; ./insmod.sh --status: whose module is loaded"),
    Step("pin", pin_page, _PINS),
    Step("map", map_pin, f"{_PINS}; /sys/kernel/debug/x86/pat_memtype_list"),
    Step("revoke", revoke, _PINS),
    Step("share", share, _PINS),
    Step("outlive", outlive, _PINS),
    Step("kill", kill_owner, _PINS),
    Step("cycles", cycles, f"{_PINS}; nvidia-smi: what else uses the GPU"),
    Step("leave", leave, f"{_LOG}; lsmod; /proc/sys/kernel/tainted"),
)


def _pages(rig: Rig) -> int:
    """An address in fresh GPU memory where whole GPU pages begin."""
    return -(-rig.cuda_memory(_SCRATCH) // PAGE) * PAGE


def _mappings() -> int:
    """The number of mappings of pins."""
    return sum(int(pin["mappings"]) for pin in machine.pins())


@contextmanager
def _peer(
    role: str, *numbers: int, pass_fds: tuple[int, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Another process that is ready; it is killed at the end. Raises Mismatch."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", peer.__name__, role, *map(str, numbers)],
        pass_fds=pass_fds,
        env=checks_peer.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            came, _, _ = select.select([child.stdout], [], [], _PEER_TIMEOUT)
            expect(bool(came), f"the other process is not ready within {_PEER_TIMEOUT:g} s")
            said = child.stdout.readline().strip()
            if not said:
                assert child.stderr is not None
                said = (child.stderr.read().strip().splitlines() or ["it ended without output"])[-1]
            expect(said == "ready", f"in the other process: {said}")
            yield child
        finally:
            child.kill()
