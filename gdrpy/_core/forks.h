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
void gdr_forks_hold(void);
void gdr_forks_let_go(void);

/* Each is the descriptor, or -1 with errno set. A signal does not end an open. */
int gdr_private_open(const char *path, int flags);
int gdr_private_duplicate(int fd);

/*
 * Make a descriptor private that other code opened. Hold forks across both, or a fork may come
 * between. Without memory to note the descriptor, both close it and return -1. -1 stays -1.
 * Adopting also sets close-on-exec.
 */
int gdr_private_note(int fd);
int gdr_private_adopt(int fd);

/* 0, or -1 with errno set. EBADF for a descriptor that is not private, as its parent's in a child.
 */
int gdr_private_close(int fd);

/*
 * Have children that this thread forks keep their copy of a private descriptor, until this thread
 * takes all of its back: for a program that is about to be started and handed the descriptor.
 */
void gdr_private_lend(int fd);
void gdr_private_take_back(void);

#endif
