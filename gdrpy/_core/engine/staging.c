/* SPDX-License-Identifier: MIT */
/*
 * Copies of memory that the engine does not reach, through host memory that it does.
 *
 * Each thread has a lane of a few chunks. While one of them is copied by the CPU, the others are in
 * flight. The pieces of a copy count as one after the other, so that a chunk may have many of them.
 */
#define _GNU_SOURCE 1
#include <sched.h>
#include <string.h>

#include "copy/parallel.h"
#include "engine/private.h"

/*
 * Larger copies go to the polite channel. It takes 3 ms to make: a process is spared that for a few
 * first copies of medium size, each of which takes 20 us at most. Many of them, by several threads,
 * would keep the other channel busy for its whole time slice of 1 ms.
 */
#define SMALL_CHANNEL_UP_TO (64 << 10)
#define MEDIUM_UP_TO (1 << 20)
#define MEDIUM_SPARED 8
/* Larger copies leave a lane to smaller ones. */
#define SMALL_LANE_BELOW (64 << 10)
#define SMALLEST_CHUNK ((size_t)64 << 10)

/* The sizes up to which so many threads are best: waking them takes time. */
#define ONE_THREAD_UP_TO (1 << 20)
#define FOUR_THREADS_UP_TO (8 << 20)
#define EIGHT_THREADS_UP_TO (32 << 20)

/*
 * A thread that waits for registered memory of at least so many bytes sleeps until the engine
 * interrupts, before the last bytes: it wakes within 40 us, in which the bus moves 2 MB.
 */
#define SLEEP_FROM ((size_t)32 << 20)
#define AWAKE_FOR ((size_t)8 << 20)

/*
 * A large transfer is up to 3 % faster if its host memory begins so many bytes after a multiple of
 * 256: the engine gets the bytes before that by a transfer of their own.
 */
#define PLACED_FROM ((size_t)8 << 20)
#define BEST_TO_GPU 0
#define BEST_FROM_GPU 64

struct stage {
	struct core_engine_memory *memory;
	struct core_channel *channel;
	const struct core_piece *pieces;
	size_t count, nbytes; /* pieces, and bytes in them */
	size_t chunk;
	bool to_gpu;
	size_t next; /* chunks taken */
	bool failed;
	struct core_error *error; /* of the first failure */
	/* Of all the host memory, or NULL. */
	struct core_registration *registration;
	char *first;
	size_t extent;
};

/* A place in the pieces. */
struct cursor {
	const struct core_piece *piece;
	size_t done; /* bytes of it */
	size_t at;   /* bytes before it, of all pieces */
};

/* A chunk in flight, which begins at a place. */
struct staging_flight {
	struct cursor begin;
	size_t nbytes;
	bool interrupts;
	uint32_t value;
};

/* Advance to a later place, not beyond the last byte. */
static void advance(struct cursor *cursor, size_t to)
{
	cursor->done += to - cursor->at;
	cursor->at = to;
	while (cursor->done >= cursor->piece->nbytes) {
		cursor->done -= cursor->piece->nbytes;
		cursor->piece++;
	}
}

/* The next bytes that lie in one piece, before a place. */
static size_t in_one_piece(const struct cursor *cursor, size_t end)
{
	size_t left = cursor->piece->nbytes - cursor->done;

	return left < end - cursor->at ? left : end - cursor->at;
}

static int make_lane(struct core_engine *engine, struct core_staging_lane *lane,
		     struct core_error *error)
{
	const size_t nbytes = CORE_LANE_CHUNKS * CORE_CHUNK_NBYTES;
	char *host = lane->memory.host;

	if (!host)
		host = core_link_host(nbytes, error);
	if (!host)
		return -1;
	lane->memory.host = host;
	return core_link_register(engine->link, host, nbytes, false, &lane->memory, error);
}

void core_lane_give_back(struct core_engine *engine, struct core_staging_lane *lane)
{
	pthread_mutex_lock(&engine->lanes_lock);
	lane->taken = false;
	/* Not every thread that waits may take this one. */
	pthread_cond_broadcast(&engine->lane_freed);
	pthread_mutex_unlock(&engine->lanes_lock);
}

