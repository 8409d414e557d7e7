/* SPDX-License-Identifier: MIT */
/*
 * The files of the driver: which paths there are, and what an open descriptor stands for.
 *
 * An open node is an empty memfd whose name says which node it is, so that dup, SCM_RIGHTS, exec
 * and close need no help: any process that holds the descriptor can tell which node it is.
 * Directories (/proc/driver/nvidia/gpus) cannot be listed; the files in them can be opened.
 */
#ifndef FAKERM_NODES_H
#define FAKERM_NODES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

enum node_kind {
	NODE_CONTROL,
	NODE_DEVICE,
	NODE_CAPABILITY,
	NODE_TEXT,
	NODE_ABSENT, /* a path that the driver would own, with nothing there */
};

struct node {
	enum node_kind kind;
	uint32_t minor; /* of a NODE_DEVICE or a NODE_CAPABILITY */
	char text[512]; /* of a NODE_TEXT */
};

/* One open file description: descriptors that are dups of one another have the same. */
struct file_id {
	dev_t device;
	ino_t inode;
};

struct open_node {
	struct node node;
	struct file_id file;
};

/* Whether the driver owns this path; if so, what is there. */
bool node_of_path(const char *path, struct node *node);

/* Whether the descriptor is an open node; if so, which. */
bool node_of_fd(int fd, struct open_node *open_node);

/* A descriptor, or a negative errno. */
int node_open(const struct node *node, int flags);

/* What stat says of a node that is there. */
void node_stat(const struct node *node, struct stat *st);

bool file_is(const struct file_id *a, const struct file_id *b);

/* The number of descriptors of this process that are open nodes, or of that one file. */
int files_open(void);
int files_open_of(const struct file_id *file);

#endif
