"""A broker's region in a process: what it says of itself, and what it refuses."""

import pickle

import numpy as np
import pytest

import gdrpy
from fake_server import LIFE, described, grant, memory
from gdrpy import cuda
from gdrpy.broker.client.broker import attach, connect, shared_broker
from gdrpy.broker.protocol import pack_metadata


@pytest.fixture
def granted(fake):
    """The region of a grant with these fields; ``then`` plays what comes after the get."""
    brokers = []

    def get(then=lambda peer: None, cpu=True, gpu=False, **fields):
        def serve(peer):
            peer.hello()
            peer.give(peer.take("get"), grant(**fields))
            then(peer)
            peer.until_closed()

        brokers.append(connect(fake(serve)))
        return brokers[-1].get("a", gpu=gpu, cpu=cpu)

    yield get
    for broker in brokers:
        broker.close()


class TestRegion:
    def test_says_what_was_granted(self, granted):
        region = granted(version=3, nbytes=100, enforced=True, metadata=pack_metadata("", {"k": 1}))
        assert (region.id, region.name, region.version, region.nbytes) == (7, "a", 3, 100)
        assert (region.sealed, region.readonly, region.enforced) == (False, False, True)
        assert region.metadata == {"k": 1}
        assert len(region.read()) == 100

    def test_shows_its_name_and_state(self, granted):
        region = granted(readonly=True)
        assert repr(region) == (
            "<BrokerRegion 'a': Region of 4096 bytes on simulated GPU 0, read-only CPU view, sim>"
        )
        region.close()
        assert repr(region) == "<BrokerRegion CLOSED>"
        assert repr(granted(name=None, sealed=True)).startswith("<BrokerRegion anonymous, sealed: ")

    def test_that_cannot_be_opened_is_given_back(self, fake):
        def serve(peer):
            peer.hello()
            peer.give(peer.take("get"), grant(nbytes=1 << 40))
            assert peer.take("release")["regions"] == [7]
            peer.until_closed()

        with connect(fake(serve)) as broker, pytest.raises(gdrpy.SizeMismatch):
            broker.get("a", gpu=False)

    def test_of_host_memory_has_no_gpu_view_whatever_is_asked(self, granted):
        region = granted(device=-1, gpu=True)
        with pytest.raises(gdrpy.MissingView):
            _ = region.ptr

    def test_of_host_memory_needs_the_cpu_view(self, granted):
        with pytest.raises(gdrpy.MissingView, match="'a' is host memory, which has no GPU view"):
            granted(device=-1, gpu=True, cpu=False)


class TestReadOnlyRegion:
    def test_refuses_to_be_written_by_the_cpu(self, granted):
        region = granted(readonly=True)
        words = "Region.write: region 'a' is read-only here; get it with readonly=False, as a user"
        with pytest.raises(gdrpy.ReadOnly, match=words):
            region.write(b"x")
        assert not region.numpy().flags.writeable
        assert region.map().readonly

    def test_refuses_to_be_written_by_dma(self, granted):
        region = granted(readonly=True, cpu=False, gpu=True)
        with pytest.raises(gdrpy.ReadOnly):
            region.write(b"x")
        assert region.read(1) == b"\x00"

    @pytest.mark.parametrize("sealed", [False, True])
    def test_is_not_written_by_the_gpu(self, granted, sealed):
        region = granted(readonly=True, sealed=sealed, gpu=True)
        with cuda.context(0), pytest.raises(gdrpy.CudaError, match="INVALID_VALUE"):
            cuda.call("cuMemcpyHtoD", region.ptr, b"x", 1)
        assert region.read(1) == b"\x00"

    def test_that_is_sealed_says_so(self, granted):
        region = granted(readonly=True, sealed=True)
        with pytest.raises(gdrpy.Sealed, match="Region.write: region 'a' is sealed"):
            region.write(b"x")


ROWS = np.ones((2, 4), np.uint8)


