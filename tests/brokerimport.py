"""C programs around lines of docs/broker-library.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from gdrpy.cli.libgdrapi import SHARED_OBJECT

TOP = Path(__file__).parent.parent

#: What the lines that import a region need of CUDA's header, which few machines have.
HEADER = """
#include <stddef.h>
#include <stdint.h>
typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr, CUmemGenericAllocationHandle;
typedef struct { struct { int type, id; } location; int flags; } CUmemAccessDesc;
#define CU_MEM_LOCATION_TYPE_DEVICE 1
#define CU_MEM_ACCESS_FLAGS_PROT_READ 1
#define CU_MEM_ACCESS_FLAGS_PROT_READWRITE 3
#define CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR 1
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *, void *, int);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMemRelease(CUmemGenericAllocationHandle);
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
CUresult cuInit(unsigned int);
CUresult cuDevicePrimaryCtxRetain(void **, CUdevice);
CUresult cuCtxSetCurrent(void *);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
"""

#: Ends a program with the text of a call that failed.
CHECK = """
#include <stdio.h>
#include <string.h>
#define CHECK(call) do { int result = call; if (result) { \\
	printf("%s: %d %s\\n", #call, result, gdrpy_broker_error()); return 1; } } while (0)
"""

#: Writes a text into a region by CUDA: SOCKET REGION TEXT.
MAIN = """
int main(int count, char **words)
{
	struct gdrpy_broker *broker;
	struct gdrpy_region *region;
	CUdeviceptr address;
	void *context;

	(void)count;
	CHECK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0));
	CHECK(cuCtxSetCurrent(context));
	CHECK(gdrpy_broker_connect(words[1], 10000, 5000, &broker));
	CHECK(gdrpy_broker_get(broker, words[2], GDRPY_BROKER_GPU, &region));
	CHECK(import_region(region, 0, &address));
	CHECK(cuMemcpyHtoD_v2(address, words[3], strlen(words[3])));
	CHECK(cuMemUnmap(address, region->size));
	CHECK(cuMemAddressFree(address, region->size));
	printf("%s: written by CUDA\\n", region->uuid);
	gdrpy_region_release(region);
	gdrpy_broker_close(broker);
	return 0;
}
"""

#: Holds a region until its exporter has ended, and looks after a line on stdin: SOCKET REGION.
HOLDER = """
int main(int count, char **words)
{
	struct gdrpy_broker *broker;
	struct gdrpy_watch *watch;
	struct gdrpy_region *region;
	int result;

	(void)count;
	CHECK(gdrpy_broker_connect(words[1], 10000, 5000, &broker));
	CHECK(gdrpy_watch_open(broker, words[2], &watch));
	CHECK(gdrpy_broker_get(broker, words[2], 0, &region));
	printf("ended: %d\\n", has_ended(broker, watch, region, 0));
	fflush(stdout);
	getchar();
	result = has_ended(broker, watch, region, 60000);
	printf("ended: %d, check: %d\\n", result, gdrpy_region_check(region));
	gdrpy_region_release(region);
	gdrpy_watch_close(watch);
	gdrpy_broker_close(broker);
	return 0;
}
"""


def build(folder: Path, *driver: str) -> Path:
    """The program that imports a region, linked with a CUDA driver."""
    (folder / "cuda.h").write_text(HEADER)
    return build_around(folder, "import", MAIN, *driver)


def build_around(folder: Path, name: str, main: str, *driver: str) -> Path:
    """A program of the page's lines of a name, and others."""
    page = (TOP / "docs/broker-library.md").read_text()
    (lines,) = re.findall(rf"<!-- broker-library: {name} -->\n```c\n(.*?)```", page, re.S)
    source, program = folder / f"{name}.c", folder / name
    source.write_text(lines + CHECK + main)
    include = [f"-I{folder}", f"-I{SHARED_OBJECT.parents[1] / 'include'}"]
    libraries = [str(SHARED_OBJECT.with_name("libgdrpy-broker.so.1")), *driver]
    rpath = f"-Wl,-rpath,{SHARED_OBJECT.parent}"
    strict = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    command = ["gcc", *strict, "-o", program, source, *include, *libraries, rpath]
    subprocess.run(command, check=True)
    return program
