/* SPDX-License-Identifier: MIT */
#include "engine.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"
#include "clock.h"
#include "dma.h"
#include "event.h"
#include "fault.h"
#include "user.h"

#define XID_MMU_FAULT 31
#define XID_PBDMA 32
#define NOTIFIER_ERROR 0xFFFF

#define IN_FLIGHT_MAX 4096
#define PIECE (1u << 20)
#define COPY_MAX (1ull << 30)
#define PATTERN_SIZE 49152 /* a multiple of every element's size */
#define IDLE_ROUNDS 40	   /* before writes that nothing flushed arrive after all */

#define HOST_METHODS_END 0x100
#define COPY_SUBCHANNEL 4

enum method {
	SET_OBJECT = 0x000,
	HOST_NOP = 0x008,
	SEM_ADDR_LO = 0x05C,
	SEM_EXECUTE = 0x06C,
	HOST_WFI = 0x078,
	COPY_NOP = 0x100,
	SET_SEMAPHORE_A = 0x240,
	SET_SEMAPHORE_PAYLOAD = 0x248,
	LAUNCH_DMA = 0x300,
	OFFSET_IN_UPPER = 0x400,
	LINE_COUNT = 0x41C,
	SET_REMAP_CONST_A = 0x700,
	SET_REMAP_COMPONENTS = 0x708,
	METHODS_END = 0x800,
};

#define SEM_SWITCH (1u << 12)
#define SEM_RELEASE_WAITS (1u << 20)

#define LAUNCH_TRANSFER(launch) ((launch) & 3)
#define LAUNCH_NON_PIPELINED 2
#define LAUNCH_FLUSH (1u << 2)
#define LAUNCH_SEMAPHORE(launch) ((launch) >> 3 & 3)
#define LAUNCH_INTERRUPT(launch) ((launch) >> 5 & 3)
#define LAUNCH_PITCH (3u << 7)
#define LAUNCH_MULTI_LINE (1u << 9)
#define LAUNCH_REMAP (1u << 10)
#define LAUNCH_KNOWN 0x7FFu

struct copy {
	uint64_t in, out;
	int64_t pitch_in, pitch_out;
	uint64_t length; /* bytes of a line of the destination */
	uint64_t lines;
	bool fill;
	size_t element_size;
	uint8_t element[16];
};

struct channel {
	struct channel_setup setup; /* its pointers are not looked at once it is stopped */
	struct channel *next;
	bool bound, scheduled, rung, dead, stopped;
	bool holds;   /* the engine, while it waits for a word */
	uint32_t xid; /* to be told by the notifier */
	uint32_t id;
	uint32_t get;
	uint32_t class; /* of the copy object; 0 without one */
	bool object_set;
	uint32_t host[METHODS_END / 4];
	uint32_t copy[METHODS_END / 4];
	struct copy in_flight[IN_FLIGHT_MAX];
	size_t in_flight_count;
	unsigned int seed;
};

static struct channel *channels;
static uint32_t next_id;

/* Whether the channel may go on. */
static bool lives(const struct channel *channel)
{
	return !channel->stopped && !channel->dead;
}

/* Let others have the lock. */
static bool pause_channel(const struct channel *channel)
{
	ledger_pause();
	return lives(channel);
}

static void rest(long microseconds)
{
	struct timespec time = {.tv_nsec = microseconds * 1000};

	ledger_unlock();
	nanosleep(&time, NULL);
	ledger_lock();
}

static bool adversarial(const struct channel *channel)
{
	return channel->seed;
}

/* A place where the hardware may take its time. */
static bool linger(struct channel *channel)
{
	if (adversarial(channel) && !(rand_r(&channel->seed) % 3))
		rest(1 + rand_r(&channel->seed) % 400);
	return lives(channel);
}

static void *memory_at(const struct channel *channel, uint32_t handle, uint64_t offset, size_t size)
{
	struct device *device;
	struct object *object = object_find(channel->setup.client, handle, &device);
	char probe[64];

	if (!object || offset + size > object->memory.size)
		return NULL;
	/* The process may have unmapped the pages. The hardware would still reach them, unseen. */
	if (size > sizeof(probe) ||
	    copy_from_user(probe, (uintptr_t)object->memory.hold + offset, size))
		return NULL;
	return (char *)object->memory.hold + offset;
}

