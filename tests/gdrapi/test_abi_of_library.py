"""The binary interface, read from the built library and from its header: gdrapi 2.6's."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterator
from errno import EINVAL
from pathlib import Path
from typing import Any

import pytest

import gdrpy
from gdrpy import cuda

PACKAGE = Path(gdrpy.__file__).parent
LIBRARY = PACKAGE / "lib" / "libgdrapi.so.2"
INCLUDE = PACKAGE / "include"
CORE = PACKAGE / "_core"
HEADERS = [CORE, INCLUDE, PACKAGE.parent / "driver", sysconfig.get_path("include")]

#: What begins a name that files of the core define for others, where it is not the public ABI's.
INTERNAL = "core_"
INTERNAL_OF = {
    "arena": "gdrpy_arena_",
    "brokerlib": ("broker_", "gdrpy_broker_", "gdrpy_region_", "gdrpy_watch_"),
    "python": ("core_", "PyInit_"),
}

FUNCTIONS = {
    "gdr_close",
    "gdr_copy_from_mapping",
    "gdr_copy_to_mapping",
    "gdr_driver_get_version",
    "gdr_get_attribute",
    "gdr_get_callback_flag",
    "gdr_get_info",
    "gdr_get_info_v2",
    "gdr_get_mapping_type_string",
    "gdr_map",
    "gdr_map_v2",
    "gdr_open",
    "gdr_pin_buffer",
    "gdr_pin_buffer_v2",
    "gdr_runtime_get_version",
    "gdr_unmap",
    "gdr_unpin_buffer",
}

CONSTANTS = {
    "GDR_API_MAJOR_VERSION": 2,
    "GDR_API_MINOR_VERSION": 6,
    "GDR_API_VERSION": 2 << 16 | 6,
    "MAJOR_VERSION_SHIFT": 16,
    "MINOR_VERSION_MASK": 0xFFFF,
    "MINIMUM_GDRDRV_MAJOR_VERSION": 2,
    "MINIMUM_GDRDRV_MINOR_VERSION": 0,
    "MINIMUM_GDRDRV_VERSION": 2 << 16,
    "GPU_PAGE_SHIFT": 16,
    "GPU_PAGE_SIZE": 65536,
    "GPU_PAGE_OFFSET": 65535,
    "GPU_PAGE_MASK": 2**64 - 65536,
    "GDR_PIN_FLAG_DEFAULT": 0,
    "GDR_PIN_FLAG_FORCE_PCIE": 1,
    "GDR_MAPPING_TYPE_NONE": 0,
    "GDR_MAPPING_TYPE_WC": 1,
    "GDR_MAPPING_TYPE_CACHING": 2,
    "GDR_MAPPING_TYPE_DEVICE": 3,
    "GDR_MAPPING_TYPE_MAX": 4,
    "GDR_MAP_FLAG_DEFAULT": 0,
    "GDR_MAP_FLAG_REQ_WC_MAPPING": 1,
    "GDR_MAP_FLAG_REQ_CACHE_MAPPING": 2,
    "GDR_MAP_FLAG_REQ_DEVICE_MAPPING": 3,
    "GDR_ATTR_USE_PERSISTENT_MAPPING": 1,
    "GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE": 2,
    "GDR_ATTR_USING_DMA_BUF_MMAP": 3,
    "GDR_ATTR_MAX": 4,
    "sizeof(gdr_t)": 8,
    "sizeof(gdr_mh_t)": 8,
    "sizeof(gdr_info_t)": 48,
    "sizeof(gdr_info_v2_t)": 48,
    "offsetof(gdr_info_v2_t, va)": 0,
    "offsetof(gdr_info_v2_t, mapped_size)": 8,
    "offsetof(gdr_info_v2_t, page_size)": 16,
    "offsetof(gdr_info_v2_t, tm_cycles)": 24,
    "offsetof(gdr_info_v2_t, cycles_per_ms)": 32,
    "offsetof(gdr_info_v2_t, mapping_type)": 40,
}


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class TestLibrary:
    def test_exports_the_table_and_nothing_else(self) -> None:
        lines = output("nm", "-D", "--defined-only", LIBRARY).splitlines()
        assert {line.split()[-1] for line in lines} == FUNCTIONS
        assert {line.split()[-2] for line in lines} == {"T"}

    def test_has_the_soname_that_programs_were_linked_with(self) -> None:
        dynamic = output("readelf", "-d", LIBRARY)
        assert "Library soname: [libgdrapi.so.2]" in dynamic

    def test_needs_the_c_library_and_no_cuda(self) -> None:
        dynamic = output("readelf", "-d", LIBRARY)
        needed = [line.split("[")[1][:-1] for line in dynamic.splitlines() if "(NEEDED)" in line]
        assert set(needed) <= {"libc.so.6", "libdl.so.2", "libpthread.so.0"}

    def test_has_no_executable_stack_and_no_text_relocation(self) -> None:
        (stack,) = [
            line for line in output("readelf", "-lW", LIBRARY).splitlines() if "GNU_STACK" in line
        ]
        assert stack.split()[-2] == "RW"
        assert "TEXTREL" not in output("readelf", "-d", LIBRARY)


def foreign_names(folder: Path, directory: Path) -> set[str]:
    """What the C files of a folder define for others, but for the public ABI and internal names."""
    options = ["-c", "-w", "-std=gnu11", *(f"-I{header}" for header in HEADERS)]
    directory.mkdir()
    subprocess.run(["gcc", *options, *sorted(folder.glob("*.c"))], cwd=directory, check=True)
    lines = output("nm", "-g", "--defined-only", *directory.glob("*.o")).splitlines()
    defined = {fields[2] for fields in map(str.split, lines) if len(fields) == 3}
    assert defined
    internal = INTERNAL_OF.get(folder.name, INTERNAL)
    public = FUNCTIONS if folder.name == "gdrapi" else set()
    return {name for name in defined - public if not name.startswith(internal)}


def structures(*sources: str) -> list[str]:
    """The structures, unions and enumerations that are defined in C, by their names."""
    return [
        name
        for source in sources
        for name in re.findall(r"^(?:static |const )*(?:struct|union|enum) (\w+) \{", source, re.M)
    ]


class TestNames:
    @pytest.mark.parametrize("folder", sorted({path.parent.name for path in CORE.glob("*/*.c")}))
    def test_are_internal_or_the_public_interface(self, folder: str, tmp_path: Path) -> None:
        assert foreign_names(CORE / folder, tmp_path / "objects") == set()

    def test_that_look_like_nvidias_are_found(self, tmp_path: Path) -> None:
        (tmp_path / "copy").mkdir()
        (tmp_path / "copy/copy.c").write_text(
            "int gdr_hidden; int gdr_map(void) { return 0; } int core_copy; static int own;"
        )
        found = foreign_names(tmp_path / "copy", tmp_path / "objects")
        assert found == {"gdr_hidden", "gdr_map"}

    def test_of_types_and_macros_are_too(self) -> None:
        headers = [*INCLUDE.rglob("*.*h"), CORE / "gdrapi/exports.h"]
        public, used = (
            {word for path in paths for word in re.findall(r"\b(?:gdr|GDR)_\w+", path.read_text())}
            for paths in (headers, CORE.glob("*/*.[ch]"))
        )
        assert "gdr_info_v1" in used
        assert used - public == set()

    def test_of_structures_are_used_once(self) -> None:
        found = structures(*(path.read_text() for path in sorted(CORE.glob("*/*.[ch]"))))
        assert {"core_error", "core_memory", "gdr"} <= set(found)
        assert [name for name, count in Counter(found).items() if count > 1] == []

    def test_of_structures_that_are_used_twice_are_found(self) -> None:
        assert structures("struct a {\n};\nenum b {\n};\n", "struct a {\n};\n") == ["a", "b", "a"]


class TestHeader:
    @pytest.fixture
    def constants(self, tmp_path: Path) -> dict[str, int]:
        """What a program sees that was compiled with the header."""
        lines = [f'printf("%llu\\n", (unsigned long long)({name}));' for name in CONSTANTS]
        source = tmp_path / "constants.c"
        source.write_text(
            f"#include <gdrapi.h>\n#include <stdio.h>\nint main(void) {{ {' '.join(lines)} }}\n"
        )
        program = tmp_path / "constants"
        subprocess.run(["gcc", f"-I{INCLUDE}", "-o", program, source], check=True)
        return dict(zip(CONSTANTS, map(int, output(program).split()), strict=True))

    def test_has_the_numbers_and_the_layouts_of_the_table(self, constants: dict[str, int]) -> None:
        assert constants == CONSTANTS

    def test_declares_every_function_of_the_library(self, tmp_path: Path) -> None:
        # In parentheses a name is the function itself: one of them is also a macro.
        source = tmp_path / "functions.c"
        newer = sorted(FUNCTIONS - {"gdr_get_info"})
        pointers = ", ".join(f"(void *){name}" for name in newer)
        source.write_text(f"#include <gdrapi.h>\nvoid *functions[] = {{{pointers}}};\n")
        subprocess.run(
            ["gcc", "-c", f"-I{INCLUDE}", "-o", tmp_path / "functions.o", source], check=True
        )

    def test_calls_the_newer_function_by_the_older_name(self, tmp_path: Path) -> None:
        source = tmp_path / "info.c"
        source.write_text(
            "#include <gdrapi.h>\n"
            "int f(gdr_t g, gdr_mh_t h, gdr_info_t *i) { return gdr_get_info(g, h, i); }\n"
        )
        subprocess.run(["gcc", "-c", f"-I{INCLUDE}", "-o", tmp_path / "info.o", source], check=True)
        undefined = output("nm", "--undefined-only", tmp_path / "info.o").split()
        assert "gdr_get_info_v2" in undefined
        assert "gdr_get_info" not in undefined

    @pytest.mark.parametrize("language", ["c89", "c99", "c11", "gnu17"])
    def test_compiles_without_a_warning(self, tmp_path: Path, language: str) -> None:
        source = tmp_path / "only.c"
        source.write_text("#include <gdrapi.h>\nint only;\n")
        strict = [f"-std={language}", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        subprocess.run(
            ["gcc", *strict, "-Wno-long-long", "-c", f"-I{INCLUDE}", "-o", tmp_path / "o", source],
            check=True,
        )


class TestStructures:
    """Layouts as the library fills them in, called with plain numbers by ctypes."""

    CANARY = 0xA5

    @pytest.fixture
    def library(self, driver: Any) -> ctypes.CDLL:
        library = ctypes.CDLL(str(LIBRARY))
        library.gdr_open.restype = ctypes.c_void_p
        return library

    @pytest.fixture
    def gdr(self, library: ctypes.CDLL) -> Iterator[ctypes.c_void_p]:
        gdr = ctypes.c_void_p(library.gdr_open())
        assert gdr
        yield gdr
        assert library.gdr_close(gdr) == 0

    @pytest.fixture
    def pointer(self) -> Iterator[int]:
        pointer = int(cuda.call("cuMemAlloc", 2 << 20))
        yield pointer
        cuda.call("cuMemFree", pointer)

    @pytest.fixture
    def handle(
        self, library: ctypes.CDLL, gdr: ctypes.c_void_p, pointer: int
    ) -> Iterator[ctypes.c_ulong]:
        """Of 10 bytes in the second page."""
        handle = ctypes.c_ulong()
        address, size = ctypes.c_ulong(pointer + 70_000), ctypes.c_size_t(10)
        token, space = ctypes.c_uint64(), ctypes.c_uint32()
        assert library.gdr_pin_buffer(gdr, address, size, token, space, ctypes.byref(handle)) == 0
        yield handle
        assert library.gdr_unpin_buffer(gdr, handle) == 0

    def filled(self, function: Any, *arguments: Any) -> bytes:
        """What a function writes into a buffer that has more room than its structure."""
        buffer = (ctypes.c_ubyte * 96)(*[self.CANARY] * 96)
        assert function(*arguments, buffer) == 0
        return bytes(buffer)

    def number(self, data: bytes, offset: int, size: int) -> int:
        return int.from_bytes(data[offset : offset + size], "little")

    def test_handle_is_one_unsigned_long_passed_by_value(
        self, library: ctypes.CDLL, gdr: ctypes.c_void_p, pointer: int
    ) -> None:
        room = (ctypes.c_ubyte * 16)(*[self.CANARY] * 16)
        size = ctypes.c_size_t(1)
        flags = ctypes.c_uint32(0)
        assert library.gdr_pin_buffer_v2(gdr, ctypes.c_ulong(pointer), size, flags, room) == 0
        assert bytes(room)[8:] == bytes([self.CANARY]) * 8
        handle = ctypes.c_ulong(self.number(bytes(room), 0, 8))
        assert library.gdr_unpin_buffer(gdr, ctypes.c_ulong(handle.value ^ 1 << 63)) == EINVAL
        assert library.gdr_unpin_buffer(gdr, handle) == 0

    def test_info_of_the_second_version_has_48_bytes(
        self, library: ctypes.CDLL, gdr: ctypes.c_void_p, pointer: int, handle: ctypes.c_ulong
    ) -> None:
        info = self.filled(library.gdr_get_info_v2, gdr, handle)
        assert self.number(info, 0, 8) == pointer + 65_536
        assert self.number(info, 8, 8) == 65_536
        assert self.number(info, 16, 4) == 65_536
        assert self.number(info, 36, 1) & 3 == 0
        assert self.number(info, 40, 4) == 0
        assert info[48:] == bytes([self.CANARY]) * 48

    def test_info_of_the_first_version_has_40_bytes(
        self, library: ctypes.CDLL, gdr: ctypes.c_void_p, pointer: int, handle: ctypes.c_ulong
    ) -> None:
        info = self.filled(library.gdr_get_info, gdr, handle)
        assert self.number(info, 0, 8) == pointer + 65_536
        assert self.number(info, 8, 8) == 65_536
        assert self.number(info, 16, 4) == 65_536
        assert self.number(info, 36, 1) & 3 == 0
        assert info[40:] == bytes([self.CANARY]) * 56

    def test_info_of_both_versions_tells_of_the_mapping(
        self, library: ctypes.CDLL, gdr: ctypes.c_void_p, handle: ctypes.c_ulong
    ) -> None:
        room = (ctypes.c_ubyte * 16)(*[self.CANARY] * 16)
        size = ctypes.c_size_t(65_536)
        assert library.gdr_map(gdr, handle, room, size) == 0
        assert bytes(room)[8:] == bytes([self.CANARY]) * 8
        old = self.filled(library.gdr_get_info, gdr, handle)
        new = self.filled(library.gdr_get_info_v2, gdr, handle)
        va = ctypes.c_void_p(self.number(bytes(room), 0, 8))
        assert library.gdr_unmap(gdr, handle, va, size) == 0
        # Mapped, and not write-combined: simulated memory is cached.
        assert (old[36] & 3, new[36] & 3, self.number(new, 40, 4)) == (1, 1, 2)
        assert old[24:36] == new[24:36]

    @pytest.mark.parametrize("function", ["gdr_get_callback_flag", "gdr_get_attribute"])
    def test_answers_are_ints(
        self,
        library: ctypes.CDLL,
        gdr: ctypes.c_void_p,
        handle: ctypes.c_ulong,
        function: str,
    ) -> None:
        asked = handle if function == "gdr_get_callback_flag" else ctypes.c_int(1)
        data = self.filled(getattr(library, function), gdr, asked)
        assert data[4:] == bytes([self.CANARY]) * 92
        assert self.number(data, 0, 4) == (function == "gdr_get_attribute")

    def test_versions_are_ints(self, library: ctypes.CDLL, gdr: ctypes.c_void_p) -> None:
        for function, arguments in (
            (library.gdr_runtime_get_version, ()),
            (library.gdr_driver_get_version, (gdr,)),
        ):
            major = (ctypes.c_ubyte * 8)(*[self.CANARY] * 8)
            minor = (ctypes.c_ubyte * 8)(*[self.CANARY] * 8)
            function(*arguments, major, minor)
            assert bytes(major) == bytes([2, 0, 0, 0]) + bytes([self.CANARY]) * 4
            assert bytes(minor) == bytes([6, 0, 0, 0]) + bytes([self.CANARY]) * 4