class TestSealing:
    @staticmethod
    def answer(peer):
        peer.reply(peer.take("seal"))

    @pytest.mark.parametrize("views", [(True, True), (True, False), (False, True)])
    @pytest.mark.parametrize(
        "write",
        [
            lambda one, via: one.write(b"x", via=via),
            lambda one, via: one.write_strided(ROWS, 16, via=via),
            lambda one, via: one.fill(1),
            lambda one, via: one.fill(1, 0, 0),
        ],
        ids=["write", "write_strided", "fill", "fill of nothing"],
    )
    @pytest.mark.parametrize("via", [None, "mapping", "dma"])
    def test_refuses_every_way_to_write_whatever_was_written_before(
        self, granted, views, write, via
    ):
        cpu, gpu = views
        region = granted(then=self.answer, cpu=cpu, gpu=gpu)
        region.write(b"last")
        region.write_strided(ROWS, 16, 256)
        region.fill(7, 512)
        region.seal()
        assert region.read(4) == b"last"
        with pytest.raises(gdrpy.Sealed):
            write(region, via)
        assert region.read(4) == b"last"

    def test_makes_the_object_refuse_writes(self, granted):
        region = granted(then=self.answer)
        region.write(b"last")
        region.seal()
        assert region.sealed
        assert region.readonly
        with pytest.raises(gdrpy.Sealed):
            region.write(b"x")
        assert not region.numpy().flags.writeable
        assert region.read(4) == b"last"

    def test_leaves_views_made_before_writable(self, granted):
        region = granted(then=self.answer)
        before = region.numpy()
        region.seal()
        before[0] = 5
        assert region.numpy()[0] == 5
        del before
        region.close()

    def test_that_is_refused_changes_nothing(self, granted):
        def refuse(peer):
            peer.reply(peer.take("seal"), error="PermissionDenied", message="seal: no")

        region = granted(then=refuse)
        with pytest.raises(gdrpy.PermissionDenied):
            region.seal()
        region.write(b"x")
        assert all(mapping.closed for mapping in region._mappings)


class TestStoredArray:
    def test_is_what_numpy_gives(self, granted):
        region = granted(metadata=pack_metadata("", {"array": ["<f4", [2, 3]]}))
        array = region.numpy()
        assert (array.dtype, array.shape) == (np.float32, (2, 3))
        assert region.numpy("u1").shape == (4096,)

    def test_is_what_other_libraries_take(self, granted):
        region = granted(metadata=pack_metadata("", {"array": ["<f4", [2, 3]]}))
        array = region.array()
        assert (array.dtype, array.shape, region.array(8).dtype) == ("F32", (2, 3), "U8")
        for taken in (np.asarray(region), np.from_dlpack(region)):
            assert (taken.dtype, taken.shape) == (np.float32, (2, 3))
            assert taken.flags.writeable
            assert taken.ctypes.data == region.cpu.address

    @pytest.mark.parametrize(
        ("kind", "format_", "shape"),
        [
            *(("<c16", "Zd", 3), ("<M8[s]", "8x", 3), ("BF16", "2x", 3), ("F32", "f", 3)),
            ("<c16", "B", 4096),  # more than the region has
        ],
    )
    def test_of_a_type_that_arrays_or_buffers_lack_is_still_copied(
        self, granted, kind, format_, shape
    ):
        region = granted(metadata=pack_metadata("", {"array": [kind, [shape]]}))
        region.write(b"123456")
        with memoryview(region) as view:
            assert (view.format, view.shape) == (format_, (shape,))
        with gdrpy.alloc(4096, "cpu") as copy:
            copy.write(region)
            assert copy.read(6) == b"123456"

    def test_of_no_dimensions_is_one_element(self, granted):
        array = granted(metadata=pack_metadata("", {"array": ["<i8", []]})).numpy()
        assert (array.dtype, array.shape) == (np.int64, ())

    def test_that_is_empty_is_empty(self, granted):
        array = granted(metadata=pack_metadata("", {"array": ["<i8", [3, 0]]})).numpy()
        assert array.shape == (3, 0)

    @pytest.mark.parametrize(
        "layout",
        [
            *(None, 7, "<f4", [], ["<f4"], ["<f4", [2], 1], {"<f4": 1, "x": 2}),
            *([None, [2]], [["<f4"], [2]], [b"<f4", [2]], ["", [2]], ["f4", [2]], ["zz", [2]]),
            *(["<f4,<(", [2]], ["|O", [2]], ["<f4", None], ["<f4", 2], ["<f4", "2"]),
            *(["<f4", [-1]], ["<f4", [1.5]], ["<f4", ["x"]], ["<f4", [True]], ["BF16", None]),
        ],
    )
    def test_that_no_put_stored_says_so_and_is_had_by_type_and_shape(self, granted, layout):
        region = granted(metadata=pack_metadata("", {"array": layout}))
        with pytest.raises(ValueError, match=r"BrokerRegion.numpy: .* 'array', which no put\(\)"):
            region.numpy()
        with pytest.raises(ValueError, match=r"BrokerRegion.array: .* 'array', which no put\(\)"):
            region.array()
        assert region.numpy("<f4", 2).shape == region.array(2, "F32").shape == (2,)
        assert np.asarray(region).shape == np.from_dlpack(region).shape == (4096,)

    def test_is_bytes_where_none_was_stored(self, granted):
        assert granted().numpy().shape == granted().array().shape == (4096,)


