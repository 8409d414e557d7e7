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
 * Forks wait meanwhile. For system calls alone: who forks may hold Python's lock, and CUDA's. Not
 * to be nested.
 */
void gdr_forks_hold(void);
void gdr_forks_let_go(void);

/* Each is the descriptor, or -1 with errno set. A signal does not end an open. */
int gdr_private_open(const char *path, int flags);
int gdr_private_duplicate(int fd);

/*
 * What somebody else opened is private from here on; no fork comes between where forks are held.
 * Where there is no memory to note it, it is closed. -1 stays -1. Adopting it closes it on exec
 * too.
 */
int gdr_private_note(int fd);
int gdr_private_adopt(int fd);

/* 0, or -1 with errno set. EBADF for a descriptor that is not private, as its parent's in a child.
 */
int gdr_private_close(int fd);

#endif
