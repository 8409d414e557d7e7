"""What a broker may reply: the one description of every reply's fields and their bounds, but for
what :mod:`gdrpy.broker.messages` describes, which is imported when it is first told.
"""

from __future__ import annotations

from gdrpy.broker.protocol import (
    CPU_DEVICE,
    DEVICE_LIMIT,
    METADATA_LIMIT,
    REGION_LIMIT,
    decode,
)
from gdrpy.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    #: Whether a value may stand in a field, by the field's name.
    Fields = dict[str, Callable[[Any], bool]]


def _flag(value: Any) -> bool:
    return value is True or value is False


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _numbers(value: Any) -> bool:
    return type(value) is list and all(map(_number, value))


def _nbytes(value: Any) -> bool:
    return type(value) is int and 0 < value <= REGION_LIMIT


def _size(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 63


def _device(value: Any) -> bool:
    return type(value) is int and CPU_DEVICE <= value < DEVICE_LIMIT


def _text(value: Any) -> bool:
    return type(value) is str


def _text_or_none(value: Any) -> bool:
    return value is None or type(value) is str


def _life(value: Any) -> bool:
    return type(value) is str and len(value) == 32


def _metadata(value: Any) -> bool:
    return type(value) is bytes and len(value) <= METADATA_LIMIT


def _list(value: Any) -> bool:
    return type(value) is list


_GRANT: Fields = {
    "region": _number,
    "name": _text_or_none,
    "nbytes": _nbytes,
    "size": _size,
    "device": _device,
    "version": _number,
    "sealed": _flag,
    "readonly": _flag,
    "enforced": _flag,
    "metadata": _metadata,
}
#: What a hello of the version that this client speaks tells besides.
WELCOME: Fields = {"life": _life, "session": _number}

_REPLIES: dict[str, Fields] = {
    "hello": {"version": _number},
    "resume": {"lost": _numbers},
    "allocate": _GRANT,
    "create": _GRANT,
    "get": _GRANT,
    "get_many": {"grants": _list, "more": _flag},
    "rounded_size": {"size": _size},
    "publish": {"version": _number},
    "digest": {"sha256": _text},
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


def check(what: str, message: Any, fields: Fields) -> None:
    """Raise ProtocolError unless all of the fields are there, with values that they may have."""
    if type(message) is not dict:
        raise ProtocolError(f"{what}: the broker's reply has {message!r:.80} where fields belong")
    try:
        for name, fits in fields.items():
            if not fits(message[name]):
                raise ProtocolError(
                    f"{what}: the broker's reply has a {name!r} that cannot be: "
                    f"{message[name]!r:.80}"
                )
    except KeyError:
        raise ProtocolError(f"{what}: the broker's reply has no {name!r}") from None


def grants_of(call: str, message: dict[str, Any]) -> list[dict[str, Any]]:
    """What a reply without error grants. Raises ProtocolError for one that is not as it must be."""
    fields = _REPLIES.get(call, {})
    check(call, message, fields)
    if fields is _GRANT:
        return [message]
    if call != "get_many":
        return []
    granted = [one for one in message["grants"] if type(one) is not dict or "error" not in one]
    for one in granted:
        check(call, one, _GRANT)
    return granted
