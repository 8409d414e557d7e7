"""The C calls of the nvrm backend under ASan and UBSan."""

import os
import subprocess
from pathlib import Path

from build import build_nvrm_test


class TestCalls:
    def test_pass_under_the_sanitizers(
        self, tmp_path: Path, resource_manager_library: Path
    ) -> None:
        process = subprocess.run(
            [build_nvrm_test(tmp_path)],
            env={**os.environ, "LD_PRELOAD": str(resource_manager_library)},
            capture_output=True,
            text=True,
        )
        assert (process.returncode, process.stderr) == (0, "")
        assert process.stdout.endswith("5 tests passed\n")
