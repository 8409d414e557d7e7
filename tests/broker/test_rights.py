"""Who may do what with a region: every class of user by every mode, with real users.

The broker is an ordinary user's, so that root and that user are two of the classes. What must be
allowed is worked out here from the words of the specification, not by the broker's code.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import mmap
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np  # here, for other users may not be able to read it
import pytest

import gdrpy
from brokers import BROKER_UID, Broker, Template, running
from gdrpy.broker.server import rights
from gdrpy.broker.server.rights import Identity, UserMap, identity_of
from gdrpy.broker.server.table import Session, Table
from gdrpy.broker.unix import MAX_GROUPS
from gdrpy.cli import main
from rawclient import RawClient, Reply, allocation

OWNER, GROUP = 40001, 40100
#: Who asks: user, group, supplementary groups.
ASKERS: dict[str, tuple[int, int, list[int]]] = {
    "owner": (OWNER, GROUP, []),
    "owner in another group": (OWNER, 40999, []),
    "group": (40002, GROUP, []),
    "supplementary group": (40003, 40999, [40998, GROUP]),
    "other": (40004, 40999, [40998]),
    "root": (0, 0, []),
    "broker's user": (BROKER_UID, BROKER_UID, []),
}
#: The metadata of a ring, as far as the broker looks at it.
RING = b"\x81\xa6format\xa4ring"
MODES = [0o000, 0o400, 0o200, 0o600, 0o040, 0o060, 0o020, 0o004, 0o006, 0o002]
MODES += [0o640, 0o660, 0o644, 0o664, 0o666, 0o466, 0o066, 0o606, 0o604]


@pytest.fixture(scope="module")
def broker(template: Template, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of an ordinary user, to which everybody may connect."""
    if os.geteuid() != 0:
        pytest.skip("being other users needs CAP_SETUID")
    folder = tmp_path_factory.mktemp("rights")
    with running(template, folder, uid=BROKER_UID, options={"mode": 0o666}) as made:
        yield made


def as_user(asker: str, work: Callable[[], Any]) -> Any:
    """What some work returns as somebody else, in a process of their own."""
    uid, gid, groups = ASKERS[asker]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            result = pickle.dumps((True, work()))
        except BaseException as error:
            result = pickle.dumps((False, repr(error)))
        os.write(write, result)
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    done, result = pickle.loads(answer)
    assert done, result
    return result


#: What is tried, each on a region of its own.
TRIED = (
    *("read", "write", "read by number", "write by number", "delete", "seal", "publish over"),
    *("chmod", "metadata", "stat", "stat by number", "list", "digest", "allocate again"),
)


def make(broker: Broker, prefix: str, mode: int) -> dict[str, int]:
    """A region for each thing that is tried, which nobody holds; their numbers."""
    with broker.client() as client:
        return {tried: int(client.allocate(prefix + tried, mode=mode)["region"]) for tried in TRIED}


def ask(broker: Broker, prefix: str, numbers: dict[str, int]) -> dict[str, str | bool]:
    """Try everything on the regions under a prefix; the error of each, or what was granted."""
    with broker.client() as client:

        def outcome(reply: Reply) -> str | bool:
            return str(reply["error"]) if "error" in reply else True

        def get(reply: Reply) -> str | bool:
            if "error" in reply:
                return str(reply["error"])
            return "readonly" if reply["readonly"] else "writable"

        def call(op: str, **fields: Any) -> str | bool:
            return outcome(client.call(op, **fields))

        found: dict[str, str | bool] = {}
        usual = {"gpu": False}
        for readonly, tried in ((True, "read"), (False, "write")):
            name = prefix + tried
            found[tried] = get(client.call("get", name=name, readonly=readonly, **usual))
            number = numbers[f"{tried} by number"]
            found[f"{tried} by number"] = get(
                client.call("get", region=number, readonly=readonly, **usual)
            )
        found["delete"] = call("delete", name=prefix + "delete")
        found["seal"] = call("seal", region=numbers["seal"])
        found["chmod"] = call("change", region=numbers["chmod"], mode=0o600)
        found["metadata"] = call("change", region=numbers["metadata"], metadata=b"new")
        found["stat"] = call("stat", name=prefix + "stat")
        found["stat by number"] = call("stat", region=numbers["stat by number"])
        found["list"] = prefix + "list" in client.names(prefix)
        found["digest"] = call("digest", region=numbers["digest"])
        found["allocate again"] = call("allocate", **allocation(prefix + "allocate again"))
        draft = client.call("create", **allocation(prefix + "publish over"))
        found["publish over"] = outcome(draft)
        if "error" not in draft:
            found["publish over"] = call("publish", region=draft["region"])
        return found


