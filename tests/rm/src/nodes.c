/* SPDX-License-Identifier: MIT */
#include "nodes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "libc.h"
#include "machine.h"

#define MEMFD_PREFIX "fakerm-"
#define CHARACTER_MAJOR 195
#define CONTROL_MINOR 255

static const char *skip_prefix(const char *text, const char *prefix)
{
	size_t length = strlen(prefix);

	return strncmp(text, prefix, length) ? NULL : text + length;
}

/* "ctl", or a minor number as the kernel writes it: no sign, no leading zero. */
static bool parse_node_name(const char *name, struct node *node)
{
	char canonical[16];

	node->kind = NODE_CONTROL;
	node->minor = 0;
	if (!strcmp(name, "ctl"))
		return true;

	node->kind = NODE_DEVICE;
	node->minor = strtoul(name, NULL, 10);
	snprintf(canonical, sizeof(canonical), "%u", node->minor);
	return !strcmp(name, canonical) && node->minor < machine()->devices;
}

/* The number of a node in /dev/nvidia-caps: there is one for each GPU that is split. */
static bool parse_capability_name(const char *name, struct node *node)
{
	char canonical[16];

	node->kind = NODE_CAPABILITY;
	for (uint32_t minor = 0; minor < machine()->devices; minor++) {
		node->minor = machine_capability(minor);
		snprintf(canonical, sizeof(canonical), "%u", node->minor);
		if (!strcmp(name, canonical))
			return machine()->mig_instance != NO_MIG_INSTANCE;
	}
	return false;
}

static bool parse_proc_name(const char *name, struct node *node)
{
	char wanted[64];

	node->kind = NODE_TEXT;
	if (!strcmp(name, "version")) {
		snprintf(node->text, sizeof(node->text),
			 "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release "
			 "Build  "
			 "(simulated)\nGCC version:  gcc version 12.2.0\n",
			 machine()->version);
		return true;
	}
	for (uint32_t instance = 0; instance < machine()->devices; instance++) {
		snprintf(wanted, sizeof(wanted), "gpus/0000:%02x:00.0/information",
			 machine_pci_bus(instance));
		if (strcmp(name, wanted))
			continue;
		snprintf(node->text, sizeof(node->text),
			 "Model: \t\t simulated GPU\nBus Type: \t PCIe\n"
			 "Bus Location: \t 0000:%02x:00.0\nDevice Minor: \t %u\n",
			 machine_pci_bus(instance), machine_mirror(instance));
		return true;
	}
	if (machine()->mig_instance == NO_MIG_INSTANCE)
		return false;
	for (uint32_t minor = 0; minor < machine()->devices; minor++) {
		snprintf(wanted, sizeof(wanted), "capabilities/gpu%u/mig/gi%u/access", minor,
			 machine()->mig_instance);
		if (strcmp(name, wanted))
			continue;
		snprintf(node->text, sizeof(node->text),
			 "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
			 machine_capability(minor));
		return true;
	}
	return false;
}

bool node_of_path(const char *path, struct node *node)
{
	const char *name;
	bool known;

	if (!path || path[0] != '/')
		return false;
	if ((name = skip_prefix(path, "/dev/nvidia-caps/nvidia-cap")))
		known = parse_capability_name(name, node);
	else if ((name = skip_prefix(path, "/dev/nvidia")))
		known = parse_node_name(name, node);
	else if ((name = skip_prefix(path, "/proc/driver/nvidia/")))
		known = parse_proc_name(name, node);
	else
		return false;

	if (!known || !machine()->has_driver)
		node->kind = NODE_ABSENT;
	return true;
}

/* The name of a memfd, without the kernel's decoration; false for any other file. */
static bool memfd_name(int fd, char *name, size_t size, struct file_id *file)
{
	static const char suffix[] = " (deleted)";
	char link[32], target[64];
	const char *start;
	struct stat st;
	ssize_t length;

	if (libc()->fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_nlink)
		return false;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, target, sizeof(target) - 1);
	if (length < (ssize_t)sizeof(suffix))
		return false;
	target[length] = '\0';
	start = skip_prefix(target, "/memfd:");
	if (!start || strcmp(target + length - strlen(suffix), suffix))
		return false;
	snprintf(name, size, "%.*s", (int)(target + length - strlen(suffix) - start), start);
	*file = (struct file_id){.device = st.st_dev, .inode = st.st_ino};
	return true;
}

bool node_of_fd(int fd, struct open_node *open_node)
{
	int saved_errno = errno;
	const char *node_name = NULL;
	char name[64];

	if (memfd_name(fd, name, sizeof(name), &open_node->file))
		node_name = skip_prefix(name, MEMFD_PREFIX);
	errno = saved_errno;
	if (!node_name)
		return false;
	return skip_prefix(node_name, "cap")
		       ? parse_capability_name(node_name + strlen("cap"), &open_node->node)
		       : parse_node_name(node_name, &open_node->node);
}

static int write_text(int fd, const char *text)
{
	size_t length = strlen(text);

	return write(fd, text, length) == (ssize_t)length ? 0 : -EIO;
}

/* The access mode that the caller asked for belongs to an open, not to a memfd: open it again. */
static int reopen(int fd, int flags)
{
	char link[32];
	int again;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	again = libc()->openat(AT_FDCWD, link, flags & (O_ACCMODE | O_CLOEXEC | O_NONBLOCK));
	return again < 0 ? -errno : again;
}

int node_open(const struct node *node, int flags)
{
	char name[32];
	int fd, ret;

	if (node->kind == NODE_ABSENT)
		return -ENOENT;
	if (flags & O_DIRECTORY)
		return -ENOTDIR;
	if (node->kind == NODE_TEXT && (flags & O_ACCMODE) != O_RDONLY)
		return -EACCES;

	if (node->kind == NODE_DEVICE)
		snprintf(name, sizeof(name), MEMFD_PREFIX "%u", node->minor);
	else if (node->kind == NODE_CAPABILITY)
		snprintf(name, sizeof(name), MEMFD_PREFIX "cap%u", node->minor);
	else
		snprintf(name, sizeof(name), MEMFD_PREFIX "%s",
			 node->kind == NODE_CONTROL ? "ctl" : "text");

	fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = node->kind == NODE_TEXT ? write_text(fd, node->text) : 0;
	if (!ret)
		ret = reopen(fd, flags);
	libc()->close(fd);
	return ret;
}

void node_stat(const struct node *node, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_nlink = 1;
	st->st_blksize = 4096;
	if (node->kind == NODE_TEXT || node->kind == NODE_CAPABILITY) {
		st->st_mode = node->kind == NODE_TEXT ? S_IFREG | 0444 : S_IFCHR | 0444;
		return;
	}
	st->st_mode = S_IFCHR | 0666;
	st->st_rdev =
		makedev(CHARACTER_MAJOR, node->kind == NODE_CONTROL ? CONTROL_MINOR : node->minor);
}

bool file_is(const struct file_id *a, const struct file_id *b)
{
	return a->device == b->device && a->inode == b->inode;
}

static int count_files(const struct file_id *file)
{
	DIR *directory = opendir("/proc/self/fd");
	struct open_node open_node;
	struct dirent *entry;
	int count = 0;

	if (!directory)
		return 0;
	while ((entry = readdir(directory)))
		if (node_of_fd(atoi(entry->d_name), &open_node) &&
		    (!file || file_is(&open_node.file, file)))
			count++;
	closedir(directory);
	return count;
}

int files_open(void)
{
	return count_files(NULL);
}

int files_open_of(const struct file_id *file)
{
	return count_files(file);
}