/* The kernel learns of an Xid, and tells it, some time after the engine stopped. */
static void notify(struct channel *channel)
{
	struct rm_notification *notification;
	struct timespec now;
	uint32_t xid = channel->xid;

	channel->xid = 0;
	if (adversarial(channel))
		rest(40000 + rand_r(&channel->seed) % 60000);
	if (channel->stopped)
		return;
	notification = memory_at(channel, channel->setup.error, 0, sizeof(*notification));
	if (!notification)
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	notification->time = now.tv_sec * 1000000000ull + now.tv_nsec;
	notification->info32 = xid;
	notification->info16 = channel->setup.engine;
	__atomic_store_n(&notification->status, NOTIFIER_ERROR, __ATOMIC_RELEASE);
}

/* The channel dies, and the others of its group with it. */
__attribute__((format(printf, 3, 4))) static bool fail(struct channel *channel, uint32_t xid,
						       const char *format, ...)
{
	char text[120];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	ledger_xid_add("%u: channel 0x%x: %s", xid, channel->setup.handle, text);
	for (struct channel *one = channels; one; one = one->next) {
		bool together = one == channel || (channel->setup.group &&
						   one->setup.client == channel->setup.client &&
						   one->setup.group == channel->setup.group);

		if (!together || one->dead)
			continue;
		one->dead = true;
		one->xid = xid;
	}
	return false;
}

static uint32_t copy_xid(const struct channel *channel)
{
	uint32_t index = channel->setup.engine - RM_ENGINE_COPY0;

	return index < 3 ? 39 + index : 70 + index - 3;
}

static void *translate(struct channel *channel, uint64_t address, bool write, uint64_t *size)
{
	void *bytes = dma_translate(channel->setup.device, channel->setup.address_space, address,
				    write, size);

	if (!bytes)
		fail(channel, XID_MMU_FAULT, "%s of unmapped address 0x%llx",
		     write ? "write" : "read", (unsigned long long)address);
	return bytes;
}

/* A copy to pages that the process has unmapped meanwhile is lost. */
static void move_bytes(void *to, const void *from, size_t size)
{
	struct iovec local = {.iov_base = (void *)(uintptr_t)from, .iov_len = size};
	struct iovec remote = {.iov_base = to, .iov_len = size};

	(void)!process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
}

static bool read_bytes(struct channel *channel, uint64_t address, void *to, uint64_t size)
{
	for (char *at = to; size;) {
		uint64_t piece = size;
		const void *from = translate(channel, address, false, &piece);

		if (!from)
			return false;
		if (copy_from_user(at, (uintptr_t)from, piece))
			memset(at, 0, piece); /* the process unmapped it: see move_bytes */
		at += piece;
		address += piece;
		size -= piece;
	}
	return true;
}

static bool copy_line(struct channel *channel, uint64_t to, uint64_t from, uint64_t size)
{
	while (size) {
		uint64_t piece = size < PIECE ? size : PIECE;
		void *source, *target;

		source = translate(channel, from, false, &piece);
		if (!source)
			return false;
		target = translate(channel, to, true, &piece);
		if (!target)
			return false;
		move_bytes(target, source, piece);
		to += piece;
		from += piece;
		size -= piece;
		if (piece >= 4096 && (!pause_channel(channel) || !linger(channel)))
			return false;
	}
	return true;
}

static bool fill_line(struct channel *channel, uint64_t to, const struct copy *copy)
{
	static char pattern[PATTERN_SIZE]; /* under the lock */
	uint64_t size = copy->length, done = 0;

	while (done < size) {
		uint64_t piece = size - done < PATTERN_SIZE ? size - done : PATTERN_SIZE;
		void *target = translate(channel, to + done, true, &piece);

		if (!target)
			return false;
		for (size_t i = 0; i < piece; i++)
			pattern[i] = copy->element[(done + i) % copy->element_size];
		move_bytes(target, pattern, piece);
		done += piece;
		if (piece >= 4096 && !pause_channel(channel))
			return false;
	}
	return true;
}