def expected(asker: str, mode: int) -> dict[str, str | bool]:
    """What the specification says of all that is tried."""
    uid, gid, groups = ASKERS[asker]
    owner = uid == OWNER
    if uid in (0, BROKER_UID):
        bits = 6
    elif owner:
        bits = mode >> 6
    elif GROUP in (gid, *groups):
        bits = mode >> 3 & 7
    else:
        bits = mode & 7
    may_read, may_write = bool(bits & 4), bool(bits & 2)
    may_own = owner or uid in (0, BROKER_UID)
    # By its number, who may do nothing with a region is not even told that it is there.
    denied, known = "PermissionDenied", may_read or may_write or may_own
    read = "readonly" if may_read else denied
    write = "writable" if may_read and may_write else read
    by_number: dict[str, str | bool] = {
        "read by number": read,
        "write by number": write,
        "seal": may_write or denied,
        "chmod": may_own or denied,
        "metadata": may_write or denied,
        "stat by number": may_read or may_own or denied,
        "digest": "InvalidRequest" if may_read else denied,  # it is not sealed
    }
    return {
        "read": read,
        "write": write,
        "delete": may_write or denied,
        "publish over": may_write or denied,
        "stat": may_read or may_own or denied,
        "list": may_read,
        "allocate again": (may_read and may_write) or denied,
        **{tried: found if known else "Gone" for tried, found in by_number.items()},
    }


