"""gdrpy.Link: the time of a call, from the request to the answer of a resident kernel."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import gdrpy
import gpukernels
import native
import rings
from gdrpy import cuda
from gdrpy.cli.measure.timing import Samples, clock, undisturbed
from harness import Figure, Session, identifier

MODULE = "link"
OPERATION = "call and answer, 64 B each"
IN_PYTHON = "Link.call"
IN_C = "the same in C"
IN_PYTHON_BY_WARP = "Link.call, answered by a warp"
IN_C_BY_WARP = "the same in C, answered by a warp"
BY_WARP = (IN_PYTHON_BY_WARP, IN_C_BY_WARP)

_RECORD = 64
_COMPLEMENT = (1 << 8 * _RECORD) - 1
_KERNEL = Path(__file__).with_name("link_kernel.cu")
_TURNS, _CALLS, _WARM_UP = 10, 20_000, 200
_QUICK_TURNS, _QUICK_CALLS, _QUICK_WARM_UP = 2, 15, 2
_TIMEOUT = 20.0


def slowest_but_one_in_1000(way: str) -> str:
    """The name of the figure of a way's 99.9th percentile."""
    return f"{identifier(MODULE, OPERATION, None, way)}/p99.9"


def run(session: Session) -> None:
    """Measure calls of links into the session."""
    turns, calls, warm_up = (
        (_QUICK_TURNS, _QUICK_CALLS, _QUICK_WARM_UP)
        if session.quick
        else (_TURNS, _CALLS, _WARM_UP)
    )
    ways = {IN_PYTHON: _call}
    try:
        rings.require()
        ways[IN_C] = _call_in_c
        if not cuda.simulated():
            ways |= {IN_PYTHON_BY_WARP: _call, IN_C_BY_WARP: _call_in_c}
    except native.NotBuilt as error:
        session.absent[MODULE if cuda.simulated() else f"{MODULE}: {IN_C}"] = str(error)
        if cuda.simulated():
            return
    samples: dict[str, list[int]] = {name: [] for name in ways}
    for turn in range(turns):
        for name, call in ways.items():
            session.step(f"{MODULE}: {name}, turn {turn + 1}")
            server = _thread() if cuda.simulated() else _kernel(name in BY_WARP)
            with server as link, undisturbed():
                samples[name] += call(link, warm_up + calls)[warm_up:]
    session.keep_single_times(MODULE, OPERATION, {name: _method(name) for name in ways}, samples)
    for name, one in samples.items():
        late = Samples(one).percentile(99.9) / 1e3
        session.derive_figure(Figure(slowest_but_one_in_1000(name), late, "us"))


def _method(way: str) -> str:
    answers = f"a resident kernel of {'a warp' if way in BY_WARP else 'one thread'}"
    if cuda.simulated():
        answers = "a thread in C"
    return f"the clock is read around each call; {answers} answers by the complement"


def _call(link: gdrpy.Link, rounds: int) -> list[int]:
    """Nanoseconds of each call. Raises Lost for a wrong answer."""
    call, samples = link.call, []
    for number in range(rounds):
        request = number.to_bytes(_RECORD, "little")
        begun = clock()
        answer = call(request, _TIMEOUT)
        samples.append(clock() - begun)
        if int.from_bytes(answer, "little") ^ number != _COMPLEMENT:
            raise rings.Lost(f"call {number + 1} was answered wrongly")
    return samples


def _call_in_c(link: gdrpy.Link, rounds: int) -> list[int]:
    return rings.call(link._region, rounds)


@contextmanager
def _kernel(by_warp: bool) -> Iterator[gdrpy.Link]:
    """A link whose requests a kernel of link_kernel.cu answers, by one thread or by a warp."""
    image = gpukernels.compiled(_KERNEL)
    with ExitStack() as undo:
        stream = undo.enter_context(gpukernels.stream())
        kernel = (b"serve_warp", 32) if by_warp else (b"serve", 1)
        serve = undo.enter_context(gpukernels.loaded(image, *kernel, ctypes.c_void_p))
        link = gdrpy.Link(_RECORD)
        serve(stream, link.ptr)
        try:
            yield link
        finally:
            link.close()
            cuda.call("cuStreamSynchronize", stream)


@contextmanager
def _thread() -> Iterator[gdrpy.Link]:
    """A link whose requests a thread in C answers: the simulated GPU has no kernels."""
    with gdrpy.Link(_RECORD) as link:
        thread = threading.Thread(target=rings.serve, args=(link._region,))
        thread.start()
        try:
            yield link
        finally:
            link.close()
            thread.join()