static bool execute(struct channel *channel, const struct copy *copy)
{
	for (uint64_t line = 0; line < copy->lines; line++) {
		uint64_t to = copy->out + line * copy->pitch_out;

		if (copy->fill ? !fill_line(channel, to, copy)
			       : !copy_line(channel, to, copy->in + line * copy->pitch_in,
					    copy->length))
			return false;
		if (line % 64 == 63 && !pause_channel(channel))
			return false;
	}
	return true;
}

/* Do what is in flight, the last one first or in any order. */
static bool drain(struct channel *channel)
{
	while (channel->in_flight_count) {
		size_t last = channel->in_flight_count - 1, at = last;
		struct copy copy;

		if (adversarial(channel))
			at = rand_r(&channel->seed) % channel->in_flight_count;
		copy = channel->in_flight[at];
		channel->in_flight[at] = channel->in_flight[last];
		channel->in_flight_count = last;
		if (!execute(channel, &copy))
			return false;
	}
	return true;
}

static uint64_t address_of(const uint32_t *registers, uint32_t upper)
{
	return (uint64_t)registers[upper / 4] << 32 | registers[upper / 4 + 1];
}

/* The element that a remapped launch writes: constants alone. */
static bool read_element(struct channel *channel, struct copy *copy)
{
	uint32_t components = channel->copy[SET_REMAP_COMPONENTS / 4];
	size_t size = (components >> 16 & 3) + 1, count = (components >> 24 & 3) + 1;

	if (components & ~0x3337777u || size == 3)
		return fail(channel, copy_xid(channel), "remap components 0x%x", components);
	for (size_t i = 0; i < count; i++) {
		uint32_t source = components >> (4 * i) & 7;

		if (source != 4 && source != 5)
			return fail(channel, copy_xid(channel), "remap of no constant: 0x%x",
				    components);
		memcpy(copy->element + i * size, &channel->copy[SET_REMAP_CONST_A / 4 + source - 4],
		       size);
	}
	copy->element_size = size * count;
	copy->length *= copy->element_size;
	if (copy->out % size)
		return fail(channel, copy_xid(channel), "fill of %zu-byte components at 0x%llx",
			    size, (unsigned long long)copy->out);
	return true;
}

static bool launch_transfer(struct channel *channel, uint32_t launch)
{
	const uint32_t *registers = channel->copy;
	struct copy copy = {
		.in = address_of(registers, OFFSET_IN_UPPER),
		.out = address_of(registers, OFFSET_IN_UPPER + 8),
		.length = registers[0x418 / 4],
		.lines = 1,
		.fill = launch & LAUNCH_REMAP,
	};

	if ((launch & LAUNCH_PITCH) != LAUNCH_PITCH)
		return fail(channel, copy_xid(channel), "launch 0x%x: a layout is not pitch",
			    launch);
	if (copy.fill && !read_element(channel, &copy))
		return false;
	if (launch & LAUNCH_MULTI_LINE) {
		copy.pitch_in = (int32_t)registers[0x410 / 4];
		copy.pitch_out = (int32_t)registers[0x414 / 4];
		copy.lines = registers[LINE_COUNT / 4];
	}
	if (!copy.length || copy.length > COPY_MAX || !copy.lines)
		return fail(channel, copy_xid(channel), "%llu lines of %llu bytes",
			    (unsigned long long)copy.lines, (unsigned long long)copy.length);
	if (LAUNCH_TRANSFER(launch) == LAUNCH_NON_PIPELINED && !drain(channel))
		return false;
	if (channel->in_flight_count == IN_FLIGHT_MAX && !drain(channel))
		return false;
	channel->in_flight[channel->in_flight_count++] = copy;
	return true;
}

static bool store_word(struct channel *channel, uint64_t address, uint32_t value)
{
	uint64_t size = sizeof(value);
	uint32_t *word, probe;

	if (address % sizeof(value))
		return fail(channel, copy_xid(channel), "semaphore at 0x%llx is not aligned",
			    (unsigned long long)address);
	word = translate(channel, address, true, &size);
	if (!word)
		return false;
	if (!copy_from_user(&probe, (uintptr_t)word, sizeof(probe)))
		__atomic_store_n(word, value, __ATOMIC_RELEASE);
	return true;
}

