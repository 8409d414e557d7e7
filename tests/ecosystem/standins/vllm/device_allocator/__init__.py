from contextlib import nullcontext
from typing import Any


class _Allocator:
    """Keeps what it was asked for; the genuine one has an engine's own memory."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def use_memory_pool(self, tag: str | None = None) -> nullcontext[None]:
        self.calls.append(("use_memory_pool", tag))
        return nullcontext()

    def sleep(self, offload_tags: tuple[str, ...]) -> None:
        self.calls.append(("sleep", offload_tags))

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.calls.append(("wake_up", tags))


_allocator = _Allocator()


def get_mem_allocator_instance() -> _Allocator:
    return _allocator
