/* SPDX-License-Identifier: MIT */
/*
 * C asks the broker for a region by name, and writes into it.
 *
 * First start a broker, in another terminal:
 *
 *	export GDRPY_SOCKET=/tmp/broker.sock
 *	gdrpy serve --socket $GDRPY_SOCKET
 *
 * Then, in this terminal:
 *
 *	export GDRPY_SOCKET=/tmp/broker.sock
 *	export LD_LIBRARY_PATH="$(gdrpy libgdrapi --dir)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
 *	export PKG_CONFIG_PATH="$(gdrpy libgdrapi --dir)/pkgconfig"
 *	gcc -o greet broker_library.c $(pkg-config --cflags --libs gdrpy-broker)
 *	./greet greeting "written in C"
 *	gdrpy get greeting --nbytes 12
 *
 * docs/broker-library.md is the guide. It also says how CUDA imports the memory of a GPU.
 */
#include <gdrpy/broker.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int result)
{
	if (!result)
		return;
	fprintf(stderr, "%s: %s\n", gdrpy_broker_result_name(result), gdrpy_broker_error());
	exit(1);
}

int main(int count, char **words)
{
	struct gdrpy_new_region wanted = {.nbytes = 4096, .device = "cpu", .mode = 0600};
	struct gdrpy_broker *broker;
	struct gdrpy_region *region;
	void *memory;

	if (count != 3 || strlen(words[2]) > wanted.nbytes) {
		fprintf(stderr, "usage: %s REGION TEXT\n", words[0]);
		return 2;
	}
	wanted.name = words[1];
	check(gdrpy_broker_connect(NULL, 10000, 5000, &broker));
	check(gdrpy_broker_allocate(broker, &wanted, 0, &region)); /* made, or found */
	if (region->readonly) {
		fprintf(stderr, "%s is read-only here: sealed, or another user's\n", words[1]);
		return 1;
	}
	check(gdrpy_region_map(region, &memory));
	memcpy(memory, words[2], strlen(words[2]));
	printf("%s: version %llu, %llu bytes, written\n", region->name,
	       (unsigned long long)region->version, (unsigned long long)region->nbytes);
	check(gdrpy_region_unmap(region, memory));
	gdrpy_region_release(region); /* the name keeps the memory */
	gdrpy_broker_close(broker);
	return 0;
}
