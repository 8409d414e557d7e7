"""The Triton kernels of rings_program.py, in a module of their own: Triton reads their source."""

from __future__ import annotations

import triton
import triton.language as tl

from gdrpy.channel import triton as device


@triton.jit
def push(inbox, EACH: tl.constexpr, ODD: tl.constexpr, BLOCK: tl.constexpr):
    thread = tl.program_id(0).to(tl.int64)
    done = thread * 0
    while done < EACH:
        count = tl.minimum(EACH - done, BLOCK)
        first = device.reserve(inbox, count)
        if first >= 0:
            number = first + tl.arange(0, BLOCK)
            index = done + tl.arange(0, BLOCK)
            mask = tl.arange(0, BLOCK) < count
            device.put64(inbox, number, 0, index * 0 + thread, mask)
            device.put64(inbox, number, 1, index, mask)
            for word in range(2, 8):
                value = ((thread << 40 | index) * 8 + word) * ODD
                device.put64(inbox, number, word, value, mask)
        done += count


@triton.jit
def serve(link, BLOCK: tl.constexpr):
    head = device.begin(link)
    ready = device.wait(link, head)
    while ready != 0:
        count = tl.minimum(ready, BLOCK)
        number = head + tl.arange(0, BLOCK)
        mask = tl.arange(0, BLOCK) < count
        for word in range(8):
            value = device.load64(link, number, word, mask)
            device.answer64(link, number, word, ~value, mask)
        head += count
        device.release(link, head)
        ready = device.wait(link, head)
    device.stop(link)
