"""What a broker may reply: the one description of every reply's fields and their bounds, but for
what :mod:`gdrpy.broker.messages` describes, which is imported when it is first told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gdrpy._core._mapping import misfit
from gdrpy.broker.protocol import (
    CPU_DEVICE,
    DEVICE_LIMIT,
    METADATA_LIMIT,
    REGION_LIMIT,
    decode,
)
from gdrpy.errors import ProtocolError

if TYPE_CHECKING:
    from gdrpy.broker.messages import Event

#: Name, types, and bounds of the number or the length, if there are any.
Field = tuple[str, tuple[type, ...], int | None, int | None]

#: The largest number of the kernel's sizes and the broker's counts.
_MOST = (1 << 63) - 1


def _number(name: str, low: int = 0, high: int = _MOST) -> Field:
    return name, (int,), low, high


def _flag(name: str) -> Field:
    return name, (bool,), None, None


_GRANT: tuple[Field, ...] = (
    _number("region"),
    ("name", (str, type(None)), None, None),
    _number("nbytes", 1, REGION_LIMIT),
    _number("size", 1),
    _number("device", CPU_DEVICE, DEVICE_LIMIT - 1),
    _number("version"),
    _flag("sealed"),
    _flag("readonly"),
    _flag("enforced"),
    ("metadata", (bytes,), 0, METADATA_LIMIT),
)
#: What a hello of the version that this client speaks tells besides.
WELCOME: tuple[Field, ...] = (("life", (str,), 32, 32), _number("session"))

_REPLIES: dict[str, tuple[Field, ...]] = {
    "hello": (_number("version"),),
    "resume": (("lost", (list,), None, None),),
    "allocate": _GRANT,
    "create": _GRANT,
    "get": _GRANT,
    "get_many": (("grants", (list,), None, None), _flag("more")),
    "rounded_size": (_number("size", 1),),
    "publish": (_number("version"),),
    "digest": (("sha256", (str,), None, None),),
}


#: Calls whose replies tell of regions.
_TOLD = frozenset(("list", "stat"))


def decode_reply(call: str, packet: bytes) -> dict[str, Any]:
    """The reply to a call; of one that tells of regions the fields are checked already.

    Raises ProtocolError.
    """
    if call not in _TOLD:
        return decode(packet)
    from gdrpy.broker import messages

    try:
        return messages.decode_told(call, packet)
    except ProtocolError:
        message = decode(packet)
        if "error" in message:
            return message
        raise


def decode_event(packet: bytes | None) -> Event:
    """What a watcher is told; None stands for events that were lost. Raises ProtocolError."""
    from gdrpy.broker import messages

    return messages.LOST if packet is None else messages.decode_event(packet)


def check(what: str, message: Any, fields: tuple[Field, ...]) -> None:
    """Raise ProtocolError unless all of the fields are there, with values that they may have."""
    if type(message) is not dict:
        raise ProtocolError(f"{what}: the broker's reply has {message!r:.80} where fields belong")
    wrong = misfit(message, fields)
    if wrong is None:
        return
    if wrong not in message:
        raise ProtocolError(f"{what}: the broker's reply has no {wrong!r}")
    raise ProtocolError(
        f"{what}: the broker's reply has a {wrong!r} that cannot be: {message[wrong]!r:.80}"
    )


def grants_of(call: str, message: dict[str, Any]) -> list[dict[str, Any]]:
    """What a reply without error grants. Raises ProtocolError for one that is not as it must be."""
    fields = _REPLIES.get(call, ())
    check(call, message, fields)
    if fields is _GRANT:
        return [message]
    if call == "resume":
        for number in message["lost"]:
            check(call, {"lost": number}, (_number("lost"),))
    if call != "get_many":
        return []
    granted = [one for one in message["grants"] if type(one) is not dict or "error" not in one]
    for one in granted:
        check(call, one, _GRANT)
    return granted
