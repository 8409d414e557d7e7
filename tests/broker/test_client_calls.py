"""What each call asks, and what it refuses to ask."""

import gc
import weakref

import msgpack
import numpy as np
import pytest

import gdrpy
from fake_server import LIFE
from gdrpy._core._mapping import run
from gdrpy.broker import replies
from gdrpy.broker.client import arrays, calls, lookup, region_calls
from gdrpy.broker.requests import encode
from golden import REPLIES, REQUESTS


class Recorder:
    """A client that knows the answer, and keeps what it was asked; its regions are the grants."""

    def __init__(self, *answers):
        self._answers = [dict(REPLIES[answer][0]) for answer in answers]
        self.asked = []

    async def _ask(self, request, kind, lease=None):
        request.id = 1
        self.asked.append(request)
        return replies.decode(type(request), kind, msgpack.packb(self._answers.pop(0))), [3]

    class _region_type:
        @staticmethod
        def _granted(broker, grant, *_):
            return grant


def asked(call, answer, *args, **kwargs):
    client = Recorder(answer)
    run(call, client, *args, **kwargs)
    (request,) = client.asked
    return encode(request).hex()


class HeldRegion:
    """A region as its calls need it."""

    id, name, version, sealed, _cpu, _lease = 7, "a", 0, False, None, None

    def __init__(self, answer):
        self._broker = Recorder(answer)

    def _check(self, call):
        pass

    def _seal_here(self, view):
        pass


def asked_about_region(call, answer):
    region = HeldRegion(answer)
    run(call, region)
    return encode(region._broker.asked[0]).hex()


class TestCall:
    """Each asks exactly its golden frame."""

    def test_allocate(self):
        frame = asked(
            calls.allocate, "grant of allocate", "a", 4096, mode=0o640, metadata={"k": 1}, gpu=False
        )
        assert frame == REQUESTS["allocate"][1]

    def test_allocate_without_a_name_on_the_host_asks_for_no_gpu_view(self):
        frame = asked(calls.allocate, "grant of allocate", None, 1, "cpu")
        assert frame == REQUESTS["allocate anonymous host memory"][1]

    def test_create(self):
        assert asked(calls.create, "grant", "a", 4096, 1, gpu=False) == REQUESTS["create"][1]

    def test_create_on_a_gpu_by_its_uuid(self):
        uuid = "gpu-67647270-7920-7369-6D75-6c6174656400"
        frame = asked(calls.create, "grant", "a", 4096, uuid, gpu=False)
        assert frame == REQUESTS["create on a GPU by its UUID"][1]

    def test_get(self):
        assert asked(calls.get, "grant", "a", gpu=False) == REQUESTS["get"][1]

    def test_attach(self):
        frame = asked(calls.attach, "grant", LIFE, 7, gpu=False, cpu=True, readonly=True)
        assert frame == REQUESTS["get by identity"][1]

    def test_list(self):
        assert asked(lookup.list_regions, "list", "a") == REQUESTS["list"][1]

    def test_stat(self):
        assert asked(lookup.stat, "stat", "a") == REQUESTS["stat"][1]

    def test_delete(self):
        assert asked(calls.delete, "done", "a") == REQUESTS["delete"][1]

    def test_rounded_size(self):
        frame = asked(calls.rounded_size, "rounded_size", 4096, "cpu")
        assert frame == REQUESTS["rounded_size"][1]

    def test_status(self):
        assert asked(calls.status, "status") == REQUESTS["status"][1]

    def test_chmod_finds_the_region_of_the_name_first(self):
        client = Recorder("stat", "done")
        run(calls.chmod, client, "a", 0o644)
        stat, change = client.asked
        assert encode(stat).hex() == REQUESTS["stat"][1]
        assert encode(change).hex() == REQUESTS["change"][1]

    def test_seal_finds_the_region_of_the_name_first(self):
        client = Recorder("stat", "done")
        run(calls.seal, client, "a")
        assert encode(client.asked[1]).hex() == REQUESTS["seal"][1]

    def test_region_publish(self):
        assert asked_about_region(region_calls.publish, "publish") == REQUESTS["publish"][1]

    def test_region_seal(self):
        assert asked_about_region(region_calls.seal, "done") == REQUESTS["seal"][1]

    def test_region_delete(self):
        frame = asked_about_region(region_calls.delete, "done")
        assert frame == REQUESTS["delete if it means this"][1]

    def test_region_info(self):
        assert asked_about_region(region_calls.info, "stat") == REQUESTS["stat by number"][1]