static void interrupt(const struct channel *channel)
{
	const struct device *device = channel->setup.device;

	if (fault_take("INTERRUPT"))
		return;
	for (struct part *part = device->parts; part; part = part->next)
		if (part->kind == PART_EVENT && part->engine == channel->setup.engine)
			event_signal(part->fd);
}

static bool launch_dma(struct channel *channel, uint32_t launch)
{
	uint32_t kind = LAUNCH_SEMAPHORE(launch), intr = LAUNCH_INTERRUPT(launch);
	uint64_t address = address_of(channel->copy, SET_SEMAPHORE_A);
	uint32_t payload = channel->copy[SET_SEMAPHORE_PAYLOAD / 4];

	if (launch & ~LAUNCH_KNOWN || LAUNCH_TRANSFER(launch) == 3 || kind > 1 ||
	    (intr != 0 && intr != 2))
		return fail(channel, copy_xid(channel), "launch 0x%x", launch);
	if (LAUNCH_TRANSFER(launch)) {
		if (!launch_transfer(channel, launch))
			return false;
		ledger_transfer_add();
	}
	if (kind) {
		if (launch & LAUNCH_FLUSH && !drain(channel))
			return false;
		if (!linger(channel) || !store_word(channel, address, payload))
			return false;
	}
	if (intr)
		interrupt(channel);
	return true;
}

/* Host's semaphores: 32-bit, without a time. */
static bool host_semaphore(struct channel *channel, uint32_t execute_word)
{
	uint64_t address =
		(uint64_t)channel->host[SEM_ADDR_LO / 4 + 1] << 32 | channel->host[SEM_ADDR_LO / 4];
	uint32_t payload = channel->host[SEM_ADDR_LO / 4 + 2], operation = execute_word & 7;
	uint32_t value;

	if (execute_word & ~(7u | SEM_SWITCH | SEM_RELEASE_WAITS) || operation > 3 || address % 4 ||
	    channel->host[SEM_ADDR_LO / 4 + 3])
		return fail(channel, XID_PBDMA, "semaphore 0x%x at 0x%llx", execute_word,
			    (unsigned long long)address);
	if (operation == 1) {
		if (execute_word & SEM_RELEASE_WAITS && !drain(channel))
			return false;
		return store_word(channel, address, payload);
	}
	for (;;) {
		if (!read_bytes(channel, address, &value, sizeof(value)))
			return false;
		if (operation == 0   ? value == payload
		    : operation == 2 ? value >= payload
				     : (int32_t)(value - payload) >= 0)
			return true;
		channel->holds = !(execute_word & SEM_SWITCH);
		rest(50);
		channel->holds = false;
		if (!lives(channel))
			return false;
	}
}

/* Whether another channel has the engine, and does not let others run. */
static bool is_held_up(const struct channel *channel)
{
	for (const struct channel *one = channels; one; one = one->next)
		if (one->holds && one->setup.engine == channel->setup.engine &&
		    one->setup.device->instance == channel->setup.device->instance)
			return true;
	return false;
}

static bool host_method(struct channel *channel, uint32_t subchannel, uint32_t method,
			uint32_t value)
{
	channel->host[method / 4] = value;
	switch (method) {
	case SET_OBJECT:
		if (subchannel != COPY_SUBCHANNEL || !channel->class || value != channel->class)
			return fail(channel, XID_PBDMA, "object 0x%x on subchannel %u", value,
				    subchannel);
		channel->object_set = true;
		return true;
	case HOST_NOP:
	case SEM_ADDR_LO:
	case SEM_ADDR_LO + 4:
	case SEM_ADDR_LO + 8:
	case SEM_ADDR_LO + 12:
		return true;
	case SEM_EXECUTE:
		return host_semaphore(channel, value);
	case HOST_WFI:
		return drain(channel);
	}
	return fail(channel, XID_PBDMA, "host method 0x%x", method);
}