class TestUserInManyGroups:
    @pytest.mark.parametrize("count", [257, MAX_GROUPS])
    def test_has_the_rights_of_all(
        self, count: int, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups = [*range(50001, 50001 + count - 1), GROUP]
        monkeypatch.setitem(ASKERS, "many groups", (40005, 40999, groups))

        def read() -> bytes:
            with broker.client() as client:
                return client.get("the group's").bytes(4)

        def make() -> None:
            with broker.client() as client:
                client.allocate("the group's", mode=0o640).write(b"here")

        as_user("owner", make)
        assert as_user("many groups", read) == b"here"
        with broker.client() as client:
            client.ok("delete", name="the group's")

    def test_is_told_that_they_are_too_many(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups = list(range(50001, 50001 + MAX_GROUPS + 1))
        monkeypatch.setitem(ASKERS, "many groups", (40005, 40999, groups))

        def refusal() -> tuple[str, str]:
            with broker.client(hello=False) as client:
                reply = client.receive()
                return reply["error"], reply["message"]

        assert as_user("many groups", refusal) == (
            "QuotaExceeded",
            "hello: the broker cannot serve this connection: its process is in more than 1024 "
            "groups: start it in fewer",
        )

    def test_count_as_the_administrator_says(self) -> None:
        users = UserMap(((100001, 1, 65535), (os.getuid(), 7, 1)))
        assert [users(one) for one in (100000, 100001, 165535, 165536)] == [
            100000,
            1,
            65535,
            165536,
        ]
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here, there:
            assert identity_of(here, users).uid == 7

    def test_that_all_unknown_users_have_is_no_users(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rights, "nobody", lambda kind="uid": 65534)
        assert UserMap(((60000, 1000, 5535),))(65534) == 65534
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
        assert rights.privileged_users() == {0}
        assert not Identity(1, 2, 65534, 65534, frozenset()).privileged

    def test_tells_the_number_of_unknown_users_from_that_of_unknown_groups(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unknown = {"uid": 65534, "gid": 65533}
        monkeypatch.setattr(rights, "nobody", lambda kind="uid": unknown[kind])
        users = UserMap(((60000, 1000, 5535),))
        assert [users(one) for one in (65533, 65534)] == [6533, 65534]
        assert [users(one, "gid") for one in (65533, 65534)] == [65533, 6534]

    def test_is_the_same_process_only_if_it_can_be_told(self) -> None:
        one = Identity(5, 7, 1, 1, frozenset([2]))
        assert one.is_same(Identity(0, 7, 1, 1, frozenset([2])))  # in another namespace
        for other in (
            Identity(5, 8, 1, 1, frozenset([2])),
            Identity(5, 7, 3, 1, frozenset([2])),
            Identity(5, 7, 1, 3, frozenset([2])),
            Identity(5, 7, 1, 1, frozenset()),
        ):
            assert not one.is_same(other)
        unknown = Identity(0, 0, 1, 1, frozenset())
        assert not unknown.is_same(unknown)

    def test_shares_them_among_connections_and_sessions(self) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here, there:
            first, second = (identity_of(one, UserMap()) for one in (here, there))
        assert first.groups is second.groups
        table = Table(lambda record: None, lambda region: None)
        table.commit(Session(1, first).began())
        assert table.sessions[1].identity.groups is first.groups


class TestRights:
    @pytest.mark.parametrize("mode", MODES, ids=[f"{mode:03o}" for mode in MODES])
    @pytest.mark.parametrize("asker", ASKERS)
    def test_are_those_of_the_mode(self, asker: str, mode: int, broker: Broker) -> None:
        prefix = f"{asker}/{mode:03o}/"
        numbers = as_user("owner", lambda: make(broker, prefix, mode))
        assert as_user(asker, lambda: ask(broker, prefix, numbers)) == expected(asker, mode)
        self.remove(broker, prefix)

    @staticmethod
    def remove(broker: Broker, prefix: str) -> None:
        with broker.client() as client:
            for name in client.names(prefix):
                client.ok("delete", name=name)
            assert client.ok("status")["regions"] == 0

    def test_of_drafts_are_their_maker_s_alone(self, broker: Broker) -> None:
        with broker.client() as client:
            number = client.create("draft", mode=0o666)["region"]
            for asker in ("owner", "other"):
                assert as_user(asker, lambda: number_of(broker, number)) == "Gone"
            assert as_user("other", lambda: names(broker)) == []
            client.ok("publish", region=number)
            assert as_user("other", lambda: names(broker)) == ["draft"]
            client.ok("delete", name="draft")

    @pytest.mark.parametrize("mode", MODES, ids=[f"{mode:03o}" for mode in MODES])
    @pytest.mark.parametrize("asker", ["owner", "group", "other", "broker's user"])
    def test_to_the_parts_of_a_ring_are_those_to_write_it(
        self, asker: str, mode: int, broker: Broker
    ) -> None:
        parts = ["ring/host", "ring/kernel", "ring/cpu", "ring/cpu.0"]
        others = ["ring/cpus", "ring/a/cpu", "ring/cpu.0/a", "region/cpu", "rings/cpu", "ring2"]

        def rings() -> None:
            with broker.client() as client:
                client.allocate("ring", mode=mode, metadata=RING)
                client.allocate("region", mode=0o600, metadata=b"\x81\xa6format\xa3any")
                client.allocate("rings", mode=0o600, metadata=b"\xc1ring")

        def ask() -> dict[str, list[str]]:
            found: dict[str, list[str]] = {"": [], "PermissionDenied": []}
            with broker.client() as client:
                for name in parts + others:
                    reply = client.call("allocate", **allocation(name))
                    found[str(reply.get("error", ""))].append(name)
                    draft = client.create(f"{name}") if "error" in reply else None
                    if draft is not None:
                        assert client.error("publish", region=draft["region"]) == reply["error"]
            return found

        as_user("owner", rings)
        may_write = asker == "broker's user" or expected(asker, mode)["delete"] is True
        assert as_user(asker, ask) == (
            {"": parts + others, "PermissionDenied": []}
            if may_write
            else {"": others, "PermissionDenied": parts}
        )
        self.remove(broker, "r")

    def test_to_be_told_of_changes_are_those_to_read(self, broker: Broker) -> None:
        def watched() -> list[str]:
            with broker.client() as watcher, broker.client() as client:
                watcher.ok("watch", prefix="")
                os.write(ready, b"x")
                os.read(go, 1)
                client.ok("status")
                client.allocate("mine", mode=0o600)
                events = []
                while not events or events[-1] != "mine":
                    event = watcher.receive()
                    if event["event"] != "freed":
                        events.append(event["name"])
                client.ok("delete", name="mine")
                return events

        is_ready, ready = os.pipe()
        go, let_go = os.pipe()
        with broker.client() as client, futures.ThreadPoolExecutor() as pool:
            told = pool.submit(as_user, "other", watched)
            os.read(is_ready, 1)
            client.allocate("secret", mode=0o660)
            client.allocate("public", mode=0o664)
            os.write(let_go, b"x")
            assert told.result() == ["public", "mine"]
            client.ok("delete", name="secret")
            client.ok("delete", name="public")
        for fd in (is_ready, ready, go, let_go):
            os.close(fd)


def number_of(broker: Broker, number: int) -> str:
    with broker.client() as client:
        return client.error("stat", region=number)


def names(broker: Broker) -> list[str]:
    with broker.client() as client:
        return sorted(client.names())


class TestCopy:
    def test_is_its_makers_word_to_nobody_else(self, broker: Broker) -> None:
        life = "ab" * 16

        def pretend() -> list[str | bool]:
            with broker.client() as client:
                number = client.allocate("pretended", mode=0o666)["region"]
                client.ok("seal", region=number, copy_of=[life, 7])
                return [get(client)]

        def get(client: RawClient) -> str | bool:
            reply = client.call("get", region=7, life=life, readonly=True, gpu=False)
            return str(reply["error"]) if "error" in reply else True

        assert as_user("other", pretend) == [True]
        with broker.client() as client:
            assert get(client) == "Gone"
            client.ok("delete", name="pretended")

    def test_is_not_what_somebody_else_who_may_write_it_says(self, broker: Broker) -> None:
        life = "ab" * 16
        with broker.client() as owner:
            number = owner.allocate("writable", mode=0o666)["region"]

            def pretend() -> str:
                with broker.client() as client:
                    return client.error("seal", region=number, copy_of=[life, 7])

            assert as_user("other", pretend) == "PermissionDenied"
            assert owner.ok("stat", region=number)["sealed"] is False
            assert owner.error("get", region=7, life=life, readonly=True, gpu=False) == "Gone"
            owner.ok("delete", name="writable")


class TestReadOnlyGrant:
    """Of memory files: the kernel keeps them, whatever the client tries."""

    @pytest.mark.parametrize("device", [-1, 0], ids=["host", "gpu"])
    def test_cannot_be_made_writable_by_another_user(self, device: int, broker: Broker) -> None:
        def attempts() -> dict[str, object]:
            with broker.client() as reader:
                grant = reader.get("kept")
                (fd,) = grant.fds
                return {
                    "granted": (grant["readonly"], grant["enforced"], grant.bytes(4)),
                    "write": error_of(lambda: os.write(fd, b"x")),
                    "map": error_of(lambda: mmap.mmap(fd, 4096)),
                    "reopen": error_of(lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR)),
                    "truncate": error_of(lambda: os.ftruncate(fd, 0)),
                    "chmod": error_of(lambda: os.fchmod(fd, 0o666)),
                    "seal": error_of(lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 8)),
                }

        with broker.client() as client:
            client.allocate("kept", mode=0o644, device=device).write(b"kept")
            assert as_user("other", attempts) == {
                "granted": (True, True, b"kept"),
                "write": errno.EBADF,
                "map": errno.EACCES,
                "reopen": errno.EACCES,
                "truncate": errno.EINVAL,
                "chmod": errno.EPERM,
                "seal": errno.EPERM,
            }
            assert client.get("kept").bytes(4) == b"kept"
            client.ok("delete", name="kept")

    @pytest.mark.parametrize("device", [-1, 0], ids=["host", "gpu"])
    def test_that_is_writable_cannot_be_resized_or_sealed(
        self, device: int, broker: Broker
    ) -> None:
        def attempts() -> list[int]:
            with broker.client() as writer:
                (fd,) = (grant := writer.get("kept", readonly=False)).fds
                size = grant["size"]
                return [
                    error_of(lambda: os.ftruncate(fd, 0)),
                    error_of(lambda: os.ftruncate(fd, 2 * size)),
                    error_of(lambda: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)),
                ]

        with broker.client() as client:
            client.allocate("kept", mode=0o666, device=device)
            assert as_user("other", attempts) == [errno.EPERM] * 3
            client.ok("delete", name="kept")


