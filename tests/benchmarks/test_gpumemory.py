"""What NVML is asked, by a library that answers for it."""

from __future__ import annotations

import subprocess

import pytest

import gpumemory
import libgdrapi
from gpumemory import NoNvml, Use, nvml

SOURCE = """
#include <string.h>
struct amounts { unsigned long long total, free, used; };
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device)
{
	*device = (void *)1;
	return strcmp(pci, "0000:01:00.0") ? 6 : 0;
}
int nvmlDeviceGetMemoryInfo(void *device, struct amounts *found)
{
	*found = (struct amounts){ 100, 70, 30 };
	return 0;
}
int nvmlDeviceGetBAR1MemoryInfo(void *device, struct amounts *found)
{
	*found = (struct amounts){ 50, 45, 5 };
	return 0;
}
"""
PCI = "0000:01:00.0"


@pytest.fixture
def library(tmp_path, monkeypatch):
    path = tmp_path / "nvml.so"
    compiler = ["gcc", "-x", "c", "-", "-shared", "-fPIC", "-o", path]
    subprocess.run(compiler, input=SOURCE, text=True, check=True)
    monkeypatch.setattr(gpumemory, "_LIBRARY", str(path))


@pytest.mark.usefixtures("library")
class TestNvml:
    def test_tells_what_is_in_use(self):
        with nvml() as one:
            assert one.use(PCI) == Use(memory=30, bar1=5)

    def test_that_refuses_is_told_with_the_call(self):
        with nvml() as one, pytest.raises(NoNvml, match="nvmlDeviceGetHandleByPciBusId_v2") as no:
            one.use("0000:02:00.0")
        assert str(no.value).endswith(" answered 6")

    def test_is_asked_by_the_cycles_of_libgdrapi(self, monkeypatch):
        class Gpu:
            pci = PCI

        monkeypatch.setattr(libgdrapi.cuda, "device_info", lambda ordinal: Gpu)
        found = libgdrapi._in_use()
        assert (found[libgdrapi.GPU_MEMORY], found[libgdrapi.BAR1]) == (30, 5)


class TestWithoutNvml:
    def test_nothing_is_known_of_the_gpu(self, monkeypatch):
        monkeypatch.setattr(gpumemory, "_LIBRARY", "libno-such-nvml.so")
        with pytest.raises(NoNvml, match="cannot open shared object file"), nvml():
            pass
        assert libgdrapi._in_use().keys() == {libgdrapi.DESCRIPTORS, libgdrapi.RESIDENT}


class TestUsers:
    def test_are_processes_with_a_device_file_open(self, tmp_path, monkeypatch):
        for process, target in (("11", "/dev/nvidia0"), ("12", "/dev/null")):
            (tmp_path / process / "fd").mkdir(parents=True)
            (tmp_path / process / "fd" / "3").symlink_to(target)
        (tmp_path / "13").mkdir()  # which ends while one looks
        monkeypatch.setattr(gpumemory, "Path", lambda path: tmp_path)
        assert gpumemory.users() == {11}
