"""One process makes a region, another fills it on the GPU, a third reads it without CUDA."""

import subprocess
import sys

import gdrpy
from gdrpy.broker import temporary

MAKER = """
import sys, gdrpy

with gdrpy.connect(sys.argv[1]) as broker:
    broker.allocate("frames", 1 << 20, gpu=False).close()  # it stays: its name keeps it
print("maker:  made 'frames', and ends")
"""

FILLER = """
import sys, gdrpy
from gdrpy import cuda

with gdrpy.connect(sys.argv[1]) as broker, broker.get("frames", cpu=False) as region:
    with cuda.context(region.device):  # the GPU's own fill; a kernel of yours instead
        cuda.call("cuMemsetD8", region.ptr, 0x2A, region.nbytes)
        cuda.call("cuCtxSynchronize")
print("filler: filled it on the GPU, and ends")
"""

READER = """
import sys, gdrpy

with gdrpy.connect(sys.argv[1]) as broker, broker.get("frames", gpu=False) as region:
    right = region.read() == b"*" * region.nbytes
    print("reader: every byte right:", right, "- CUDA loaded:", "cuda" in sys.modules)
"""

with temporary() as path:  # a broker for this program; yours is `gdrpy serve`
    for program in (MAKER, FILLER, READER):
        subprocess.run([sys.executable, "-P", "-c", program, path], check=True)
    with gdrpy.connect(path) as broker:
        print("left:  ", [info.name for info in broker.list()])