class TestManyNames:
    def test_are_asked_for_in_portions_that_fit_a_packet(self):
        class Counter(Recorder):
            async def _ask(self, request, kind, lease=None):
                self.asked.append(encode(request))
                return kind(grants=[None for _ in request.names], more=False), []

            class _region_type(Recorder._region_type):
                def close(self):
                    pass

                @classmethod
                def _granted(cls, *_):
                    return cls()

        client = Counter()
        names = [f"{number:0255}" for number in range(300)] + ["x"] * 9000
        assert len(run(calls.get_many, client, names)) == 9300
        sent = [msgpack.unpackb(packet)["names"] for packet in client.asked]
        assert [name for batch in sent for name in batch] == names
        assert len(sent) == 3 + 3


class TestRefusal:
    """Bad arguments raise before anything is asked."""

    @pytest.mark.parametrize(
        ("call", "args", "kwargs", "error", "message"),
        [
            (calls.get, [7], {}, TypeError, "get: name must be a str, not 7"),
            (calls.get, [""], {}, ValueError, "get: name must be 1 to 255 bytes long"),
            (calls.get, ["ü" * 128], {}, ValueError, "get: name must be 1 to 255 bytes long"),
            (calls.get, ["\udcff"], {}, ValueError, "get: name must be Unicode text"),
            (lookup.list_regions, ["\udcff"], {}, ValueError, "list: prefix must be Unicode text"),
            (
                lookup.list_regions,
                ["ü" * 128],
                {},
                ValueError,
                "list: prefix must be 0 to 255 bytes long",
            ),
            (lookup.list_regions, [None], {}, TypeError, "list: prefix must be a str"),
            (calls.get, ["a"], {"wait": -1}, ValueError, "get: wait must be a number of seconds"),
            (calls.get, ["a"], {"wait": -(10**400)}, ValueError, "wait must be a number of sec"),
            (calls.get, ["a"], {"wait": "1"}, TypeError, "wait must be a number .*, not '1'"),
            (arrays.put, [np.ones(3), "a"], {}, TypeError, r"put: name must be a str, not array\("),
            (arrays.put_tensors, [{}, "a"], {}, TypeError, "put_tensors: name must be a str"),
            (arrays.load, ["/x", 7], {}, TypeError, "load: name must be a str, not 7"),
            (calls.get_many, [["a", 7]], {}, TypeError, "get_many: name must be a str"),
            (calls.get_many, ["ab"], {}, TypeError, "get_many: names must be several"),
            (calls.allocate, ["a", 0], {}, ValueError, "allocate: nbytes must be 1 or more"),
            (calls.allocate, ["a", 1.5], {}, TypeError, "allocate: nbytes must be an int"),
            (calls.allocate, ["a", 1 << 61 | 1], {}, ValueError, r"nbytes must be at most 2\*\*61"),
            (calls.rounded_size, [1 << 61 | 1], {}, ValueError, r"nbytes must be at most 2\*\*61"),
            (calls.allocate, ["a", 1, 65536], {}, ValueError, "from 0 to 65535, not 65536"),
            (calls.allocate, ["a", 1, -1], {}, ValueError, "allocate: device must be a CUDA"),
            (calls.allocate, ["a", 1, "gpu"], {}, ValueError, "allocate: device must be a CUDA"),
            (calls.allocate, ["a", 1], {"mode": 0o1600}, ValueError, "allocate: mode must be"),
            (calls.allocate, ["a", 1], {"metadata": 5}, TypeError, "allocate: metadata must be"),
            (calls.create, [None, 1], {}, TypeError, "create: name must be a str"),
            (calls.chmod, ["a", 644], {}, ValueError, r"0o640, not 644: did you mean 0o644\?"),
            (calls.chmod, ["a", 0o777], {}, ValueError, "bits of at most 0o666, .*, not 0o777"),
            (
                arrays.put,
                ["a", [object()]],
                {},
                TypeError,
                "put: this list is not an array of numbers",
            ),
            (arrays.put, ["a", [b"x"], -2], {}, ValueError, "create: device must be"),
        ],
    )
    def test_names_the_call_and_the_value(self, call, args, kwargs, error, message):
        client = Recorder()
        with pytest.raises(error, match=message):
            run(call, client, *args, **kwargs)
        assert client.asked == []

    def test_of_an_array_of_structures(self):
        import numpy as np

        with pytest.raises(TypeError, match="put: an array of structures"):
            run(arrays.put, Recorder(), "a", np.zeros(2, "i4,f4"))

    def test_of_a_call_inside_is_freed_without_a_collection(self):
        gc.disable()
        try:
            with lookup.calling("save", "stat"):
                raise replies.error_of(replies.Refusal(1, "PermissionDenied", "stat: no"))
        except gdrpy.PermissionDenied as error:
            left = weakref.ref(error)
        finally:
            gc.enable()
        assert left() is None

    def test_of_a_call_inside_keeps_what_is_missing(self):
        refusal = replies.Refusal(1, "PermissionDenied", "stat: no", "read", "a")
        with (
            pytest.raises(gdrpy.PermissionDenied, match="save: no") as caught,
            lookup.calling("save", "stat"),
        ):
            raise replies.error_of(refusal)
        assert (caught.value.missing, caught.value.region) == ("read", "a")


