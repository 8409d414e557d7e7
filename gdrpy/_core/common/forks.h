/* SPDX-License-Identifier: MIT */
/*
 * Private descriptors, which forked children do not keep: a child's copy would keep GPU memory
 * allocated or pinned after the parent has released it.
 *
 * Threads may open and close them concurrently. All are closed on exec.
 */
#ifndef GDRPY_FORKS_H
#define GDRPY_FORKS_H

/*
 * Forks wait between the two calls. Make only system calls there: the forking thread may hold
 * Python's lock or CUDA's. Do not nest.
 */
void core_forks_hold(void);
void core_forks_let_go(void);

/*
 * The same for calls to CUDA that open a descriptor, until it is private. Begin only when CUDA is
 * initialized: forks then wait before they take CUDA's locks.
 */
void core_export_begin(void);
void core_export_end(void);

/* Return the descriptor, or -1 with errno set. Opening is retried after a signal. */
int core_private_open(const char *path, int flags);
int core_private_duplicate(int fd);

/*
 * Make a descriptor private that other code opened. Hold forks from before the open until after
 * this call. If memory runs out, both close the descriptor and return -1. Both pass -1 through.
 * core_private_adopt() also sets close-on-exec.
 */
int core_private_note(int fd);
int core_private_adopt(int fd);

/*
 * Descriptors that a system call will deliver. `fds` holds -1 until the kernel writes their numbers
 * there, which it does before it opens them. A child forked during the call closes them, so that
 * forks need not wait for a blocking call.
 */
struct core_arrival {
	const int *fds;
	int count; /* capacity of `fds` */
	struct core_arrival *next;
};

void core_arrival_begin(struct core_arrival *arrival);

/* Make the delivered descriptors private. If memory runs out, close one and put -1 in its place. */
void core_arrival_end(struct core_arrival *arrival, int *came, int count);

/* 0, or -1 with errno set: EBADF if the descriptor is not private, such as a parent's in a child.
 */
int core_private_close(int fd);

/* Let forked children keep a descriptor from now on. It is private no more: close() ends it. */
void core_private_hand_over(int fd);

/*
 * Let children of this thread keep a private descriptor, until core_private_take_back() ends this
 * for all descriptors that this thread has lent. Used to start a program that gets the descriptor.
 */
void core_private_lend(int fd);
void core_private_take_back(void);

#endif
