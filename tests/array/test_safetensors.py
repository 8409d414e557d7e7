"""Safetensors images in regions and files, held against the safetensors package."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import gdrpy
from gdrpy import safetensors as images
from gdrpy.arrays.source import BLOCK
from gdrpy.common.dtypes import as_dtype
from gdrpy.errors import SizeMismatch

ARRAYS = {
    "small": np.arange(3, dtype=np.uint8),
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.arange(5, dtype=ml_dtypes.bfloat16),
    "scalar": np.array(2.5),
    "nothing": np.empty((0, 7), np.int64),
    "another matrix": np.arange(4, dtype=np.int32).reshape(2, 2)[:, ::-1],
    "naïve ✓": np.array([True, False]),
}
ORDER = ("nothing", "another matrix", "matrix", "scalar", "half", "naïve ✓", "small")


def image(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(**changes: object) -> dict[str, object]:
    return {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]} | changes


def read_all(region: gdrpy.Region) -> dict[str, np.ndarray]:
    return {name: found.read() for name, found in images.tensors(region).items()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def takes_direct_io(path: Path) -> bool:
    """Whether the file system of a path can be read past the kernel's cache."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


class TestPlan:
    def test_puts_sizes_that_divide_by_most_first_then_sorts_by_name(self):
        planned = images.plan(ARRAYS)
        assert tuple(planned.entries) == ORDER
        assert planned.data_start % 256 == 0
        data = sum(array.nbytes for array in ARRAYS.values())
        assert planned.nbytes == planned.data_start + data

    def test_of_nothing_is_a_header_alone(self):
        assert images.plan({}) == images.Layout({}, {}, 256, 256)

    def test_is_the_same_whatever_order_the_arrays_come_in(self):
        assert images.plan(ARRAYS) == images.plan(dict(sorted(ARRAYS.items())))

    def test_has_the_digest_of_what_is_stored(self, region):
        images.store(region, ARRAYS, {"format": "np"})
        assert images.layout(region).digest == images.plan(ARRAYS).digest

    @pytest.mark.parametrize(
        "other",
        [
            {"b": np.zeros(4, np.float32)},
            {"a": np.zeros(4, np.int32)},
            {"a": np.zeros((2, 2), np.float32)},
            {"a": np.zeros(4, np.float32), "b": np.zeros(0)},
        ],
    )
    def test_has_another_digest_if_a_tensor_lies_otherwise(self, other):
        plan = images.plan({"a": np.zeros(4, np.float32)})
        assert len({plan.digest, images.plan(other).digest}) == 2

    def test_has_another_digest_if_a_long_text_moves_the_data(self):
        texts = {"text": "x" * 250}
        assert images.plan(ARRAYS).digest != images.plan(ARRAYS, texts).digest

    def test_refuses_element_types_that_the_format_lacks(self):
        with pytest.raises(TypeError, match="tensor 'z': dtype must be one of BOOL"):
            images.plan({"z": np.zeros(2, complex)})

    @pytest.mark.parametrize(
        ("name", "reason"),
        [("__metadata__", "the name of the metadata"), (3, "Unicode text"), ("\ud800", "Unicode")],
    )
    def test_refuses_names_that_the_format_cannot_have(self, name, reason):
        with pytest.raises(ValueError, match=f"safetensors: tensor .*{reason}"):
            images.plan({name: np.zeros(2)})

    @pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, {"a": None}])
    def test_refuses_metadata_that_is_no_text(self, metadata):
        with pytest.raises(ValueError, match="__metadata__ must map names to text"):
            images.plan({}, metadata)


