"""What importing the package costs and touches."""

from __future__ import annotations

import subprocess
import sys

WATCHED_IMPORT = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import gdrpy
heavy = {"numpy", "cuda", "rich", "asyncio", "matplotlib", "torch"} & set(sys.modules)
print(sorted(heavy), [path for path in opened if "/dev/" in path or "libcuda" in path])
"""


class TestImport:
    def test_touches_no_gpu_and_loads_nothing_heavy(self):
        done = subprocess.run(
            [sys.executable, "-c", WATCHED_IMPORT], capture_output=True, text=True, check=True
        )
        assert done.stdout == "[] []\n"

    def test_offers_what_all_lists(self):
        import gdrpy

        assert [name for name in gdrpy.__all__ if not hasattr(gdrpy, name)] == []
