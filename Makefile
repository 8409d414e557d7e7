# gdrpy: `make demo` runs the main job, `make test` everything that CI runs.
# Both set up what they need: a virtual environment in .venv, and the C parts built in place.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
# Else each of the thousand processes of the tests compiles anew what it imports.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
# By a line in a .pth file, which a program beside the checkout finds too: to Python the checkout's
# own folder, if it is called gdrpy, looks like a package, and other editable installs lose to it.
EDITABLE := --no-build-isolation --config-settings editable_mode=compat -e
LIBRARY_SOURCES := $(wildcard gdrpy/_core/*/*.[ch] gdrpy/include/*.h \
	gdrpy/include/gdrpy/*.h gdrpy/sim/src/*.[ch] driver/uapi/*.h)
C_SOURCES := $(LIBRARY_SOURCES) $(wildcard tests/c/*.[ch] tests/gdrapi/*.[ch] tests/rm/*.[ch] \
	tests/rm/src/*.[ch] benchmarks/*.[ch] driver/*.[ch] tests/vm/standin/*.[ch] \
	tests/vm/abi/*.[ch] tests/vm/stress/*.[ch] tests/vm/genuine/fakegpu/*.c tests/broker/*.c \
	tests/broker/conformance/*.c tests/packaging/*.c examples/*.c)
BUILT_FROM := pyproject.toml setup.py gdrpy/_core/python/build_ffi.py \
	$(wildcard gdrpy/_core/*/*.pc.in) $(LIBRARY_SOURCES)

# The tests need no CUDA build of torch. The very release keeps pip from the newest one and gigabytes
# of CUDA packages where an index offers this one for CPUs alone; TORCH="torch --index-url URL" says
# where such a build is.
TORCH ?= torch==2.13.0

# One at a time: other tests install packages too, beside this.
APT_GET := flock "$${TMPDIR:-/tmp}/gdrpy-apt.lock" apt-get -qq
ARM64_PACKAGES := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user

# A free-threaded Python, and where it gets what the tests need.
FREE_PYTHON ?= $(or $(shell command -v python3.14t),$(shell uv python find 3.14t 2> /dev/null))
FREE_VENV := .venv-free
FREE_TESTS := tests/test_threads.py tests/test_lifetime.py tests/arena tests/channel tests/contract \
	tests/transfer tests/broker/test_client_calls.py tests/broker/test_client_with_broker.py
# The copy engine's too, but those that need safetensors, matplotlib or torch.
FREE_TESTS += tests/engine $(addprefix --ignore=tests/engine/test_,broker_with_engine.py measuring.py) \
	--deselect=tests/engine/test_register.py::TestRegisteredBuffer::test_of_another_librarys_array_takes_no_staging_either

# The Python tests in parts that may run side by side: those that build programs, pages and packages,
# those of the broker and the commands, and the others.
BUILDING := tests/benchmarks tests/docs tests/gdrapi tests/packaging tests/rm
SERVING := tests/broker tests/cli

# What tests/vm/check does, in parts. Another one, platforms, needs no Python packages.
GUESTS := kernels genuine bed inside contract

.PHONY: help build tools demo test lint format test-c test-arm64 test-py test-py-building \
	test-py-serving test-py-others test-threads test-vm bench ptx docs dist clean install uninstall \
	install-broker uninstall-broker $(GUESTS:%=test-vm-%) test-vm-platforms