class TestList:
    def test_asks_for_pages_until_there_is_no_next_one(self):
        client = Recorder("list", "list")
        entry = REPLIES["list"][0]["regions"][0]
        client._answers[0] = {"regions": [entry], "next": "hidden"}
        client._answers[1] = {"regions": [{**entry, "name": "z", "device": -1}], "next": None}
        found = run(lookup.list_regions, client)
        assert [info.name for info in found] == ["a", "z"]
        assert [info.device for info in found] == [0, "cpu"]
        assert [request.after for request in client.asked] == ["", "hidden"]


class TestRecord:
    def test_shows_compares_and_travels_by_value(self):
        import copy
        import pickle

        (info,) = run(lookup.list_regions, Recorder("list"))
        assert repr(info).startswith("RegionInfo(region=7, name='a', nbytes=4096, ")
        assert info.uuid == "GPU-67647270-7920-7369-6d75-6c6174656400"
        assert info == copy.deepcopy(info) == pickle.loads(pickle.dumps(info))
        assert len({info, copy.copy(info)}) == 1
        assert info != run(lookup.stat, Recorder("stat"), "a")

    def test_does_not_change(self):
        (info,) = run(lookup.list_regions, Recorder("list"))
        with pytest.raises(AttributeError, match="immutable type: 'RegionInfo'"):
            info.name = "b"

    def test_is_ready_for_json_with_its_holders(self):
        info = run(lookup.stat, Recorder("stat"), "a")
        told = info.as_dict()
        assert told["metadata"] == {"k": 1}
        assert told["holders"] == [
            {
                "pid": 4242,
                "uid": 1000,
                "writable": True,
                "gpu": False,
                "count": 1,
                "exporter": False,
            }
        ]

    def test_of_half_a_reply_raises_protocol_error(self):
        client = Recorder("done")
        with pytest.raises(gdrpy.ProtocolError, match="stat: .* missing required field `region`"):
            run(lookup.stat, client, "a")
