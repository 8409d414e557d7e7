/* SPDX-License-Identifier: MIT */
/* Where a client looks for a broker: as gdrpy/broker/place.py. */
#include "brokerlib/connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SYSTEM_PATH "/run/gdrpy/broker.sock"

/* Whether a path exists; true if this user may not look there. */
static bool is_there(const char *path)
{
	struct stat status;

	return !stat(path, &status) || errno == EACCES;
}

static bool is_folder(const char *path)
{
	struct stat status;

	return path && *path && !stat(path, &status) && S_ISDIR(status.st_mode);
}

/* Whether another user may have made the folder of this user's sockets, and listen there. */
static bool is_foreign(const char *folder)
{
	struct stat status;

	return !lstat(folder, &status) &&
	       (!S_ISDIR(status.st_mode) || status.st_uid != geteuid() || status.st_mode & 077);
}

static int use(const char *found, char *path, size_t room)
{
	if (strlen(found) >= room)
		return broker_fail(
			GDRPY_BROKER_INVALID_REQUEST,
			"connect: a socket's path has at most %zu bytes, and %s has more: "
			"choose a shorter one",
			room - 1, found);
	strcpy(path, found);
	return 0;
}

int broker_find_path(const char *given, char *path, size_t room)
{
	const char *fixed = getenv("GDRPY_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
	const char *temporary = getenv("TMPDIR");
	char folder[4096], own[4200];
	bool in_runtime = is_folder(runtime);

	if (given || (fixed && *fixed))
		return use(given ? given : fixed, path, room);
	if (!geteuid())
		return use(SYSTEM_PATH, path, room);
	if (in_runtime)
		snprintf(folder, sizeof(folder), "%s", runtime);
	else
		snprintf(folder, sizeof(folder), "%s/gdrpy-%u",
			 temporary && *temporary ? temporary : "/tmp", geteuid());
	snprintf(own, sizeof(own), "%s/gdrpy/broker.sock", folder);
	if (in_runtime || !is_foreign(folder))
		return use(is_there(own) || !is_there(SYSTEM_PATH) ? own : SYSTEM_PATH, path, room);
	if (is_there(SYSTEM_PATH))
		return use(SYSTEM_PATH, path, room);
	return broker_fail(GDRPY_BROKER_PERMISSION_DENIED,
			   "looking for a broker: %s is not a folder that only you can enter: "
			   "remove it, or set XDG_RUNTIME_DIR or TMPDIR",
			   folder);
}
