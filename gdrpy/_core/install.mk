# What the Makefiles of libraries for C programs have in common: folders, and the last words of an
# installation.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DESTDIR ?=
override PREFIX := $(abspath $(PREFIX))
override LIBDIR := $(abspath $(LIBDIR))
override INCLUDEDIR := $(abspath $(INCLUDEDIR))
override DESTDIR := $(abspath $(DESTDIR))
INSTALL ?= install

# Relative, so that the installed tree may be moved.
INCLUDEDIR_FROM_PC = $(shell realpath -ms --relative-to=$(LIBDIR)/pkgconfig $(INCLUDEDIR))

# The steps left after an installation outside a package: the loader searches some folders by itself.
define TELL_NEXT
if $(OF_LOADER); then \
	echo "next, as root, so that programs find it: ldconfig"; \
else \
	echo "next, so that programs find it, and build with it:"; \
	echo '  export LD_LIBRARY_PATH=$(LIBDIR)$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}'; \
	echo '  export PKG_CONFIG_PATH=$(LIBDIR)/pkgconfig$${PKG_CONFIG_PATH:+:$$PKG_CONFIG_PATH}'; \
fi
endef
OF_LOADER = PATH=$$PATH:/usr/sbin:/sbin ldconfig -vNX 2> /dev/null | sed -n 's|^\(/[^:]*\):.*|\1|p' | \
	xargs -r realpath -m | grep -qxF "$$(realpath -m $(LIBDIR))"
