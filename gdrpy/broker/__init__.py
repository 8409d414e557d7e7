"""Named regions for every process of the machine: a daemon that owns them, and its clients."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdrpy.broker._temporary import temporary
    from gdrpy.broker.client.reference import Reference

__all__ = ["Reference", "temporary"]

#: Imported when they are first asked for.
_HOMES = {"Reference": "gdrpy.broker.client.reference", "temporary": "gdrpy.broker._temporary"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
