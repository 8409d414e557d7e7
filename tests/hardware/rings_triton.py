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
def serve(link, WORDS: tl.constexpr):
    number = device.begin_link(link)
    word = tl.arange(0, WORDS)
    while device.wait_link(link, number):
        value = device.request64(link, number, word, word < WORDS)
        device.answer64(link, number, word, ~value, word < WORDS)
        number += 1
        device.release_link(link, number)
    device.stop_link(link)
