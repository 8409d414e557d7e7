"""What happens when weights cannot be shared: never silently something slower."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter
from vllm.logger import init_logger

from gdrpy.errors import BackendUnavailable, Error

_logger = init_logger("vllm.gdrpy")
_count = Counter(
    "gdrpy_vllm_fallbacks", "Models and caches of engines without the broker", ["reason"]
)


class Unshareable(Exception):
    """The weights cannot be shared: a word for the metric, and the reason in full."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@contextmanager
def sharing() -> Iterator[None]:
    """Raise Unshareable for what gdrpy and torch raise for weights that cannot be shared."""
    try:
        yield
    except Error as error:
        raise Unshareable("broker", str(error)) from error
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise Unshareable("model", str(error)) from error


def told(error: Unshareable) -> None:
    """Log and count that an engine goes on by vLLM's own means.

    Raises BackendUnavailable instead if GDRPY_STRICT is 1.
    """
    if os.environ.get("GDRPY_STRICT") == "1":
        raise BackendUnavailable(
            f"load_format=gdrpy: {error}; without GDRPY_STRICT=1, vLLM would use its own memory"
        ) from error
    _count.labels(error.kind).inc()
    _logger.warning("gdrpy: %s; this engine uses memory of its own", str(error))
