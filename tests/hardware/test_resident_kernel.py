"""What may be called while a kernel waits for the CPU: nothing of it waits for that kernel."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

#: Each runs in a process of its own, in which nothing was copied before the kernel began.
PROGRAM = """
import gdrpy, numpy as np
from gdrpy.cli.measure.pingpong import play, responder

NBYTES = 64 << 20
data = np.arange(NBYTES // 8, dtype=np.uint64)
with gdrpy.alloc(NBYTES) as region, gdrpy.alloc(4096) as words, gdrpy.page_locked(4096) as answers:
    ping, reply = words.flag(0), answers.flag(0)
    with responder(ping, reply, 1000, seconds=10) as answering:
        {call}
        play(ping, reply, 10)
print(answering.ending.how)
"""

CALLS = {
    "a write by staging": "region.write(data, via='dma')",
    "a read by staging": "region.read(via='dma')",
    "a small read": "region.read(8192)",
    "rows by staging": "region.write_strided(data.reshape(-1, 8)[:1000, :4], 64, via='dma')",
    "a fill by the GPU": "region.fill(7)",
    "a mirror": "exec('with region.mirror() as array: array[:] = 1')\n        del array",
    "page-locked memory that comes": "memory = gdrpy.page_locked(1 << 20)",
    "a map and its end": "region.map(0, 4096).close()",
    "a region that comes and goes": "gdrpy.alloc(4 << 20).close()",
    "a channel that comes": "channel = gdrpy.Channel(); channel.close()",
    "rings that come and go": "gdrpy.Channel(), gdrpy.Inbox(), gdrpy.Link()",
}


class TestResidentKernel:
    @pytest.mark.parametrize("what", CALLS)
    def test_is_not_waited_for_by(self, backend, what):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(call=CALLS[what])],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.stdout, done.stderr) == ("stopped\n", "")
