# SPDX-License-Identifier: MIT
# packaging/recipes.py fills in the version and the checksum of a source distribution.

from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Libgdrapi(MakefilePackage):
    """CPU loads and stores of NVIDIA GPU memory for NCCL, UCX and others: the interface and ABI of
    GDRCopy's libgdrapi.so.2, without a kernel module."""

    homepage = "https://pypi.org/project/gdrpy/"
    url = "https://files.pythonhosted.org/packages/source/g/gdrpy/gdrpy-@VERSION@.tar.gz"

    license("MIT")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("c", type="build")

    requires("platform=linux")
    requires("target=x86_64:", "target=aarch64:", policy="one_of")

    makefile = "gdrpy/_core/gdrapi/Makefile"

    def build(self, spec, prefix):
        make("-f", self.makefile)

    def install(self, spec, prefix):
        make("-f", self.makefile, "install", f"PREFIX={prefix}")