class TestStore:
    def test_is_read_back_in_another_process_view(self, region, readonly_region):
        images.store(region, ARRAYS)
        assert_same(read_all(readonly_region), ARRAYS)

    def test_aligns_every_tensor_to_its_elements(self, region):
        images.store(region, ARRAYS)
        for name, found in images.tensors(region).items():
            assert found.offset % ARRAYS[name].itemsize == 0
            assert found.numpy().shape == ARRAYS[name].shape

    def test_aligns_matrices_as_gpu_code_wants_them(self, region):
        arrays = {
            "a bias": np.zeros(3, np.float32),
            "b matrix": np.zeros((64, 2), np.float16),
            "c step": np.array(1, np.int64),
            "d matrix": np.zeros((8, 8), np.uint8),
        }
        images.store(region, arrays)
        offsets = {name: found.offset for name, found in images.tensors(region).items()}
        assert (offsets["b matrix"] % 256, offsets["d matrix"] % 64) == (0, 0)

    def test_is_what_the_safetensors_package_reads(self, region):
        images.store(region, ARRAYS, {"format": "np"})
        written = region.read(images.plan(ARRAYS, {"format": "np"}).nbytes)
        found = dict(safetensors.deserialize(written))
        assert found.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            assert tuple(found[name]["shape"]) == array.shape
            assert found[name]["dtype"] == as_dtype("", array.dtype).name
            assert found[name]["data"] == array.tobytes()
        numbers = {name: array for name, array in ARRAYS.items() if name != "half"}
        images.store(region, numbers)
        written = region.read(images.plan(numbers).nbytes)
        assert_same(safetensors.numpy.load(written), numbers)

    def test_keeps_the_metadata(self, region):
        images.store(region, {}, {"model": "größer"})
        assert images.layout(region).metadata == {"model": "größer"}

    def test_replaces_what_was_there(self, region):
        images.store(region, ARRAYS)
        images.store(region, {"one": np.zeros(1)})
        assert list(images.tensors(region)) == ["one"]

    def test_needs_a_region_that_is_large_enough(self, backend):
        nbytes = images.plan(ARRAYS).nbytes
        with gdrpy.alloc(nbytes - 1) as region:
            region.write(b"kept")
            with pytest.raises(SizeMismatch, match=f"take {nbytes} bytes, .* has {nbytes - 1}"):
                images.store(region, ARRAYS)
            assert region.read(4) == b"kept"

    def test_fits_a_region_of_just_its_size(self, backend):
        with gdrpy.alloc(images.plan(ARRAYS).nbytes) as region:
            images.store(region, ARRAYS)
            assert_same(read_all(region), ARRAYS)

    def test_that_fails_leaves_no_image(self, region, monkeypatch):
        images.store(region, ARRAYS)

        def fail(*_):
            raise OSError("broken off")

        monkeypatch.setattr(gdrpy.Region, "_put", fail)
        with pytest.raises(OSError, match="broken off"):
            images.store(region, ARRAYS)
        with pytest.raises(ValueError, match="not in this format"):
            images.tensors(region)


