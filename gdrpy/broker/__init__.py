"""Named regions for every process of the machine: a daemon that owns them, and its clients."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdrpy.broker._temporary import temporary

__all__ = ["temporary"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gdrpy.broker._temporary import temporary

    return temporary