static bool take_method(struct channel *channel, uint32_t subchannel, uint32_t method,
			uint32_t value)
{
	if (method < HOST_METHODS_END)
		return host_method(channel, subchannel, method, value);
	if (subchannel != COPY_SUBCHANNEL || !channel->object_set)
		return fail(channel, XID_PBDMA, "method 0x%x on subchannel %u, which has no object",
			    method, subchannel);
	if (method == COPY_NOP)
		return true;
	if (method == LAUNCH_DMA)
		return launch_dma(channel, value);
	if ((method < SET_SEMAPHORE_A || method > SET_SEMAPHORE_PAYLOAD) &&
	    (method < OFFSET_IN_UPPER || method > LINE_COUNT) &&
	    (method < SET_REMAP_CONST_A || method > SET_REMAP_COMPONENTS))
		return fail(channel, copy_xid(channel), "copy method 0x%x", method);
	channel->copy[method / 4] = value;
	return true;
}

static bool run_words(struct channel *channel, const uint32_t *words, uint32_t count)
{
	for (uint32_t at = 0; at < count;) {
		uint32_t header = words[at++], kind = header >> 29, number = header >> 16 & 0x1FFF;
		uint32_t method = (header & 0xFFF) * 4, subchannel = header >> 13 & 7;

		if (!header)
			continue;
		if ((kind != 1 && kind != 3 && kind != 4 && kind != 5) || header & 1u << 12)
			return fail(channel, XID_PBDMA, "method header 0x%x", header);
		if (kind == 4) {
			if (!take_method(channel, subchannel, method, number))
				return false;
			continue;
		}
		if (!number || number > count - at)
			return fail(channel, XID_PBDMA, "header 0x%x: %u words, %u are left",
				    header, number, count - at);
		for (uint32_t i = 0; i < number; i++) {
			uint32_t step = kind == 1 ? i : kind == 5 && i;

			if (!take_method(channel, subchannel, method + 4 * step, words[at++]))
				return false;
		}
	}
	return true;
}

static bool run_entry(struct channel *channel)
{
	uint64_t entry, address;
	uint32_t count, *words, *get, fault;
	bool fine;

	clock_stall(fault_take("STALL"), &channel->stopped);
	if (!linger(channel))
		return false;
	fault = fault_take("ENGINE");
	if (fault)
		return fail(channel, fault, "as ordered");
	if (!read_bytes(channel, channel->setup.ring + 8 * channel->get, &entry, sizeof(entry)))
		return false;
	address = entry & 0xFFFFFFFFFCull;
	count = entry >> 42 & 0x1FFFFF;
	if (entry != (address | (uint64_t)count << 42) || !count)
		return fail(channel, XID_PBDMA, "ring entry %u is 0x%llx", channel->get,
			    (unsigned long long)entry);
	ledger_entry_add();
	channel->get = (channel->get + 1) % channel->setup.entries;
	get = memory_at(channel, channel->setup.userd, channel->setup.userd_offset + RM_USERD_GET,
			sizeof(*get));
	if (get)
		__atomic_store_n(get, channel->get, __ATOMIC_RELEASE);

	if (!linger(channel))
		return false;
	words = malloc(count * sizeof(*words));
	if (!words)
		return fail(channel, XID_PBDMA, "out of memory");
	fine = read_bytes(channel, address, words, count * sizeof(*words)) &&
	       run_words(channel, words, count);
	free(words);
	return fine;
}

static struct channel *channel_with(const struct client *client, uint32_t token)
{
	for (struct channel *one = channels; one; one = one->next)
		if (one->setup.client == client && engine_token(one) == token)
			return one;
	return NULL;
}

/*
 * What was stored in the client's doorbells. A second store may hide a first one, of another
 * channel: so with more than one channel, a ring is for all of them.
 */
static void look_at_doorbells(const struct client *client)
{
	for (struct device *device = client->devices; device; device = device->next)
		for (struct object *object = device->objects; object; object = object->next) {
			uint32_t *word, token;

			if (object->memory.kind != MEMORY_USERMODE)
				continue;
			word = (uint32_t *)((char *)object->memory.hold + RM_USERMODE_DOORBELL);
			if (!__atomic_load_n(word, __ATOMIC_RELAXED))
				continue;
			token = __atomic_exchange_n(word, 0, __ATOMIC_ACQ_REL);
			if (object->memory.unordered)
				ledger_violation_add("doorbell in BAR0 rung, which may overtake "
						     "what was stored before");
			if (!channel_with(client, token)) {
				ledger_violation_add("doorbell rung with 0x%x, no channel's token",
						     token);
				continue;
			}
			for (struct channel *one = channels; one; one = one->next)
				if (one->setup.client == client)
					one->rung = true;
		}
}

