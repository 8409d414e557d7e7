/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that forked children do not keep: a child's copy would keep GPU memory, or what is
 * pinned of it, when its parent has given that back.
 *
 * Threads may open and close them at once. All are closed on exec.
 */
#ifndef GDRPY_FORKS_H
#define GDRPY_FORKS_H

/*
 * Forks wait between the two. Make only system calls there: the forking thread may hold Python's
 * lock, or CUDA's. Do not nest.
 */
void core_forks_hold(void);
void core_forks_let_go(void);

/* Each is the descriptor, or -1 with errno set. A signal does not end an open. */
int core_private_open(const char *path, int flags);
int core_private_duplicate(int fd);

/*
 * Make a descriptor private that other code opened. Hold forks across both, or a fork may come
 * between. Without memory to note the descriptor, both close it and return -1. -1 stays -1.
 * Adopting also sets close-on-exec.
 */
int core_private_note(int fd);
int core_private_adopt(int fd);

/*
 * Descriptors that a system call is to bring, with their numbers where `fds` points: -1 each until
 * the kernel writes them there, which it does before it opens them. A child forked in between
 * closes them too, so that forks need not wait for a call that waits itself.
 */
struct core_arrival {
	const int *fds;
	int count; /* of numbers that there may be */
	struct core_arrival *next;
};

void core_arrival_begin(struct core_arrival *arrival);

/* Makes the descriptors that came private. Without memory to note one, closes it and puts -1. */
void core_arrival_end(struct core_arrival *arrival, int *came, int count);

/* 0, or -1 with errno set. EBADF for a descriptor that is not private, as its parent's in a child.
 */
int core_private_close(int fd);

/*
 * Have children that this thread forks keep their copy of a private descriptor, until this thread
 * takes all of its back: for a program that is about to be started and handed the descriptor.
 */
void core_private_lend(int fd);
void core_private_take_back(void);

#endif
