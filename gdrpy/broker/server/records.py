"""The journal's records: one for each change of the broker's state.

A snapshot consists of the same records. They are arrays that begin with their tag; new fields are
only added at the end, with a default.
"""

from __future__ import annotations

import msgspec

from gdrpy.broker.copies import Mark


class Record(msgspec.Struct, array_like=True, gc=False):
    """A change."""


class Life(Record, tag=0):
    """The state's identity, and the least number of the next region or session."""

    life: str
    next_number: int


class Made(Record, tag=1):
    """A new region, without a lease, whose name does not refer to it yet."""

    number: int
    name: str | None
    nbytes: int
    size: int
    device: int
    uid: int
    gid: int
    mode: int
    metadata: bytes
    #: Not 0 for a region that was published and replaced before a snapshot.
    version: int = 0
    #: The GPU's, since another broker may number the GPUs differently; empty for the host.
    uuid: str = ""
    #: Seconds that other holders have once its exporter's lease ends; None for one that is unbound.
    grace: float | None = None


class Published(Record, tag=2):
    """A region's name refers to it from now on, with this version; and others', with theirs. The
    names of the ``unlinked`` ones no longer refer to them.
    """

    region: int
    version: int
    others: list[tuple[int, int]] = []
    unlinked: list[int] = []

    @property
    def regions(self) -> list[tuple[int, int]]:
        """All of them, with their versions."""
        return [(self.region, self.version), *self.others]


class Unlinked(Record, tag=3):
    """The names of a region and of others no longer refer to them."""

    region: int
    others: list[int] = []

    @property
    def regions(self) -> list[int]:
        """All of them."""
        return [self.region, *self.others]


class SealedNow(Record, tag=4):
    region: int
    #: The life and the number of another broker's region that it is a copy of.
    copy_of: tuple[str, int] | None = None
    #: The mark in its metadata.
    mark: Mark | None = None


class Digested(Record, tag=5):
    region: int
    sha256: str


class Changed(Record, tag=6):
    region: int
    mode: int
    metadata: bytes


class Began(Record, tag=7):
    """A client's session."""

    session: int
    pid: int
    process: int
    uid: int
    gid: int
    groups: list[int]


class Ended(Record, tag=8):
    session: int


class Granted(Record, tag=9):
    """The session's first grant of a region, or the first of its kind."""

    session: int
    region: int
    writable: bool
    gpu: bool


class Released(Record, tag=10):
    """The session returned its last grant of the region."""

    session: int
    region: int


class Slept(Record, tag=11):
    """The session has a version of a name asleep. The region itself may be gone before it wakes."""

    session: int
    region: int
    name: str
    version: int
    #: The region's.
    uid: int


class Woke(Record, tag=12):
    session: int
    region: int


class Kept(Record, tag=13):
    """A copy of a region that sleeps keeps the region's name for its owner."""

    region: int
    #: The name's, which the copy's contents had; 0 if that is not known.
    version: int = 0


class Left(Record, tag=14):
    """The session's connection is closed, and whether its process lives on cannot be seen."""

    session: int


class Bound(Record, tag=15):
    """The session whose lease a region is bound to: its exporter's."""

    region: int
    session: int


_OfRegion = Made | Published | Unlinked | SealedNow | Digested | Changed | Kept | Bound
_OfSession = Began | Ended | Granted | Released | Slept | Woke | Left

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Life | _OfRegion | _OfSession).decode
