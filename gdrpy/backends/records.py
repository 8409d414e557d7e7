"""What a backend is asked for, and what it tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdrpy.backends.node import Node


@dataclass(frozen=True)
class Status:
    """Whether a backend can serve here; if not, why, and what would change it."""

    usable: bool
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class PinRequest:
    """How a pin is to end if its GPU memory is freed first.

    ``revocable``: it loses the memory, else it keeps it. An access then finds zeros, or with
    ``sigbus`` is a SIGBUS. ``node`` opens the node whose events tell.
    """

    revocable: bool
    sigbus: bool
    node: Callable[[], Node]
