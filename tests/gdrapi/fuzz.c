/* SPDX-License-Identifier: MIT */
/*
 * Random sequences of calls, with handles that live, are stale, or never were: a model foretells
 * every answer.
 *
 *	fuzz SEED CALLS
 */
#include "random.h"

enum {
	PINS = 12, /* that are known at a time, live and stale */
	LIBRARIES = 2,
	CPU_PAGE = 4096
};

static CUdeviceptr memory;

struct model_pin {
	gdr_mh_t handle;
	gdr_t gdr; /* NULL once it is unpinned: the handle is stale */
	uint64_t va;
	size_t size;
	size_t lead; /* bytes before the address that was asked for, which are mapped too */
	unsigned char *mapped;
	size_t mapped_size;
};

struct fuzzer {
	uint64_t random;
	gdr_t libraries[LIBRARIES];
	struct model_pin pins[PINS];
	unsigned char bytes[MEMORY], host[MEMORY];
};

static struct model_pin *any_pin(struct fuzzer *fuzzer)
{
	return &fuzzer->pins[below(&fuzzer->random, PINS)];
}

/* Mostly the library that the pin is of. */
static gdr_t any_library(struct fuzzer *fuzzer, const struct model_pin *pin)
{
	if (pin->gdr && below(&fuzzer->random, 8))
		return pin->gdr;
	return fuzzer->libraries[below(&fuzzer->random, LIBRARIES)];
}

static bool lives(const struct model_pin *pin, gdr_t gdr)
{
	return pin->gdr && pin->gdr == gdr;
}

static void try_pin(struct fuzzer *fuzzer)
{
	struct model_pin *pin = any_pin(fuzzer);
	gdr_t gdr = fuzzer->libraries[below(&fuzzer->random, LIBRARIES)];
	size_t offset = odd_number(&fuzzer->random), nbytes = odd_number(&fuzzer->random);
	bool inside = offset < MEMORY && nbytes && nbytes <= MEMORY - offset;
	gdr_info_v2_t info;
	gdr_mh_t handle;
	int error;

	if (pin->gdr)
		return;
	if (!inside) {
		offset %= MEMORY;
		nbytes = below(&fuzzer->random, 2) ? 0 : MEMORY - offset + GPU_PAGE;
	}
	error = gdr_pin_buffer(gdr, memory + offset, nbytes, 0, 0, &handle);
	CHECK_EQ(error, inside ? 0 : EINVAL);
	if (error)
		return;
	info = info_of(gdr, handle);
	CHECK_EQ(info.va, memory + offset / GPU_PAGE * GPU_PAGE);
	CHECK_EQ(info.mapped_size,
		 (memory + offset + nbytes + GPU_PAGE - 1) / GPU_PAGE * GPU_PAGE - info.va);
	for (int i = 0; i < PINS; i++)
		CHECK(fuzzer->pins[i].handle.h != handle.h);
	*pin = (struct model_pin){.handle = handle,
				  .gdr = gdr,
				  .va = info.va,
				  .size = info.mapped_size,
				  .lead = memory + offset - info.va};
}

static void try_map(struct fuzzer *fuzzer)
{
	struct model_pin *pin = any_pin(fuzzer);
	gdr_t gdr = any_library(fuzzer, pin);
	size_t nbytes = below(&fuzzer->random, 2) ? pin->size : odd_number(&fuzzer->random);
	void *va = NULL;
	int error = gdr_map(gdr, pin->handle, &va, nbytes);

	if (!lives(pin, gdr)) {
		CHECK_EQ(error, EINVAL);
	} else if (!nbytes || nbytes > pin->size) {
		CHECK(error == EINVAL || (pin->mapped && error == EAGAIN));
	} else if (pin->mapped) {
		CHECK_EQ(error, EAGAIN);
	} else {
		CHECK_EQ(error, 0);
		pin->mapped = va;
		pin->mapped_size = nbytes < pin->size - pin->lead ? pin->lead + nbytes : pin->size;
	}
}

/* An address by the number, since what is beyond an object cannot be told by a pointer. */
static void *at(const struct model_pin *pin, size_t offset)
{
	return (void *)((uintptr_t)pin->mapped + offset);
}

static void try_unmap(struct fuzzer *fuzzer)
{
	struct model_pin *pin = any_pin(fuzzer);
	gdr_t gdr = any_library(fuzzer, pin);
	bool right = below(&fuzzer->random, 3);
	size_t offset = right ? 0 : 1 + below(&fuzzer->random, MEMORY);
	int error = gdr_unmap(gdr, pin->handle, at(pin, offset), pin->mapped_size);

	CHECK_EQ(error, lives(pin, gdr) && pin->mapped && right ? 0 : EINVAL);
	if (!error)
		pin->mapped = NULL;
}

