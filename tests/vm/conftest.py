"""What runs where: ``test_bed.py`` on the host, and boots guests; ``inside`` in such a guest."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
IN_GUEST = Path("/dev/gpustandin").exists()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Booting takes its time, so these run only when they are asked for by their path."""
    named = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    if not any(path.is_relative_to(HERE) for path in named):
        return True
    if collection_path.is_relative_to(HERE / "inside") != IN_GUEST and collection_path != HERE:
        return True
    return None