/* Whether there was something to do. */
static bool work(struct channel *channel, unsigned int idle)
{
	const uint32_t *put;
	uint32_t end;

	look_at_doorbells(channel->setup.client);
	if (channel->dead || !channel->scheduled)
		return false;
	if (!channel->rung) {
		if (idle == IDLE_ROUNDS)
			drain(channel);
		return false;
	}
	channel->rung = false;
	put = memory_at(channel, channel->setup.userd, channel->setup.userd_offset + RM_USERD_PUT,
			sizeof(*put));
	if (!put)
		return false;
	end = __atomic_load_n(put, __ATOMIC_ACQUIRE);
	if (end >= channel->setup.entries)
		return fail(channel, XID_PBDMA, "put is %u of %u entries", end,
			    channel->setup.entries);
	while (channel->get != end && lives(channel) && channel->scheduled &&
	       !is_held_up(channel)) {
		if (!run_entry(channel))
			break;
		ledger_pause();
	}
	if (lives(channel) && channel->get != end)
		channel->rung = true; /* to go on when it is scheduled again */
	return true;
}

static void *run(void *argument)
{
	struct channel *channel = argument;
	unsigned int idle = 0;

	ledger_lock();
	while (!channel->stopped) {
		idle = work(channel, idle) ? 0 : idle + 1;
		if (channel->xid)
			notify(channel);
		if (channel->stopped)
			break;
		if (idle < 20)
			ledger_pause();
		else
			rest(idle < 2000 ? 50 : 500);
	}
	ledger_unlock();
	free(channel);
	return NULL;
}

struct channel *engine_start(const struct channel_setup *setup)
{
	struct channel *channel = calloc(1, sizeof(*channel));
	const char *seed = getenv("FAKE_RM_DELAY");
	sigset_t all, before;
	pthread_attr_t attributes;
	pthread_t thread;
	int error;

	if (!channel)
		return NULL;
	channel->setup = *setup;
	channel->id = ++next_id & 0xFFF;
	channel->seed = seed ? strtoul(seed, NULL, 10) + channel->id : 0;

	/* The program's signals are for its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	error = pthread_create(&thread, &attributes, run, channel);
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error) {
		free(channel);
		return NULL;
	}
	channel->next = channels;
	channels = channel;
	return channel;
}

void engine_stop(struct channel *channel)
{
	struct channel **link = &channels;

	if (!ledger_is_dropping())
		look_at_doorbells(channel->setup.client); /* it may just have been rung */
	while (*link != channel)
		link = &(*link)->next;
	*link = channel->next;
	channel->stopped = true;
	if (ledger_is_dropping())
		free(channel); /* its thread stayed in the parent */
}

void engine_set_class(struct channel *channel, uint32_t class)
{
	channel->class = class;
}

void engine_bind(struct channel *channel)
{
	channel->bound = true;
}

bool engine_is_bound(const struct channel *channel)
{
	return channel->bound;
}

void engine_schedule(struct channel *channel, bool on)
{
	channel->scheduled = on;
}

uint32_t engine_token(const struct channel *channel)
{
	return (channel->setup.engine - RM_ENGINE_COPY0 + 1) << 16 | channel->id;
}

bool engine_has_userd(const struct channel *channel, const struct channel_setup *setup)
{
	return channel->setup.userd == setup->userd &&
	       channel->setup.userd_offset / getpagesize() == setup->userd_offset / getpagesize();
}

void engine_forget_memory(struct channel *channel, uint32_t memory)
{
	if (memory == channel->setup.userd)
		ledger_violation_add("memory 0x%x freed, the USERD of channel 0x%x", memory,
				     channel->setup.handle);
	if (memory == channel->setup.error)
		ledger_violation_add("memory 0x%x freed, the notifier of channel 0x%x", memory,
				     channel->setup.handle);
}