static void try_unpin(struct fuzzer *fuzzer)
{
	struct model_pin *pin = any_pin(fuzzer);
	gdr_t gdr = any_library(fuzzer, pin);

	CHECK_EQ(gdr_unpin_buffer(gdr, pin->handle), lives(pin, gdr) ? 0 : EINVAL);
	if (lives(pin, gdr)) {
		pin->gdr = NULL;
		pin->mapped = NULL;
	}
}

/* A range inside the mapping, or one that begins or ends beyond its last page. */
static void try_copy(struct fuzzer *fuzzer, bool to)
{
	struct model_pin *pin = any_pin(fuzzer);
	bool inside = pin->gdr && pin->mapped && below(&fuzzer->random, 6);
	size_t offset = inside ? below(&fuzzer->random, pin->mapped_size) : 0;
	size_t nbytes = inside ? below(&fuzzer->random, pin->mapped_size - offset + 1)
			       : (pin->mapped_size + CPU_PAGE - 1) / CPU_PAGE * CPU_PAGE + 1;
	unsigned char *seen = fuzzer->bytes + (inside ? pin->va - memory + offset : 0);
	int error;

	if (!inside && below(&fuzzer->random, 2)) {
		offset = nbytes;
		nbytes = 1;
	}
	for (size_t i = 0; to && inside && i < nbytes; i++)
		fuzzer->host[i] = (unsigned char)(offset + i * i + nbytes);
	error = to ? gdr_copy_to_mapping(pin->handle, at(pin, offset), fuzzer->host, nbytes)
		   : gdr_copy_from_mapping(pin->handle, fuzzer->host, at(pin, offset), nbytes);
	CHECK_EQ(error, inside ? 0 : EINVAL);
	if (inside && to)
		memcpy(seen, fuzzer->host, nbytes);
	else if (inside)
		CHECK_MEM_EQ(fuzzer->host, seen, nbytes);
}

static void try_query(struct fuzzer *fuzzer)
{
	struct model_pin *pin = any_pin(fuzzer);
	gdr_t gdr = any_library(fuzzer, pin);
	int error = lives(pin, gdr) ? 0 : EINVAL, flag;
	gdr_info_v2_t info;

	CHECK_EQ(gdr_get_callback_flag(gdr, pin->handle, &flag), error);
	CHECK_EQ(gdr_get_info_v2(gdr, pin->handle, &info), error);
	if (error)
		return;
	CHECK_EQ(info.va, pin->va);
	CHECK_EQ(info.mapped_size, pin->size);
	CHECK_EQ(info.mapped, pin->mapped != NULL);
}

static void try_reopening(struct fuzzer *fuzzer)
{
	gdr_t *gdr = &fuzzer->libraries[below(&fuzzer->random, LIBRARIES)];

	if (below(&fuzzer->random, 50))
		return;
	for (int i = 0; i < PINS; i++) {
		if (fuzzer->pins[i].gdr == *gdr) {
			fuzzer->pins[i].gdr = NULL;
			fuzzer->pins[i].mapped = NULL;
		}
	}
	CHECK_EQ(gdr_close(*gdr), 0);
	*gdr = opened();
}

static void call_at_random(uint64_t seed, int calls)
{
	static struct fuzzer fuzzer;

	fuzzer.random = seed | 1;
	memory = allocate(MEMORY);
	gpu_write(memory, fuzzer.bytes, MEMORY);
	for (int i = 0; i < LIBRARIES; i++)
		fuzzer.libraries[i] = opened();
	for (int i = 0; i < PINS; i++)
		fuzzer.pins[i].handle.h = next_random(&fuzzer.random);
	while (calls--) {
		switch (below(&fuzzer.random, 8)) {
		case 0:
		case 1:
			try_pin(&fuzzer);
			break;
		case 2:
			try_map(&fuzzer);
			break;
		case 3:
			try_unmap(&fuzzer);
			break;
		case 4:
			try_unpin(&fuzzer);
			break;
		case 5:
			try_copy(&fuzzer, next_random(&fuzzer.random) & 1);
			break;
		case 6:
			try_query(&fuzzer);
			break;
		case 7:
			try_reopening(&fuzzer);
		}
	}
	gpu_read(memory, fuzzer.host, MEMORY);
	CHECK_MEM_EQ(fuzzer.host, fuzzer.bytes, MEMORY);
	for (int i = 0; i < LIBRARIES; i++)
		CHECK_EQ(gdr_close(fuzzer.libraries[i]), 0);
	OK(cuMemFree_v2(memory));
}

int main(int argc, char **argv)
{
	return fuzz(argc, argv, call_at_random, "answered as foretold");
}