def error_of(attempt: Callable[[], object]) -> int:
    """The errno that an attempt fails with, 0 if it does not."""
    try:
        attempt()
    except OSError as error:
        return error.errno or 0
    return 0


class TestLimitsOfAUser:
    def test_are_their_own_alone(self, tmp_path: Path, broker: Broker) -> None:
        def use_up() -> list[str]:
            with limited.client() as client:
                client.allocate("a", 8192)
                errors = [client.error("allocate", **allocation("b", 1))]
                errors.append(client.error("allocate", **allocation("b", 8193)))
                client.ok("delete", name="a")
                client.reopen()
                for _ in range(2):
                    client.allocate(None, 1)
                errors.append(client.error("allocate", **allocation(None, 1)))
                return errors

        quotas = {"user": 8192, "regions": 2}
        setup = {"uid": BROKER_UID, "quotas": quotas, "options": {"mode": 0o666}}
        with closing(Template()) as template, running(template, tmp_path, **setup) as limited:
            assert as_user("owner", use_up) == ["QuotaExceeded", "TooLarge", "QuotaExceeded"]
            assert as_user("other", use_up) == ["QuotaExceeded", "TooLarge", "QuotaExceeded"]
            with limited.client() as client:  # root has no limit but the device's
                client.allocate("big", 1 << 20)


