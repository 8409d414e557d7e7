# SPDX-License-Identifier: MIT
# packaging/recipes.py fills in the version and the checksum of a source distribution.

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyGdrpy(PythonPackage):
    """CPU and GPU views of one region of NVIDIA GPU memory."""

    homepage = "https://pypi.org/project/gdrpy/"
    pypi = "gdrpy/gdrpy-@VERSION@.tar.gz"

    license("MIT")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("c", type="build")

    requires("platform=linux")
    requires("target=x86_64:", "target=aarch64:", policy="one_of")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-cffi@1.17:", type=("build", "run"))
    depends_on("py-cuda-bindings@12.9:", type=("build", "run"))
    depends_on("py-msgspec@0.19:", type=("build", "run"))
    depends_on("py-rich@14.3:", type=("build", "run"))
