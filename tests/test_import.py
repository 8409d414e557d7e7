"""What importing the package costs and touches."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

WATCHED_IMPORT = """
import sys
opened = []
watched = ("open", "ctypes.dlopen")
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event in watched else None)
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

    def test_of_a_source_folder_that_is_not_built_says_what_to_do(self, tmp_path):
        source = Path(__file__).parent.parent / "gdrpy"
        copied = tmp_path / "gdrpy"
        shutil.copytree(source, copied, ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
        done = subprocess.run(
            [sys.executable, "-c", "import gdrpy"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "gdrpy's C parts are not built" in done.stderr
        assert "make build" in done.stderr
