"""The evidence of a run in NCCL's own log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_ENABLED = re.compile(r"GDRCOPY enabled library (\d+\.\d+) driver (\d+\.\d+)")
_SOCKET = re.compile(r"via NET/Socket/")
_OTHER_WAY = re.compile(r"via (?:P2P|SHM|NET/(?!Socket/))\S*")
_TROUBLE = re.compile(r"NCCL WARN (.*gdr.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Log:
    """The log of one rank. ``gdrcopy`` is the versions of library and driver, None without it."""

    gdrcopy: tuple[str, str] | None
    socket_channels: int
    other_ways: list[str]
    trouble: list[str]

    @classmethod
    def read(cls, text: str) -> Log:
        """Parse the text of a log."""
        enabled = _ENABLED.search(text)
        return cls(
            (enabled[1], enabled[2]) if enabled else None,
            len(_SOCKET.findall(text)),
            sorted(set(_OTHER_WAY.findall(text))),
            _TROUBLE.findall(text),
        )

    def why_not_in_use(self) -> str | None:
        """Why this does not show that GDRCopy was in use over sockets; None if it does."""
        if self.gdrcopy is None:
            return "no line «GDRCOPY enabled»" + "".join(f"; {one}" for one in self.trouble)
        if self.trouble:
            return "; ".join(self.trouble)
        if not self.socket_channels:
            return "no channel goes through NET/Socket"
        if self.other_ways:
            return f"channels go {', '.join(self.other_ways)}"
        return None

    def json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "gdrcopy": None if self.gdrcopy is None else list(self.gdrcopy),
            "socket_channels": self.socket_channels,
            "other_ways": self.other_ways,
            "trouble": self.trouble,
        }