class TestCheckpoint:
    """Its files, which go with its name and have its mode and seal."""

    def make(self, broker: Broker, name: str, mode: int) -> None:
        """An index of files 0 and 1, of which the caller makes the first."""
        with gdrpy.connect(broker.path) as client:
            about = {"format": "checkpoint", "id": "01234567"}
            client.put(name, b"[]", "cpu", metadata=about, mode=mode).close()
            self.add(broker, name, 0, mode)

    def add(self, broker: Broker, name: str, number: int, mode: int) -> None:
        with gdrpy.connect(broker.path) as client:
            file = f"{name}/01234567/{number}"
            client.put(file, b"x", "cpu", metadata={"checkpoint": name}, mode=mode).close()

    @pytest.mark.parametrize("asker", ["owner", "other", "root"])
    def test_has_no_files_of_other_users(self, broker: Broker, asker: str) -> None:
        name = f"checkpoint/{asker}"

        def use() -> None:
            with gdrpy.connect(broker.path) as client:
                if asker != "other":
                    client.chmod(name, 0o606)
                    client.seal(name)
                client.delete(name)

        as_user("owner", lambda: self.make(broker, name, 0o606))
        as_user("group", lambda: self.add(broker, name, 1, 0o604))
        as_user(asker, use)
        with gdrpy.connect(broker.path) as client:
            (left,) = client.list(f"{name}/")
        assert (left.name, left.mode, left.sealed) == (f"{name}/01234567/1", 0o604, False)

    def test_keeps_files_that_the_one_who_deletes_it_may_not_write(self, broker: Broker) -> None:
        name = "checkpoint/shared"

        def delete() -> None:
            with gdrpy.connect(broker.path) as client:
                client.delete(name)

        as_user("owner", lambda: self.make(broker, name, 0o606))
        as_user("owner", lambda: self.add(broker, name, 1, 0o600))
        as_user("other", delete)
        with gdrpy.connect(broker.path) as client:
            assert [info.name for info in client.list(f"{name}/")] == [f"{name}/01234567/1"]