help:
	@echo "make build   set up .venv and build the C parts; then: source $(VENV)/bin/activate"
	@echo "make tools   the same, and what the tests and lint need"
	@echo "make demo    validate and measure, on the real GPU if there is one, else simulated"
	@echo "make test    everything: lint, C under sanitizers, Python, the kernel module in QEMU"
	@echo "make test-threads without a GIL: Python tests by python3.14t, C tests under ThreadSanitizer"
	@echo "make test-vm the kernel module alone, in QEMU guests"
	@echo "make lint    formatting, types, compiler warnings as errors"
	@echo "make format  put the formatting right"
	@echo "make bench   every benchmark, into benchmarks/results"
	@echo "make docs    the documentation site, into build/docs"
	@echo "make dist    source distribution, wheels and their checksums, into dist"
	@echo "make clean   remove what the build made, but not $(VENV)"
	@echo "make install libgdrapi alone, for C programs, without Python: PREFIX=/usr/local DESTDIR="
	@echo '             LIBDIR=$$(PREFIX)/lib INCLUDEDIR=$$(PREFIX)/include'
	@echo "make install-broker the broker's client library for C programs, in the same way"
	@echo "make uninstall, make uninstall-broker remove them again, with the same variables"

demo: build
	@$(BIN)/gdrpy info
	@$(BIN)/gdrpy validate
	@$(BIN)/gdrpy copybw
	@echo
	@echo "It works. Next, share memory between two processes, as docs/quick-start.md shows; use $(VENV) where it says env. Start:"
	@echo "    source $(BIN)/activate && gdrpy serve"

# Three parts at a time, for each waits now and then; and what one says comes out whole. First what
# needs no Python packages, beside their installation; then lint, and the parts that take longest.
test:
	@echo "== set-up, lint, C tests, Python tests, the kernel module in QEMU guests: minutes of silence"
	@$(MAKE) --no-print-directory -j3 --output-sync=target lint test-c test-vm-platforms test-arm64 \
		test-py-others test-py-building test-py-serving $(GUESTS:%=test-vm-%)

lint: tools
	@echo "== lint"
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run -Werror $(C_SOURCES)
	@tests/vm/lint || [ $$? = 77 -a "$${CI:-}" != true ]

format: tools
	@$(BIN)/ruff check -q --fix .
	@$(BIN)/ruff format -q .
	@$(BIN)/clang-format -i $(C_SOURCES)

test-c:
	@echo "== C tests, plain and under AddressSanitizer and UndefinedBehaviorSanitizer"
	@$(MAKE) --no-print-directory -C tests/c check

# Copies and channels for arm64, under emulation. Root gets what is missing installed, and is told.
test-arm64:
	@echo "== C tests of copies and channels for arm64, under emulation"
	@{ command -v aarch64-linux-gnu-gcc && command -v qemu-aarch64; } > /dev/null || { [ "$$(id -u)" = 0 ] && \
		echo "installing $(ARM64_PACKAGES) (Debian packages)" && $(APT_GET) update && \
		DEBIAN_FRONTEND=noninteractive $(APT_GET) install -y $(ARM64_PACKAGES) > /dev/null; } || true
	@$(MAKE) --no-print-directory -C tests/c check-arm64

test-py: tools
	@echo "== Python tests"
	@$(BIN)/pytest -q

# Under a lock, because a part in a guest makes these programs too.
test-py-building: tools
	@echo "== Python tests that build programs, pages and packages"
	@flock tests/gdrapi $(MAKE) --no-print-directory -s -C tests/gdrapi plain
	@$(BIN)/pytest -q $(BUILDING)

test-py-serving: tools
	@echo "== Python tests of the broker and the commands"
	@$(BIN)/pytest -q $(SERVING)

test-py-others: tools
	@echo "== the other Python tests"
	@$(BIN)/pytest -q $(patsubst %,--ignore=%,$(BUILDING) $(SERVING))

# What threads do where there is no GIL. Not of `make test`: few machines have such a Python.
test-threads:
	@[ -n "$(FREE_PYTHON)" ] || { echo "test-threads needs a free-threaded Python 3.14: run" \
		"'uv python install 3.14t', or tell FREE_PYTHON=/where/it/is/python3.14t"; exit 1; }
	@echo "== C tests of threads, under ThreadSanitizer"
	@$(MAKE) --no-print-directory -C tests/c check-threads
	@echo "== Python tests, by $(FREE_PYTHON)"
	@$(FREE_PYTHON) -m venv $(FREE_VENV)
	@$(FREE_VENV)/bin/python -m pip install -q "setuptools>=77" "cffi>=2"
	@CFLAGS="$${CFLAGS:-} -Werror" $(FREE_VENV)/bin/python -m pip install -q $(EDITABLE) . \
		pytest pytest-timeout hypothesis msgpack pyyaml ml_dtypes
	@$(FREE_VENV)/bin/python -m pytest -q $(FREE_TESTS)