class TestPickledRegion:
    def test_is_attached_by_its_identity(self, fake):
        def serve(peer):
            peer.hello()
            peer.give(peer.take("get"), grant(readonly=True))
            peer.until_closed()

        def serve_attached(peer):
            peer.hello(session=2)
            for _ in range(2):
                request = peer.take("get")
                assert (request["region"], request["life"]) == (7, LIFE)
                assert (request["readonly"], request["gpu"]) == (True, False)
                peer.give(request, grant(readonly=True))
            peer.until_closed()

        with connect(fake(serve, serve_attached)) as broker:
            region = broker.get("a", gpu=False, readonly=True)
            copies = [pickle.loads(pickle.dumps(region)) for _ in range(2)]
            assert [copy.id for copy in copies] == [7, 7]
            shared = copies[0]._broker
            assert copies[1]._broker is shared
            assert shared is not broker
            shared.close()

    def test_that_is_no_more_raises_gone(self, fake):
        def serve(peer):
            peer.hello()
            peer.reply(peer.take("get"), error="Gone", message="get: there is no region 7 any more")
            peer.until_closed()

        path = fake(serve)
        with pytest.raises(gdrpy.Gone, match="no region 7"):
            attach(path, LIFE, 7, False, True, False)
        shared_broker(path).close()

    def test_that_is_closed_is_not_pickled(self, granted):
        region = granted()
        region.close()
        with pytest.raises(gdrpy.Closed, match="pickling a BrokerRegion"):
            pickle.dumps(region)


class TestRegionCalls:
    def test_publish_tells_the_version(self, granted):
        def publish(peer):
            peer.reply(peer.take("publish"), version=4, replaced=None)

        region = granted(then=publish, version=0)
        assert region.publish() == 4
        assert region.version == 4

    def test_stale_asks_whether_the_name_means_it(self, granted):
        def told(peer):
            peer.reply(peer.take("stat"), **described(linked=True))
            peer.reply(peer.take("stat"), **described(linked=False))

        region = granted(then=told)
        assert [region.stale, region.stale] == [False, True]

    def test_stale_names_itself_where_no_broker_answers(self, broker):
        with (
            gdrpy.connect(broker.path, reconnect=0) as connected,
            connected.put("a", [1]) as region,
        ):
            broker.stop()
            words = "BrokerRegion.stale: the broker at .* went away and did not come back"
            with pytest.raises(gdrpy.BrokerUnavailable, match=f"^{words}"):
                _ = region.stale

    def test_stale_of_what_the_broker_lost_is_true(self, broker):
        with gdrpy.connect(broker.path) as client, client.put("a", b"x", "cpu") as region:
            assert region.stale is False
            broker.stop()
            broker.start()
            assert region.stale is True
            client.put("a", b"y", "cpu").close()
            assert region.stale is True

    def test_stale_of_what_has_no_name_yet_is_false(self, granted):
        assert granted(name=None).stale is False
        assert granted(version=0).stale is False

    def test_delete_of_an_anonymous_one_raises_value_error(self, granted):
        with pytest.raises(ValueError, match="an anonymous region has no name"):
            granted(name=None).delete()

    @pytest.mark.parametrize("call", ["publish", "seal", "digest", "delete", "info"])
    def test_on_a_closed_region_raises_closed(self, granted, call):
        region = granted()
        region.close()
        with pytest.raises(gdrpy.Closed, match=f"BrokerRegion.{call}: .* get it again by its name"):
            getattr(region, call)()

    def test_digest_has_a_connection_of_its_own(self, fake):
        def serve(peer):
            peer.hello()
            peer.give(peer.take("get"), grant())
            peer.until_closed()

        def digest(peer):
            peer.hello(session=2)
            request = peer.take("digest")
            assert request["region"] == 7
            peer.reply(request, sha256="ab" * 32)
            peer.until_closed()

        with connect(fake(serve, digest)) as broker:
            assert broker.get("a", gpu=False).digest() == "ab" * 32


def test_memory_of_the_tests_is_what_the_simulated_driver_makes():
    import os

    fd = memory()
    with gdrpy.Region.from_fd(fd, gpu=True) as region:
        assert region.location == "simulated GPU 0"
    os.close(fd)