class TestNewRegion:
    @pytest.mark.parametrize("asker", ASKERS)
    def test_of_another_user_is_made_by_root_and_the_brokers_user_alone(
        self, broker: Broker, asker: str
    ) -> None:
        def make() -> list[Any]:
            uid, gid, _ = ASKERS[asker]
            with broker.client() as client:
                fields = allocation("owned/region")
                return [
                    client.call("create", **fields, owner=[*owner]).get("error")
                    for owner in ((uid, gid), (OWNER, gid), (uid, GROUP), (0, 0))
                ]

        expected = {
            "owner": [None, None, None, "PermissionDenied"],
            "root": [None] * 4,
            "broker's user": [None] * 4,
            "owner in another group": [None, None, "PermissionDenied", "PermissionDenied"],
            "group": [None, "PermissionDenied", None, "PermissionDenied"],
        }
        refused = [None, *["PermissionDenied"] * 3]
        assert as_user(asker, make) == expected.get(asker, refused)


class TestSnapshot:
    def test_of_read_only_regions_is_restored_by_their_owner(
        self, broker: Broker, tmp_path: Path
    ) -> None:
        tmp_path.chmod(0o777)
        for parent in tmp_path.parents[:2]:
            parent.chmod(0o755)

        def save_and_restore() -> list[tuple[Any, ...]]:
            with gdrpy.connect(broker.path) as client:
                client.put("mine/a", np.arange(3), "cpu", mode=0o440, seal=True).close()
                client.save(tmp_path / "s", ["mine/a"])
                told = client.stat("mine/a")
                client.chmod("mine/a", 0o640)
                client.delete("mine/a")
                client.restore(tmp_path / "s")
                return [(one.mode, one.uid, one.sealed) for one in (told, client.stat("mine/a"))]

        assert as_user("owner", save_and_restore) == [(0o440, OWNER, True)] * 2


