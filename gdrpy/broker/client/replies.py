"""What a broker may reply: the one description of every reply's fields and their bounds, but for
what :mod:`gdrpy.broker.messages` describes, which is imported when it is first told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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

#: The first field of a message whose value cannot be, None where all can; KeyError for one that is
#: not there.
Fault = Callable[[dict[str, Any]], str | None]

#: The largest number of the kernel's sizes and the broker's counts.
_MOST = (1 << 63) - 1


def _grant_fault(grant: dict[str, Any]) -> str | None:
    # In line, since this is asked of every grant.
    if type(value := grant["region"]) is not int or not 0 <= value <= _MOST:
        return "region"
    if (value := grant["name"]) is not None and type(value) is not str:
        return "name"
    if type(value := grant["nbytes"]) is not int or not 0 < value <= REGION_LIMIT:
        return "nbytes"
    if type(value := grant["size"]) is not int or not 0 < value <= _MOST:
        return "size"
    if type(value := grant["device"]) is not int or not CPU_DEVICE <= value < DEVICE_LIMIT:
        return "device"
    if type(value := grant["version"]) is not int or not 0 <= value <= _MOST:
        return "version"
    if type(grant["sealed"]) is not bool:
        return "sealed"
    if type(grant["readonly"]) is not bool:
        return "readonly"
    if type(grant["enforced"]) is not bool:
        return "enforced"
    if type(value := grant["metadata"]) is not bytes or len(value) > METADATA_LIMIT:
        return "metadata"
    return None


def _fault(**fields: Callable[[Any], bool]) -> Fault:
    """What finds the fault of a message, by whether a value may stand in each field."""

    def fault(message: dict[str, Any]) -> str | None:
        return next((name for name, fits in fields.items() if not fits(message[name])), None)

    return fault


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _numbers(value: Any) -> bool:
    return type(value) is list and all(map(_number, value))


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


#: Of what a hello of the version that this client speaks tells besides.
welcome_fault = _fault(life=lambda life: type(life) is str and len(life) == 32, session=_number)

_FAULTS: dict[str, Fault] = {
    "hello": _fault(version=_number),
    "resume": _fault(lost=_numbers),
    "allocate": _grant_fault,
    "create": _grant_fault,
    "get": _grant_fault,
    "get_many": _fault(grants=_is(list), more=_is(bool)),
    "rounded_size": _fault(size=lambda size: _number(size) and size > 0),
    "publish": _fault(version=_number),
    "digest": _fault(sha256=_is(str)),
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


def check(what: str, message: Any, fault: Fault) -> None:
    """Raise ProtocolError unless all fields are there, with values that they may have."""
    if type(message) is not dict:
        raise ProtocolError(f"{what}: the broker's reply has {message!r:.80} where fields belong")
    try:
        name = fault(message)
    except KeyError as absent:
        raise ProtocolError(f"{what}: the broker's reply has no {absent}") from None
    if name is not None:
        raise ProtocolError(
            f"{what}: the broker's reply has a {name!r} that cannot be: {message[name]!r:.80}"
        )


def grants_of(call: str, message: dict[str, Any]) -> list[dict[str, Any]]:
    """What a reply without error grants. Raises ProtocolError for one that is not as it must be."""
    fault = _FAULTS.get(call)
    if fault is None:
        return []
    check(call, message, fault)
    if fault is _grant_fault:
        return [message]
    if call != "get_many":
        return []
    granted = [one for one in message["grants"] if type(one) is not dict or "error" not in one]
    for one in granted:
        check(call, one, _grant_fault)
    return granted