static struct core_staging_lane *find_lane(struct core_engine *engine, enum core_lane_use use)
{
	for (unsigned int i = CORE_STAGING_LANES; i-- > use;)
		if (!engine->lanes[i].taken)
			return &engine->lanes[i];
	return NULL;
}

struct core_staging_lane *core_lane_take(struct core_engine *engine, enum core_lane_use use,
					 struct core_error *error)
{
	struct core_staging_lane *lane;

	pthread_mutex_lock(&engine->lanes_lock);
	while (!(lane = find_lane(engine, use)))
		pthread_cond_wait(&engine->lane_freed, &engine->lanes_lock);
	lane->taken = true;
	pthread_mutex_unlock(&engine->lanes_lock);
	/* A lost engine may still read into a lane that was given back. */
	if (!core_link_is_lost(engine->link, error) &&
	    (lane->memory.object || !make_lane(engine, lane, error)))
		return lane;
	core_lane_give_back(engine, lane);
	return NULL;
}

/* Take a chunk; the cursor is the thread's, and advances to its beginning. */
static bool take_chunk(struct stage *stage, struct cursor *cursor, struct staging_flight *flight)
{
	size_t at = __atomic_fetch_add(&stage->next, 1, __ATOMIC_RELAXED) * stage->chunk;

	if (at >= stage->nbytes || __atomic_load_n(&stage->failed, __ATOMIC_RELAXED))
		return false;
	advance(cursor, at);
	flight->begin = *cursor;
	flight->nbytes = stage->nbytes - at;
	if (flight->nbytes > stage->chunk)
		flight->nbytes = stage->chunk;
	return true;
}

/* The bytes of the next transfer. */
static size_t up_to_best_place(uint64_t host, size_t nbytes, bool to_gpu)
{
	size_t before = ((to_gpu ? BEST_TO_GPU : BEST_FROM_GPU) - host) & 255;

	return before && nbytes >= PLACED_FROM ? before : nbytes;
}

/* Submit a chunk, which is at `staging`, or if that is 0, each byte at `direct` + its address. */
static int fly(struct stage *stage, struct staging_flight *flight, uint64_t staging,
	       uint64_t direct, struct core_error *error)
{
	struct core_engine_piece pieces[CORE_ENTRY_PIECES];
	struct cursor cursor = flight->begin;
	const size_t end = cursor.at + flight->nbytes;
	unsigned int count = 0;

	for (;;) {
		struct core_side gpu = {stage->memory, cursor.piece->offset + cursor.done},
				 host = {0};
		size_t nbytes = in_one_piece(&cursor, end);

		host.at = staging ? staging + (cursor.at - flight->begin.at)
				  : direct + (uintptr_t)cursor.piece->data + cursor.done;
		if (!staging)
			nbytes = up_to_best_place(host.at, nbytes, stage->to_gpu);
		nbytes = core_cut_copy(stage->to_gpu ? &gpu : &host, stage->to_gpu ? &host : &gpu,
				       nbytes, 0, &pieces[count++]);
		if (cursor.at + nbytes == end)
			break;
		advance(&cursor, cursor.at + nbytes);
		if (count < CORE_ENTRY_PIECES)
			continue;
		if (core_channel_submit(stage->channel, pieces, count, &flight->value, error))
			return -1;
		count = 0;
	}
	pieces[count - 1].interrupts = flight->interrupts;
	return core_channel_submit(stage->channel, pieces, count, &flight->value, error);
}

/* Copy a chunk between its pieces and staging memory, by the CPU. */
static void pack(const struct stage *stage, const struct staging_flight *flight, char *staging)
{
	struct cursor cursor = flight->begin;
	const size_t end = cursor.at + flight->nbytes;

	for (;;) {
		size_t nbytes = in_one_piece(&cursor, end);
		char *host = (char *)cursor.piece->data + cursor.done;

		if (stage->to_gpu)
			memcpy(staging, host, nbytes);
		else
			memcpy(host, staging, nbytes);
		staging += nbytes;
		if (cursor.at + nbytes == end)
			return;
		advance(&cursor, cursor.at + nbytes);
	}
}