class TestRefusal:
    def test_tells_nothing_of_a_region_to_who_may_not_read_it(self, broker: Broker) -> None:
        def owner() -> None:
            with broker.client() as client:
                client.allocate("refusal/secret", mode=0o600)
                client.allocate("refusal/known", mode=0o644)

        def other() -> list[tuple[Any, ...]]:
            with broker.client() as client:
                asked = {"readonly": True, "gpu": False}
                secret = client.call("get", name="refusal/secret", **asked)
                known = client.call("delete", name="refusal/known")
                number = client.ok("stat", name="refusal/known")["region"]
                owned = client.call("change", region=number, mode=0o666)
                fields = ("missing", "name", "message")
                return [tuple(map(reply.get, fields)) for reply in (secret, known, owned)]

        as_user("owner", owner)
        assert as_user("other", other) == [
            (
                "read",
                "refusal/secret",
                "get: user 40004 may not read region 'refusal/secret'; ask its owner, who may call "
                "broker.chmod('refusal/secret', 0o644)",
            ),
            (
                "write",
                "refusal/known",
                "delete: user 40004 may not write region 'refusal/known': it belongs to user "
                "40001, group 40100, mode 0644; ask its owner, who may call "
                "broker.chmod('refusal/known', 0o666)",
            ),
            (
                "own",
                "refusal/known",
                "chmod: region 'refusal/known' does not belong to user 40004: it belongs to user "
                "40001, group 40100, mode 0644; ask its owner to do it",
            ),
        ]

    @pytest.mark.parametrize(
        ("asker", "mode", "op", "named"),
        [
            ("group", 0o600, "get", "0o640"),
            ("supplementary group", 0o600, "delete", "0o660"),
            ("group", 0o644, "delete", "0o664"),
            ("other", 0o640, "get", "0o644"),
            ("other", 0o644, "delete", "0o666"),
            ("owner", 0o066, "get", "0o666"),
        ],
    )
    def test_names_the_least_mode_that_helps(
        self, broker: Broker, asker: str, mode: int, op: str, named: str
    ) -> None:
        name = f"least/{asker}/{mode:o}"

        def allocate() -> None:
            with broker.client() as client:
                client.allocate(name, mode=mode)

        def refused() -> str:
            with broker.client() as client:
                asked = {"readonly": True, "gpu": False} if op == "get" else {}
                return str(client.call(op, name=name, **asked)["message"])

        as_user("owner", allocate)
        remedy = f"ask its owner, who may call broker.chmod({name!r}, {named})"
        assert as_user(asker, refused).endswith(remedy)


class TestStatus:
    @pytest.mark.parametrize("asker", ["root", "other"])
    def test_tells_users_who_they_are(self, broker: Broker, asker: str) -> None:
        def told() -> int:
            with broker.client() as client:
                return client.ok("status")["uid"]

        assert as_user(asker, told) == ASKERS[asker][0]

    @pytest.mark.parametrize(
        ("asker", "seen"),
        [
            ("root", ["draft", "open", "secret"]),
            ("owner", ["draft", "open", "secret"]),
            ("group", ["open"]),
            ("other", ["open"]),
        ],
    )
    def test_tells_who_holds_memory_without_a_name_to_who_may_read_it(
        self, broker: Broker, asker: str, seen: list[str]
    ) -> None:
        def told() -> list[str]:
            with broker.client() as client:
                return sorted(one["name"] for one in client.ok("status").get("nameless", []))

        def hold(ready: socket.socket) -> None:
            with broker.client() as client:
                client.allocate("secret", mode=0o600).close()
                client.allocate("open", mode=0o644).close()
                client.create("draft", mode=0o644).close()
                client.ok("delete", name="secret")
                client.ok("delete", name="open")
                ready.send(b"holds")
                ready.recv(1)

        ours, theirs = socket.socketpair()
        child = os.fork()
        if not child:
            try:
                ours.close()
                as_user("owner", lambda: hold(theirs))
            finally:
                os._exit(0)
        theirs.close()
        with ours:
            assert ours.recv(10) == b"holds"
            found = as_user(asker, told)
        os.waitpid(child, 0)
        assert found == seen


class TestSuggestedName:
    def test_is_one_that_the_user_may_read(self, broker: Broker) -> None:
        with broker.client() as client:
            client.allocate("weights", mode=0o600)
            client.allocate("weights-b", mode=0o604)

        def mistype() -> str:
            with contextlib.redirect_stderr(io.StringIO()) as said:
                assert main(["stat", "weihgts", "--socket", broker.path]) == 1
            return said.getvalue()

        missing = "error: stat: there is no region of the name 'weihgts': did you mean "
        # Here, which also imports what other users may not be able to read.
        assert mistype() == f"{missing}'weights'?\n"
        assert as_user("other", mistype) == f"{missing}'weights-b'?\n"
