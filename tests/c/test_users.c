/* SPDX-License-Identifier: MIT */
/* Threads that use a thing which one of them takes away. */
#include "check.h"
#include "common/users.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS 4
#define ROUNDS 100

static void views_keep_it_open(void)
{
	core_users users = 0;

	CHECK_EQ(core_users_hold(&users, CORE_ONE_VIEW), true);
	CHECK_EQ(core_users_hold(&users, CORE_ONE_VIEW), true);
	CHECK_EQ(core_users_close(&users), 2);
	CHECK_EQ(core_users_hold(&users, CORE_ONE_CALL), true);
	CHECK_EQ(core_users_views(&users), 2);
	core_users_let_go(&users, CORE_ONE_CALL);
	core_users_let_go(&users, CORE_ONE_VIEW);
	CHECK_EQ(core_users_close(&users), 1);
	core_users_let_go(&users, CORE_ONE_VIEW);
	CHECK_EQ(core_users_close(&users), 0);
}

static void nothing_holds_what_is_closed(void)
{
	core_users users = 0;

	CHECK_EQ(core_users_close(&users), 0);
	CHECK_EQ(core_users_hold(&users, CORE_ONE_CALL), false);
	CHECK_EQ(core_users_hold(&users, CORE_ONE_VIEW), false);
	CHECK_EQ(core_users_views(&users), 0);
	CHECK_EQ(core_users_close(&users), -1);
	CHECK_EQ(users, CORE_CLOSED);
}

static void users_of_what_is_retired_are_its_last(void)
{
	core_users users = 0;

	CHECK_EQ(core_users_hold(&users, CORE_ONE_VIEW), true);
	CHECK_EQ(core_users_hold(&users, CORE_ONE_CALL), true);
	CHECK_EQ(core_users_retire(&users), true);
	CHECK_EQ(core_users_hold(&users, CORE_ONE_VIEW), false);
	CHECK_EQ(core_users_views(&users), 1);
	CHECK_EQ(core_users_close(&users), -1);
	core_users_let_go(&users, CORE_ONE_VIEW);
	CHECK_EQ(core_users_gone(&users), false);
	core_users_let_go(&users, CORE_ONE_CALL);
	CHECK_EQ(core_users_gone(&users), true);
	CHECK_EQ(core_users_retire(&users), false);
}

static void *close_it(void *users)
{
	return (void *)(intptr_t)core_users_close(users);
}

static void call_that_stays_is_not_waited_for(void)
{
	core_users users = 0;
	pthread_t thread;
	void *views;

	CHECK_EQ(core_users_hold(&users, CORE_ONE_CALL), true);
	pthread_create(&thread, NULL, close_it, &users);
	while (!(__atomic_load_n(&users, __ATOMIC_RELAXED) & CORE_CLOSING))
		sched_yield();
	core_users_stay(&users);
	pthread_join(thread, &views);
	CHECK_EQ((intptr_t)views, 1);
	CHECK_EQ(users, CORE_ONE_CALL + CORE_ONE_VIEW);
}

struct thing {
	core_users users;
	int *memory;
	int uses[THREADS]; /* by each thread */
};

struct user {
	pthread_t thread;
	struct thing *thing;
	int number;
};

/* Neither a sanitizer nor the value finds memory that was taken away. */
static void *use_until_closed(void *argument)
{
	struct user *user = argument;
	struct thing *thing = user->thing;

	while (core_users_hold(&thing->users, CORE_ONE_CALL)) {
		CHECK_EQ(thing->memory[user->number], 7);
		core_users_let_go(&thing->users, CORE_ONE_CALL);
		__atomic_fetch_add(&thing->uses[user->number], 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void nobody_uses_what_was_taken_away(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		struct thing thing = {.memory = malloc(THREADS * sizeof(int))};
		struct user users[THREADS];

		for (int i = 0; i < THREADS; i++)
			thing.memory[i] = 7;
		for (int i = 0; i < THREADS; i++) {
			users[i] = (struct user){.thing = &thing, .number = i};
			pthread_create(&users[i].thread, NULL, use_until_closed, &users[i]);
		}
		while (!__atomic_load_n(&thing.uses[round % THREADS], __ATOMIC_RELAXED))
			sched_yield();
		CHECK_EQ(core_users_close(&thing.users), 0);
		for (int i = 0; i < THREADS; i++)
			thing.memory[i] = 0;
		free(thing.memory);
		for (int i = 0; i < THREADS; i++)
			pthread_join(users[i].thread, NULL);
		CHECK_EQ(thing.users, CORE_CLOSED);
	}
}

static void *close_once(void *argument)
{
	struct thing *thing = argument;

	if (!core_users_close(&thing->users))
		__atomic_fetch_add(&thing->uses[0], 1, __ATOMIC_RELAXED);
	return NULL;
}

static void one_of_many_threads_closes_it(void)
{
	for (int round = 0; round < ROUNDS; round++) {
		struct thing thing = {0};
		pthread_t threads[THREADS];

		for (int i = 0; i < THREADS; i++)
			pthread_create(&threads[i], NULL, close_once, &thing);
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		CHECK_EQ(thing.uses[0], 1);
	}
}

CHECK_MAIN(TEST(views_keep_it_open), TEST(nothing_holds_what_is_closed),
	   TEST(users_of_what_is_retired_are_its_last), TEST(call_that_stays_is_not_waited_for),
	   TEST(nobody_uses_what_was_taken_away), TEST(one_of_many_threads_closes_it))