static int write_chunks(struct stage *stage, struct core_staging_lane *lane,
			struct core_error *error)
{
	struct staging_flight flights[CORE_LANE_CHUNKS] = {0}, *flight;
	struct cursor cursor = {.piece = stage->pieces};
	uint32_t last = 0;
	unsigned int turn;

	for (turn = 0; take_chunk(stage, &cursor, flight = &flights[turn % CORE_LANE_CHUNKS]);
	     turn++) {
		size_t at = turn % CORE_LANE_CHUNKS * CORE_CHUNK_NBYTES;

		if (turn >= CORE_LANE_CHUNKS &&
		    core_channel_wait(stage->channel, flight->value, error))
			return -1;
		pack(stage, flight, lane->memory.host + at);
		if (fly(stage, flight, lane->memory.va + at, 0, error))
			return -1;
		last = flight->value;
	}
	return turn ? core_channel_wait(stage->channel, last, error) : 0;
}

static int read_chunks(struct stage *stage, struct core_staging_lane *lane,
		       struct core_error *error)
{
	struct staging_flight flights[CORE_LANE_CHUNKS] = {0}, *flight;
	struct cursor cursor = {.piece = stage->pieces};
	unsigned int begun = 0, done = 0;
	bool more = true;

	do {
		while (more && begun - done < CORE_LANE_CHUNKS) {
			size_t at = begun % CORE_LANE_CHUNKS * CORE_CHUNK_NBYTES;

			flight = &flights[begun % CORE_LANE_CHUNKS];
			more = take_chunk(stage, &cursor, flight);
			if (more && fly(stage, flight, lane->memory.va + at, 0, error))
				return -1;
			begun += more;
		}
		if (begun == done)
			break;
		flight = &flights[done % CORE_LANE_CHUNKS];
		if (core_channel_wait(stage->channel, flight->value, error))
			return -1;
		pack(stage, flight,
		     lane->memory.host + done % CORE_LANE_CHUNKS * CORE_CHUNK_NBYTES);
		done++;
	} while (true);
	return 0;
}

static void run_part(void *context, unsigned int part)
{
	struct stage *stage = context;
	struct core_error error;
	struct core_staging_lane *lane;
	int ret = -1;

	(void)part;
	lane = core_lane_take(stage->memory->engine,
			      stage->nbytes < SMALL_LANE_BELOW ? CORE_LANE_SMALL : CORE_LANE_BULK,
			      &error);
	if (lane) {
		ret = stage->to_gpu ? write_chunks(stage, lane, &error)
				    : read_chunks(stage, lane, &error);
		core_lane_give_back(stage->memory->engine, lane);
	}
	if (ret && !__atomic_exchange_n(&stage->failed, true, __ATOMIC_RELAXED))
		*stage->error = error;
}

static unsigned int threads_for(size_t nbytes)
{
	unsigned int threads = CORE_THREADS_MAX, cpus;
	cpu_set_t set;

	if (nbytes <= ONE_THREAD_UP_TO)
		return 1;
	if (nbytes <= EIGHT_THREADS_UP_TO)
		threads = nbytes <= FOUR_THREADS_UP_TO ? 4 : 8;
	CPU_ZERO(&set);
	cpus = sched_getaffinity(0, sizeof(set), &set) ? threads : (unsigned int)CPU_COUNT(&set);
	return cpus < threads ? cpus : threads;
}

struct core_channel *core_stage_channel(struct core_engine *engine, size_t nbytes,
					struct core_error *error)
{
	struct core_link *link = engine->link;
	bool small = nbytes <= SMALL_CHANNEL_UP_TO;