# The kernel module in QEMU guests, on a GPU's BAR of theirs: see tests/vm/README.md.
test-vm: tools
	@echo "== the kernel module, in QEMU guests"
	@tests/vm/check

$(GUESTS:%=test-vm-%): tools
test-vm-platforms $(GUESTS:%=test-vm-%): test-vm-%:
	@echo "== the kernel module, in QEMU guests: $*"
	@tests/vm/check $*

bench: tools
	@$(BIN)/python benchmarks/run.py

# The kernels of gdrpy pplat, which the driver assembles where they run.
ptx: tools
	@d="$$(mktemp -d)"; trap 'rm -r "$$d"' EXIT; \
		$(PIP) --no-deps --target "$$d" nvidia-cuda-nvrtc-cu11==11.8.89 && \
		LD_LIBRARY_PATH="$$d/nvidia/cuda_nvrtc/lib" $(BIN)/python packaging/ptx.py "$$d"

docs: $(VENV)/.docs
	@$(BIN)/python -m sphinx -q -W --keep-going -c docs . build/docs
	@echo "build/docs/index.html"

# What a release is made of. The tag and the upload are left: see tools/release.
dist: $(VENV)/.dist
	@$(BIN)/python packaging/dist.py

build: $(VENV)/.built
tools: $(VENV)/.tools

# libgdrapi, its header and its pkg-config file, for programs in C. Run here, not there: folders may
# be relative.
install uninstall:
	@$(MAKE) --no-print-directory -f gdrpy/_core/gdrapi/Makefile $@

# The same for libgdrpy-broker.
install-broker uninstall-broker:
	@$(MAKE) --no-print-directory -f gdrpy/_core/brokerlib/Makefile $(@:-broker=)

# The package as a link to the checkout, its C parts in place, and what it needs.
$(VENV)/.built: $(BUILT_FROM)
	@command -v gcc > /dev/null || { echo "gdrpy's C parts need gcc: apt install gcc"; exit 1; }
	@echo "setting up $(VENV) (packages from PyPI) and building the C parts"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) "setuptools>=77" "cffi>=1.17"
	@CFLAGS="$${CFLAGS:-} -Werror" $(PIP) $(EDITABLE) .
	@# Else each process does it that may not write here, as all in guests.
	@$(BIN)/python -m compileall -q gdrpy tests
	@touch $@

# What tests, lint and plots need besides.
$(VENV)/.tools: $(VENV)/.built
	@echo "installing the tools for tests and lint into $(VENV) (packages from PyPI)"
	@$(PIP) $(TORCH)
	@$(PIP) $(EDITABLE) ".[test,ecosystem,docs,package,lint,plot]"
	@touch $@

# What a release is built by.
$(VENV)/.dist: $(VENV)/.built
	@echo "installing the tools for packages into $(VENV) (packages from PyPI)"
	@$(PIP) $(EDITABLE) ".[package]"
	@touch $@

# What the documentation site is built by.
$(VENV)/.docs: $(VENV)/.built
	@echo "installing the tools for the documentation into $(VENV) (packages from PyPI)"
	@$(PIP) $(EDITABLE) ".[docs]"
	@touch $@

clean:
	rm -rf build dist *.egg-info gdrpy/_core/*.so gdrpy/_core/_ffi.c gdrpy/sim/libcuda.so.1 \
		gdrpy/lib tests/c/build tests/gdrapi/build $(VENV)/.built $(VENV)/.tools $(VENV)/.dist \
		$(VENV)/.docs
	@echo "$(VENV) stays, and gdrpy in it does not run until the next make build; rm -rf $(VENV) removes it"
