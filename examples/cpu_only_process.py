"""A process that has no CUDA at all writes into GPU memory that another one made."""

import os
import subprocess
import sys

import gdrpy

CHILD = """
import sys
import gdrpy

with gdrpy.Region.from_fd(int(sys.argv[1]), gpu=False) as region:
    region.write(b"written without CUDA")
    print("child: ", region, "- CUDA loaded:", "cuda" in sys.modules, flush=True)
"""

with gdrpy.alloc(4096) as region:
    fd = region.export()  # by inheritance here; by SCM_RIGHTS or pidfd_getfd otherwise
    subprocess.run([sys.executable, "-P", "-c", CHILD, str(fd)], pass_fds=[fd], check=True)
    os.close(fd)
    print("parent:", region, "-", region.read(20))