	if (!small && nbytes <= MEDIUM_UP_TO &&
	    !__atomic_load_n(&link->ready[CORE_CHANNEL_BULK], __ATOMIC_RELAXED))
		small = __atomic_fetch_add(&link->spared, 1, __ATOMIC_RELAXED) < MEDIUM_SPARED;
	return core_link_channel(link, small ? CORE_CHANNEL_SMALL : CORE_CHANNEL_BULK, error);
}

/* A read's CPU begins when its first chunk has arrived, so its chunks are smaller. */
size_t core_stage_chunk(size_t nbytes, unsigned int threads, bool to_gpu)
{
	const unsigned int chunks = threads * (to_gpu ? 2 : 4);
	size_t chunk = (nbytes / chunks + CORE_PAGE - 1) & ~(CORE_PAGE - 1);

	if (chunk < SMALLEST_CHUNK)
		return SMALLEST_CHUNK;
	return chunk < CORE_CHUNK_NBYTES ? chunk : CORE_CHUNK_NBYTES;
}

/* Copy registered memory, the first byte of which is at an address of the engine. */
static int run_directly(struct stage *stage, uint64_t va, struct core_error *error)
{
	const uint64_t direct = va - (uintptr_t)stage->first;
	struct staging_flight rest = {.begin.piece = stage->pieces, .nbytes = stage->nbytes}, head;
	const bool sleeps = stage->nbytes >= SLEEP_FROM;

	advance(&rest.begin, 0);
	if (sleeps) {
		head = rest;
		head.nbytes -= AWAKE_FOR;
		head.interrupts = true;
		if (fly(stage, &head, 0, direct, error))
			return -1;
		advance(&rest.begin, head.nbytes);
		rest.nbytes = AWAKE_FOR;
	}
	return fly(stage, &rest, 0, direct, error) ||
			       (sleeps && core_channel_sleep(stage->channel, head.value, error)) ||
			       core_channel_wait(stage->channel, rest.value, error)
		       ? -1
		       : 0;
}

static int run(struct core_engine *engine, void *job, struct core_error *error)
{
	struct stage *stage = job;
	unsigned int threads = threads_for(stage->nbytes);
	uint64_t va;

	stage->channel = core_stage_channel(
		engine, stage->nbytes + (stage->count - 1) * CORE_PIECE_COST, error);
	if (!stage->channel)
		return -1;
	if (stage->registration &&
	    core_registration_reach(stage->registration, engine, stage->first, &va))
		return run_directly(stage, va, error);
	stage->chunk = core_stage_chunk(stage->nbytes, threads, stage->to_gpu);
	stage->next = 0;
	stage->failed = false;
	stage->error = error;
	core_parallel(threads, run_part, stage);
	return stage->failed ? -1 : 0;
}

/* Sum up the pieces. */
static void measure(struct stage *stage)
{
	uintptr_t first = UINTPTR_MAX, end = 0;

	for (size_t i = 0; i < stage->count; i++) {
		const struct core_piece *piece = &stage->pieces[i];
		const uintptr_t host = (uintptr_t)piece->data;

		if (!piece->nbytes)
			continue;
		first = host < first ? host : first;
		end = host + piece->nbytes > end ? host + piece->nbytes : end;
		stage->nbytes += piece->nbytes;
	}
	stage->first = (char *)first;
	stage->extent = end - first;
}

int core_engine_transfer_many(struct core_engine_memory *memory, const struct core_piece *pieces,
			      size_t count, bool to_gpu, struct core_error *error)
{
	struct stage stage = {.memory = memory, .pieces = pieces, .count = count, .to_gpu = to_gpu};
	int ret;

	measure(&stage);
	if (!stage.nbytes)
		return 0;
	stage.registration = core_registration_hold(stage.first, stage.extent, to_gpu);
	ret = core_engine_run(memory->engine, run, &stage, error);
	if (stage.registration)
		core_registration_let_go(stage.registration);
	return ret;
}

int core_engine_transfer(struct core_engine_memory *memory, uint64_t offset, char *host,
			 size_t nbytes, bool to_gpu, struct core_error *error)
{
	struct core_piece piece = {offset, host, nbytes};

	return core_engine_transfer_many(memory, &piece, 1, to_gpu, error);
}
