from contextlib import nullcontext
from typing import Any

#: What was asked for, in order: the genuine allocator has an engine's own memory.
calls: list[tuple[str, Any]] = []


class MemAllocator:
    def use_memory_pool(self, tag: str | None = None) -> nullcontext[None]:
        calls.append(("use_memory_pool", tag))
        return nullcontext()

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        calls.append(("sleep", offload_tags))

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """As in releases newer than 0.25.1."""
        calls.append(("discard", tags))

    def wake_up(self, tags: list[str] | None = None) -> None:
        calls.append(("wake_up", tags))


_allocator = MemAllocator()


def get_mem_allocator_instance() -> MemAllocator:
    return _allocator