class TestLoad:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "model.safetensors"
        packed = {name: np.asarray(array, order="C") for name, array in ARRAYS.items()}
        safetensors.numpy.save_file(packed, path, {"made": "elsewhere"})
        return path

    @pytest.mark.parametrize("cpu", [True, False])
    def test_shows_what_the_safetensors_package_wrote(self, backend, path, cpu):
        with gdrpy.alloc(images.plan_file(path).nbytes, cpu=cpu) as region:
            images.load(path, region)
            assert_same(read_all(region), ARRAYS)
            found = images.layout(region)
            assert found.metadata == {"made": "elsewhere"}
            assert (found.data_start % 256, found.nbytes) == (0, region.nbytes)

    @pytest.fixture
    def large(self, tmp_path: Path) -> dict[str, np.ndarray]:
        """The tensors of the file ``large``, which has many blocks and ends inside one."""
        arrays = {"bytes": np.frombuffer(os.urandom(150_001), np.uint8)}
        safetensors.numpy.save_file(arrays, tmp_path / "large")
        return arrays

    @pytest.mark.parametrize("threads", [1, 4])
    def test_takes_many_pieces_and_tells_of_each(
        self, region, large, tmp_path, monkeypatch, threads
    ):
        monkeypatch.setattr(images, "_CHUNK", BLOCK)
        monkeypatch.setattr(images, "_THREADS", threads)
        told = []
        images.load(tmp_path / "large", region, lambda done, total: told.append((done, total)))
        assert_same(read_all(region), large)
        data, total = 150_001, images.plan_file(tmp_path / "large").nbytes
        assert [done for done, _ in told[-2:]] == [data, total]
        assert len(told) == -(-(tmp_path / "large").stat().st_size // BLOCK) + 1
        assert sorted(told) == told
        assert {whole for _, whole in told} == {total}

    @pytest.mark.parametrize("refusal", [None, errno.EINVAL, errno.EFAULT])
    def test_passes_the_cache_that_lacks_the_file_where_it_can(
        self, region, large, tmp_path, monkeypatch, refusal
    ):
        read, direct = os.preadv, []

        def preadv(fd, buffers, offset, *flags):
            if flags:
                raise BlockingIOError
            direct.append(bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT))
            if direct[-1] and refusal:
                raise OSError(refusal, "refused")
            return read(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", preadv)
        images.load(tmp_path / "large", region)
        assert_same(read_all(region), large)
        assert direct[0] == takes_direct_io(tmp_path / "large")
        assert direct[-1] == (direct[0] and not refusal)

    def test_reads_a_cached_file_from_the_cache(self, region, large, tmp_path, monkeypatch):
        read, direct = os.preadv, []

        def preadv(fd, buffers, offset, *flags):
            direct.append(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)
            return read(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", preadv)
        images.load(tmp_path / "large", region)  # it was written just now
        assert_same(read_all(region), large)
        assert set(direct) == {0}

    def test_that_cannot_read_leaves_no_image(self, region, large, tmp_path, monkeypatch):
        def preadv(fd, buffers, offset, *flags):
            raise OSError(errno.EIO, "the disk is broken")

        images.store(region, ARRAYS)
        monkeypatch.setattr(os, "preadv", preadv)
        with pytest.raises(OSError, match="the disk is broken"):
            images.load(tmp_path / "large", region)
        with pytest.raises(ValueError, match="not in this format"):
            images.tensors(region)

    def test_of_a_file_without_tensors(self, region, tmp_path):
        (tmp_path / "empty").write_bytes(image({}))
        images.load(str(tmp_path / "empty"), region)
        assert images.tensors(region) == {}

    def test_keeps_tensors_that_are_not_aligned(self, region, tmp_path):
        header = {"a": entry(shape=[1], data_offsets=[0, 1])}
        header["b"] = entry(dtype="F32", shape=[1], data_offsets=[1, 5])
        (tmp_path / "file").write_bytes(image(header, b"\1" + np.float32(1.5).tobytes()))
        images.load(tmp_path / "file", region)
        assert images.tensors(region)["b"].read().tolist() == [1.5]

    def test_needs_a_region_that_is_large_enough(self, backend, path):
        nbytes = images.plan_file(path).nbytes
        with (
            gdrpy.alloc(nbytes - 1) as region,
            pytest.raises(SizeMismatch, match=f"take {nbytes} bytes"),
        ):
            images.load(path, region)

    def test_whose_progress_raises_leaves_no_image(self, region, path):
        images.store(region, ARRAYS)
        with pytest.raises(ZeroDivisionError):
            images.load(path, region, lambda done, total: 1 // 0)
        with pytest.raises(ValueError, match="not in this format"):
            images.tensors(region)

    @pytest.mark.parametrize("what", ["cut short", "written again"])
    def test_of_a_file_that_is_changed_meanwhile_says_so(
        self, region, large, tmp_path, monkeypatch, what
    ):
        path = tmp_path / "large"
        monkeypatch.setattr(images, "_CHUNK", BLOCK)
        monkeypatch.setattr(images, "_THREADS", 1)

        def change(done: int, total: int) -> None:
            if what == "cut short":
                os.truncate(path, BLOCK)
            else:
                os.utime(path, (0, 0))

        with pytest.raises(ValueError, match="large was changed while it was read: read it again"):
            images.load(path, region, change)
        with pytest.raises(ValueError, match="not in this format"):
            images.tensors(region)

    def test_of_a_file_that_does_not_exist_is_an_os_error(self, region, tmp_path):
        with pytest.raises(FileNotFoundError):
            images.load(tmp_path / "nowhere", region)


class TestFileLayout:
    def test_tells_where_the_tensors_lie(self, tmp_path):
        (tmp_path / "file").write_bytes(image({"a": entry()}, b"12"))
        found = images.file_layout(tmp_path / "file")
        assert found.entries == {"a": images.Entry("U8", (2,), 0, 2)}
        assert found.nbytes == (tmp_path / "file").stat().st_size
        assert found.data_start == found.nbytes - 2

    @pytest.mark.parametrize("data", [b"1", b"123"])
    def test_refuses_a_file_of_another_size(self, tmp_path, data):
        (tmp_path / "file").write_bytes(image({"a": entry()}, data))
        with pytest.raises(
            ValueError, match="file: .* header describes .* bytes, and the file has"
        ):
            images.file_layout(tmp_path / "file")

    @pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8, image(b"{}")[:-1]])
    def test_refuses_a_file_that_is_cut_short(self, tmp_path, content):
        (tmp_path / "file").write_bytes(content)
        words = r"(not in this format|7 bytes hold no image|it is empty: give a safetensors file)"
        with pytest.raises(ValueError, match=f"file: safetensors: {words}"):
            images.file_layout(tmp_path / "file")


class TestForeignImage:
    """What strangers write into regions is an image or a ValueError that says why not."""

    def test_is_taken_in_any_order(self, region):
        region.write(image({"b": entry(data_offsets=[2, 4]), "a": entry()}, b"1234"))
        assert list(images.tensors(region)) == ["a", "b"]

    def test_may_end_before_the_region_does(self, region):
        region.write(image({"a": entry()}, b"12"))
        assert images.tensors(region)["a"].read().tobytes() == b"12"

    @pytest.mark.parametrize(
        ("header", "reason"),
        [
            (b"", "a header begins with"),
            (b"[]", "a header begins with"),
            (b' {"a":1}', "a header begins with"),
            (b"{", "the header is not valid JSON"),
            (b'{"\xff":1}', "the header is not valid JSON: 'utf-8'"),
            (b'{"a":NaN}', "NaN is not a JSON number"),
            (b'{"a":' + b"[" * 200_000, "the header is not valid JSON"),
            (b'{"a":' + b"1" * 5000 + b"}", "the header is not valid JSON"),
            (b'{"a":1,"a":1}', "'a' is there twice"),
            (b'{"a":{"dtype":"U8","dtype":"U8"}}', "'dtype' is there twice"),
            ({"\ud800": entry()}, "must be Unicode text"),
            ({"__metadata__": {"a": 1}}, "__metadata__ must map names to text"),
            ({"__metadata__": None}, "__metadata__ must map names to text"),
            ({"a": 1}, "tensor 'a': must have only data_offsets, dtype, shape: 1"),
            ({"a": {"dtype": "U8", "shape": [2]}}, "tensor 'a': must have only data_offsets"),
            ({"a": entry(extra=1)}, "tensor 'a': must have only data_offsets"),
            ({"a": entry(dtype="C64")}, "tensor 'a': dtype 'C64' is not one of BOOL"),
            ({"a": entry(dtype=["U8"])}, "tensor 'a': dtype .* is not one of"),
            ({"a": entry(shape=[-2])}, r"tensor 'a': shape \[-2\] is not a list"),
            ({"a": entry(shape=[2.0])}, r"tensor 'a': shape \[2.0\] is not a list"),
            ({"a": entry(shape=[True, 2])}, r"tensor 'a': shape \[True, 2\] is not a list"),
            ({"a": entry(shape=[1] * 65)}, "tensor 'a': shape .* is not a list of up to 64"),
            ({"a": entry(shape=[1 << 62, 0])}, "tensor 'a': shape .* is not a list"),
            ({"a": entry(shape=2)}, "tensor 'a': shape 2 is not a list"),
            ({"a": entry(data_offsets=[2, 0])}, r"data_offsets \[2, 0\] are not begin and end"),
            ({"a": entry(data_offsets=[0])}, r"data_offsets \[0\] are not begin and end"),
            ({"a": entry(data_offsets=[-2, 0])}, r"data_offsets \[-2, 0\] are not begin and end"),
            ({"a": entry(data_offsets=[0, 3])}, "tensor 'a': has 3 bytes of data, and U8"),
            ({"a": entry(dtype="F32")}, r"tensor 'a': has 2 bytes .* shape \[2\] takes 8"),
            ({"a": entry(data_offsets=[1, 3])}, "tensor 'a': begins at byte 1 and leaves a hole"),
            (
                {"a": entry(), "b": entry(data_offsets=[1, 3])},
                "tensor 'b': begins at byte 1 and overlaps .* ends at 2",
            ),
            (
                {"a": entry(shape=[1 << 21], data_offsets=[0, 1 << 21])},
                "describes .* bytes, and the region has 1048576",
            ),
        ],
    )
    def test_with_this_header_is_refused(self, region, header, reason):
        region.write(image(header))
        with pytest.raises(ValueError, match=f"^safetensors: .*{reason}"):
            images.tensors(region)

    def test_with_a_header_that_reaches_out_of_the_region_is_refused(self, region):
        region.write((region.nbytes - 7).to_bytes(8, "little") + b"{}")
        with pytest.raises(ValueError, match=r"would have 1048569 bytes"):
            images.tensors(region)

    def test_in_a_region_that_is_too_small_for_any_is_refused(self, backend):
        with gdrpy.alloc(7) as region, pytest.raises(ValueError, match="7 bytes hold no image"):
            images.tensors(region)
