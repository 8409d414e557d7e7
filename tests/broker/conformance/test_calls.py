"""Each call of both clients, on a real broker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from brokers import BROKER_UID, await_end
from conformance.clients import GPU, READONLY, refusal
from serving import GPU as SIMULATED

UUID = SIMULATED[1]
#: A msgpack map, as gdrpy's clients store.
METADATA = b"\x81\xa1k\x01"
OTHER_UID = 40011


@pytest.fixture
def peer(start_client, broker):
    """A client of the broker."""
    return start_client(broker.path)


class TestAllocate:
    def test_of_host_memory_makes_a_region_as_it_is_told(self, peer):
        region = peer.allocate("a", 5000, mode=0o640, metadata=METADATA)
        number = region.pop("number")
        assert number > 0
        assert region == {
            "handle": 0,
            "nbytes": 5000,
            "size": 8192,
            "version": 1,
            "device": -1,
            "sealed": False,
            "readonly": False,
            "enforced": False,
            "name": "a",
            "uuid": "",
            "metadata": METADATA.hex(),
        }
        assert peer.stat("a")["mode"] == 0o640

    def test_of_the_same_name_finds_it(self, peer):
        first = peer.allocate("a", metadata=METADATA)
        second = peer.allocate("a")
        assert (second["number"], second["metadata"]) == (first["number"], METADATA.hex())

    @pytest.mark.parametrize("device", ["0", UUID])
    def test_on_a_gpu_tells_its_uuid(self, peer, device):
        region = peer.allocate("a", device=device)
        assert (region["device"], region["uuid"], region["size"]) == (0, UUID, 2 << 20)

    def test_for_a_gpu_view_is_told_to_the_broker(self, peer, client):
        peer.allocate("a", device="0", flags=GPU)
        (holder,) = client.ok("stat", name="a")["holders"]
        assert (holder["pid"], holder["writable"], holder["gpu"]) == (peer.pid, True, True)

    def test_without_a_name_has_none(self, peer):
        region = peer.allocate(None)
        assert (region["name"], region["version"]) == ("", 0)

    @pytest.mark.parametrize("name", ["gewichte-für-müller", "x" * 255])
    def test_takes_names_of_utf8(self, peer, name):
        assert peer.allocate(name)["name"] == name
        assert peer.get(name, 0)["name"] == name


class TestCreate:
    def test_makes_a_draft_that_publish_names(self, peer, start_client, broker):
        draft = peer.create("a", metadata=METADATA)
        assert draft["version"] == 0
        reader = start_client(broker.path)
        assert refusal(reader.get, "a", 0).name == "NotFound"
        peer.publish(draft["handle"])
        found = reader.get("a", 0)
        assert (found["number"], found["version"]) == (draft["number"], 1)

    def test_of_a_name_that_exists_makes_its_next_version(self, peer):
        first = peer.allocate("a")
        peer.publish(peer.create("a")["handle"])
        second = peer.get("a", 0)
        assert second["version"] == 2
        assert second["number"] != first["number"]


class TestGet:
    def test_shares_the_memory_with_others(self, peer, client):
        handle = peer.allocate("a")["handle"]
        peer.write(handle, "from one")
        assert client.get("a").bytes(8) == b"from one"
        client.get("a", readonly=False).write(b"from two")
        assert bytes.fromhex(peer.read(handle, 8)["bytes"]) == b"from two"

    def test_of_a_simulated_gpus_memory_maps_it(self, peer, start_client, broker):
        peer.write(peer.allocate("a", device="0")["handle"], "on a GPU")
        other = start_client(broker.path)
        assert bytes.fromhex(other.read(other.get("a", 0)["handle"], 8)["bytes"]) == b"on a GPU"

    def test_to_read_holds_it_as_a_reader(self, peer, client):
        client.allocate("a").close()
        region = peer.get("a", READONLY)
        assert region["readonly"]
        (holder,) = (
            one for one in client.ok("stat", name="a")["holders"] if one["pid"] == peer.pid
        )
        assert not holder["writable"]


class TestSeal:
    def test_makes_a_region_that_is_granted_to_read_alone(self, peer):
        peer.seal(peer.allocate("a")["handle"])
        region = peer.get("a", 0)
        assert (region["sealed"], region["readonly"]) == (True, True)


class TestRelease:
    def test_gives_the_lease_back(self, peer, client):
        handles = [peer.allocate("a")["handle"], peer.get("a", 0)["handle"]]
        for handle, left in zip(handles, (1, 0), strict=True):
            peer.release(handle)
            peer.list("")  # the release has no reply
            assert client.ok("stat", name="a")["writers"] == left

    def test_frees_memory_without_a_name(self, peer, client):
        handle = peer.allocate(None)["handle"]
        assert client.ok("status")["regions"] == 1
        peer.release(handle)
        peer.list("")
        assert client.ok("status")["regions"] == 0

    def test_of_all_to_a_broker_that_is_busy_for_too_long_ends_them(
        self, start_client, broker, client
    ):
        peer = start_client(broker.path, timeout=0.5)
        handles = [peer.allocate(None)["handle"] for _ in range(800)]
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            for handle in handles:
                peer.send("release", handle)
            for _ in handles:
                peer.answer()
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        while client.ok("status")["leases"]:
            pass

    def test_of_many_to_a_broker_that_is_busy_needs_no_other_call(self, peer, broker, client):
        handles = [peer.allocate(None)["handle"] for _ in range(800)]
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            for handle in handles:
                peer.send("release", handle)
            peer.await_sleep()
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        for _ in handles:
            peer.answer()
        while client.ok("status")["leases"]:
            pass


class TestClose:
    def test_ends_leases_and_leaves_the_memory_usable(self, peer, client):
        handle = peer.allocate("a")["handle"]
        peer.close()
        while client.ok("stat", name="a")["writers"]:
            pass
        assert refusal(peer.seal, handle).name == "Closed"
        peer.write(handle, "still there")
        assert bytes.fromhex(peer.read(handle, 11)["bytes"]) == b"still there"
        peer.release(handle)


class TestDelete:
    def test_ends_the_name_and_leaves_the_memory_to_its_holders(self, peer):
        handle = peer.allocate("a")["handle"]
        peer.delete("a")
        assert refusal(peer.get, "a", 0).name == "NotFound"
        peer.write(handle, "still there")
        assert bytes.fromhex(peer.read(handle, 11)["bytes"]) == b"still there"

    def test_of_no_region_is_refused(self, peer):
        assert refusal(peer.delete, "a").name == "NotFound"


class TestStat:
    def test_tells_all_of_a_region(self, peer):
        region = peer.allocate("a", 100, device="0", mode=0o604, metadata=METADATA)
        assert peer.stat("a") == {
            "number": region["number"],
            "name": "a",
            "nbytes": 100,
            "size": 2 << 20,
            "version": 1,
            "device": 0,
            "uuid": UUID,
            "mode": 0o604,
            "uid": os.geteuid(),
            "gid": os.getegid(),
            "sealed": False,
            "linked": True,
            "readers": 0,
            "writers": 1,
            "asleep": 0,
            "metadata": METADATA.hex(),
        }


class TestList:
    def test_tells_of_all_pages_in_order(self, peer, client):
        names = [f"many/{'x' * 100}{number:04}" for number in range(400)]
        for name in names:
            client.allocate(name).close()
        client.allocate("other").close()
        assert client.ok("list", prefix="many/", after="")["next"] is not None
        assert [one["name"] for one in peer.list("many/")["regions"]] == names
        assert peer.list("none")["regions"] == []

    def test_tells_what_a_stat_does_but_the_metadata(self, peer):
        peer.allocate("a", device="0", metadata=METADATA)
        (told,) = peer.list("")["regions"]
        assert told == {**peer.stat("a"), "metadata": ""}


class TestWatch:
    def test_hears_of_names_that_begin_alike(self, peer, client):
        handle = peer.watch("a/")["handle"]
        client.allocate("b").close()
        number = client.allocate("a/1")["region"]
        client.ok("seal", region=number)
        client.ok("delete", name="a/1")
        told = {"name": "a/1", "number": number}
        for kind, version in (("allocated", 1), ("sealed", 1), ("deleted", 1)):
            assert peer.next(handle, 20_000) == {"kind": kind, "version": version, **told}

    def test_times_out_without_an_event_and_goes_on(self, peer, client):
        handle = peer.watch("")["handle"]
        assert refusal(peer.next, handle, 10).name == "Timeout"
        client.allocate("a").close()
        assert peer.next(handle, 20_000)["name"] == "a"

    def test_leaves_the_other_connection_alone(self, peer):
        handle = peer.watch("")["handle"]
        peer.allocate("a")
        assert peer.next(handle, 20_000)["kind"] == "allocated"
        peer.unwatch(handle)
        assert peer.stat("a")["name"] == "a"


class TestRefusal:
    @pytest.mark.parametrize("device", ["9", UUID.replace("6", "7")])
    def test_for_no_such_device_is_not_found(self, peer, device):
        assert refusal(peer.allocate, "a", device=device).name == "NotFound"

    @pytest.mark.parametrize("device", ["-1", "+0", " 0", "65536", "x" * 41])
    def test_of_a_device_that_cannot_be_names_it(self, peer, device):
        refused = refusal(peer.allocate, "a", device=device)
        assert refused.name == "InvalidRequest"
        assert refused.text.startswith("allocate: ")
        assert device in refused.text

    def test_for_another_size_is_a_mismatch(self, peer):
        peer.allocate("a", 4096)
        assert refusal(peer.allocate, "a", 8192).name == "SizeMismatch"

    def test_for_a_limit_tells_whether_to_ask_again(self, start_client, start_broker):
        broker = start_broker(quotas={"device": 8192})
        peer = start_client(broker.path)
        assert refusal(peer.allocate, "a", 8193).name == "TooLarge"
        peer.allocate("a", 8192)
        assert refusal(peer.allocate, "b", 4096).name == "QuotaExceeded"

    @pytest.mark.parametrize(
        ("call", "words", "named"),
        [
            ("get", ("", 0), "name"),
            ("get", ("x" * 256, 0), "name"),
            ("stat", ("",), "name"),
            ("list", ("x" * 256,), "prefix"),
            ("watch", ("x" * 256,), "prefix"),
            ("allocate", ("a", 0), "nbytes"),
            ("allocate", ("a", (1 << 61) + 1), "nbytes"),
        ],
    )
    def test_of_an_argument_names_it(self, peer, call, words, named):
        refused = refusal(getattr(peer, call), *words)
        assert refused.name == "InvalidRequest"
        assert refused.text.startswith(call)
        assert named in refused.text
        assert peer.list("")["regions"] == []

    def test_of_a_mode_names_it(self, peer):
        refused = refusal(peer.allocate, "a", mode=0o777)
        assert (refused.name, "mode" in refused.text) == ("InvalidRequest", True)


class TestUsers:
    @pytest.fixture
    def public(self, start_broker):
        if os.geteuid() != 0:
            pytest.skip("being other users needs CAP_SETUID")
        return start_broker(uid=BROKER_UID, options={"mode": 0o666})

    @pytest.fixture
    def start_as(self, start_client, public):
        def start(uid):
            # A process that has become another user's cannot be traced, as its leak checker would.
            client = start_client(ASAN_OPTIONS="detect_leaks=0")
            client.become(uid)
            client.connect(public.path, 10_000, 10_000)
            return client

        return start

    def test_get_what_the_mode_says(self, start_as):
        owner, other = start_as(40010), start_as(OTHER_UID)
        owner.allocate("private", mode=0o600)
        owner.allocate("readable", mode=0o604)
        owner.allocate("writable", mode=0o606)
        assert refusal(other.get, "private", 0).name == "PermissionDenied"
        assert other.get("readable", 0)["readonly"]
        assert not other.get("writable", 0)["readonly"]
        assert refusal(other.delete, "readable").name == "PermissionDenied"
        assert [one["name"] for one in other.list("")["regions"]] == ["readable", "writable"]

    def test_are_refused_by_a_socket_of_another(self, start_client, start_broker):
        if os.geteuid() != 0:
            pytest.skip("being other users needs CAP_SETUID")
        broker = start_broker(uid=BROKER_UID)
        client = start_client(ASAN_OPTIONS="detect_leaks=0")
        client.become(OTHER_UID)
        refused = refusal(client.connect, broker.path, 1000, 0)
        assert refused.name == "PermissionDenied"
        assert refused.text.endswith(
            f"connecting to {broker.path}: Permission denied; the socket (mode 0600) does not "
            f"admit this user: start a broker of your own by 'gdrpy serve', or have one started "
            f"there with --group or --mode"
        )

    def test_are_told_of_a_folder_that_does_not_admit_them(self, start_client, public_path):
        if os.geteuid() != 0:
            pytest.skip("being other users needs CAP_SETUID")
        folder = public_path / "gdrpy"
        (folder / "there").mkdir(parents=True)
        folder.chmod(0o700)
        client = start_client(ASAN_OPTIONS="detect_leaks=0")
        client.become(OTHER_UID)
        refused = refusal(client.connect, f"{folder}/there/broker.sock", 1000, 0)
        assert refused.name == "PermissionDenied"
        told = f"Permission denied; the folder {folder} (mode 0700) does not admit this user: start"
        assert told in refused.text


class TestPath:
    def test_is_that_of_the_environment(self, start_client, broker):
        client = start_client(GDRPY_SOCKET=broker.path)
        client.connect("-", 10_000, 0)
        assert client.list("")["regions"] == []

    @pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "TMPDIR"])
    def test_of_a_user_is_in_a_private_folder(self, start_client, public_path, variable):
        if os.geteuid() != 0:
            pytest.skip("being other users needs CAP_SETUID")
        folder = public_path if variable[0] == "X" else public_path / f"gdrpy-{OTHER_UID}"
        (folder / "gdrpy").mkdir(parents=True)
        (folder / "gdrpy/broker.sock").touch()
        for path in (folder, folder / "gdrpy", folder / "gdrpy/broker.sock"):
            path.chmod(0o700)
            os.chown(path, OTHER_UID, OTHER_UID)
        environment = {"XDG_RUNTIME_DIR": "", "TMPDIR": "", variable: str(public_path)}
        client = start_client(ASAN_OPTIONS="detect_leaks=0", GDRPY_SOCKET="", **environment)
        client.become(OTHER_UID)
        refused = refusal(client.connect, "-", 1000, 0)
        assert refused.name == "BrokerUnavailable"
        assert f"no broker answers at {folder}/gdrpy/broker.sock (" in refused.text

    def test_is_not_in_a_folder_that_another_user_made(self, start_client, public_path):
        if os.geteuid() != 0:
            pytest.skip("being other users needs CAP_SETUID")
        if Path("/run/gdrpy").exists():
            pytest.skip("root has, or had, a broker on this machine")
        (public_path / f"gdrpy-{OTHER_UID}").mkdir()
        client = start_client(
            ASAN_OPTIONS="detect_leaks=0",
            GDRPY_SOCKET="",
            XDG_RUNTIME_DIR="",
            TMPDIR=str(public_path),
        )
        client.become(OTHER_UID)
        refused = refusal(client.connect, "-", 1000, 0)
        assert refused.name == "PermissionDenied"
        assert "XDG_RUNTIME_DIR or TMPDIR" in refused.text

    @pytest.mark.parametrize("kind", ["file", "folder"])
    def test_of_no_socket_is_refused(self, start_client, tmp_path, kind):
        path = tmp_path / kind
        path.mkdir() if kind == "folder" else path.touch()
        refused = refusal(start_client().connect, path, 1000, 0)
        assert refused.name == "BrokerUnavailable"
        assert f"no broker answers at {path} (it is not a socket): start one" in refused.text

    def test_that_is_too_long_is_refused(self, start_client):
        assert refusal(start_client().connect, "/" + "x" * 107, 1000, 0).name == "InvalidRequest"


class TestProcess:
    def test_that_is_killed_gives_its_leases_back(self, peer, client):
        peer.allocate("a")
        peer.allocate(None)
        peer.kill()
        await_end(peer.pid)
        while client.ok("stat", name="a")["writers"]:
            pass
        assert client.ok("status")["leases"] == 0

    def test_ends_them_though_a_forked_child_lives(self, peer, client):
        peer.allocate("a")
        child = peer.linger()["pid"]
        try:
            peer.kill()
            while client.ok("stat", name="a")["writers"]:
                pass
        finally:
            os.kill(child, 9)

    @pytest.mark.parametrize(
        "words", [("stat", "a"), ("list", ""), ("get", "a", 0), ("seal", 0), ("watch", "")]
    )
    def test_that_is_forked_must_connect_itself(self, peer, words):
        peer.allocate("a")
        refused = refusal(peer.fork, *words)
        assert refused.name == "Forked"
        assert peer.stat("a")["writers"] == 1

    def test_that_is_forked_leaves_its_parents_lease(self, peer):
        handle = peer.allocate("a")["handle"]
        peer.fork("release", handle)
        peer.fork("close")
        assert peer.stat("a")["writers"] == 1

    def test_has_as_many_descriptors_as_leases(self, peer, broker, client):
        client.allocate("a").close()
        peer.release(peer.get("a", 0)["handle"])  # opens what stays open
        before = len(peer.descriptors())
        handles = [peer.get("a", 0)["handle"] for _ in range(50)]
        assert len(peer.descriptors()) == before + 50
        refusal(peer.get, "none", 0)
        broker.restart()
        for handle in handles:
            peer.release(handle)
        peer.list("")
        assert len(peer.descriptors()) == before

    def test_closes_all_on_exec(self, peer):
        peer.allocate("a")
        peer.watch("")
        for fd in peer.descriptors():
            if str(fd.readlink()).startswith(("socket:", "/memfd:")):
                told = (fd.parents[1] / "fdinfo" / fd.name).read_text()
                assert int(told.partition("flags:")[2].split()[0], 8) & os.O_CLOEXEC
