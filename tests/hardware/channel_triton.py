"""The Triton kernel of channel_program.py, in a module of its own: Triton reads its source."""

from __future__ import annotations

import triton
import triton.language as tl

from gdrpy.channel import triton as device


@triton.jit
def verify(channel, verdict, WORDS: tl.constexpr, ODD: tl.constexpr, BLOCK: tl.constexpr):
    head = device.begin(channel)
    wrong = tl.zeros([BLOCK], tl.int64)
    ready = device.wait(channel, head)
    while ready != 0:
        count = tl.minimum(ready, BLOCK)
        index = head + tl.arange(0, BLOCK)
        mask = tl.arange(0, BLOCK) < count
        for word in range(WORDS):
            found = device.load64(channel, index, word, mask)
            wrong += ((found != (index * WORDS + word) * ODD) & mask).to(tl.int64)
        head += count
        device.release(channel, head)
        ready = device.wait(channel, head)
    tl.store(verdict, head)
    tl.store(verdict + 1, tl.sum(wrong))
