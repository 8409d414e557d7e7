/* SPDX-License-Identifier: MIT */
/*
 * The C library as the conformance tests drive it, by its public header alone. Each line on stdin
 * is a command with its words, separated by tabs; each line on stdout answers one: "ok" and a JSON
 * object, or "error", the name of the result and the text. clients.py has the commands; client.py
 * answers them by the Python client.
 */
#define _GNU_SOURCE
#include <gdrpy/broker.h>

#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 8192

static struct gdrpy_broker *broker;
static struct gdrpy_region *regions[MOST];
static struct gdrpy_watch *watches[MOST];
static size_t nregions, nwatches;

static void tell_error(int result)
{
	printf("error\t%s\t%s\n", gdrpy_broker_result_name(result), gdrpy_broker_error());
}

static void tell_hex(const void *bytes, size_t nbytes)
{
	for (const unsigned char *next = bytes; nbytes--; next++)
		printf("%02x", *next);
}

static const char *word(bool value)
{
	return value ? "true" : "false";
}

static void tell_region(struct gdrpy_region *region)
{
	regions[nregions] = region;
	printf("ok\t{\"handle\": %zu, \"number\": %llu, \"nbytes\": %llu, \"size\": %llu, "
	       "\"version\": %llu, \"device\": %d, \"sealed\": %s, \"readonly\": %s, "
	       "\"enforced\": %s, \"name\": \"%s\", \"uuid\": \"%s\", \"metadata\": \"",
	       nregions++, (unsigned long long)region->number, (unsigned long long)region->nbytes,
	       (unsigned long long)region->size, (unsigned long long)region->version,
	       region->device, word(region->sealed), word(region->readonly), word(region->enforced),
	       region->name, region->uuid);
	tell_hex(region->metadata, region->metadata_nbytes);
	printf("\"}\n");
}

static int tell_entry(const struct gdrpy_entry *entry, void *separator)
{
	printf("%s{\"number\": %llu, \"name\": \"%s\", \"nbytes\": %llu, \"size\": %llu, "
	       "\"version\": %llu, \"device\": %d, \"uuid\": \"%s\", \"mode\": %u, \"uid\": %u, "
	       "\"gid\": %u, \"sealed\": %s, \"linked\": %s, \"readers\": %llu, \"writers\": %llu, "
	       "\"asleep\": %llu, \"metadata\": \"",
	       *(const char **)separator, (unsigned long long)entry->number, entry->name,
	       (unsigned long long)entry->nbytes, (unsigned long long)entry->size,
	       (unsigned long long)entry->version, entry->device, entry->uuid, entry->mode,
	       entry->uid, entry->gid, word(entry->sealed), word(entry->linked),
	       (unsigned long long)entry->readers, (unsigned long long)entry->writers,
	       (unsigned long long)entry->asleep);
	tell_hex(entry->metadata, entry->metadata_nbytes);
	printf("\"}");
	*(const char **)separator = ", ";
	return 0;
}

/* Entries are printed when the list is complete: it may fail at a later page. */
struct entries {
	struct gdrpy_entry *all;
	size_t count;
};

static int collect(const struct gdrpy_entry *entry, void *context)
{
	struct entries *entries = context;

	entries->all = realloc(entries->all, (entries->count + 1) * sizeof(*entry));
	entries->all[entries->count++] = *entry;
	return 0;
}

static int list(const char *prefix)
{
	struct entries entries = {0};
	const char *separator = "";
	int result = gdrpy_broker_list(broker, prefix, collect, &entries);

	if (!result) {
		printf("ok\t{\"regions\": [");
		for (size_t i = 0; i < entries.count; i++)
			tell_entry(&entries.all[i], &separator);
		printf("]}\n");
	}
	free(entries.all);
	return result;
}

static int stat(const char *name)
{
	struct gdrpy_entry entry;
	const char *separator = "ok\t";
	int result = gdrpy_broker_stat(broker, name, &entry);

	if (!result) {
		tell_entry(&entry, &separator);
		printf("\n");
	}
	return result;
}

/* allocate or create: NAME ("-" for none) NBYTES DEVICE MODE METADATA (in hexadecimal) FLAGS */
static int make(bool draft, char **words)
{
	static unsigned char metadata[MOST];
	struct gdrpy_new_region wanted = {
		.name = strcmp(words[1], "-") ? words[1] : NULL,
		.nbytes = strtoull(words[2], NULL, 0),
		.device = words[3],
		.mode = (unsigned int)strtoul(words[4], NULL, 0),
		.metadata = metadata,
	};
	unsigned int flags = (unsigned int)atoi(words[6]);
	struct gdrpy_region *region;
	int result;

	for (const char *hex = words[5];
	     sscanf(hex, "%2hhx", &metadata[wanted.metadata_nbytes]) == 1; hex += 2)
		wanted.metadata_nbytes++;
	result = draft ? gdrpy_broker_create(broker, &wanted, flags, &region)
		       : gdrpy_broker_allocate(broker, &wanted, flags, &region);
	if (!result)
		tell_region(region);
	return result;
}

static int get(const char *name, unsigned int flags)
{
	struct gdrpy_region *region;
	int result = gdrpy_broker_get(broker, name, flags, &region);

	if (!result)
		tell_region(region);
	return result;
}

static int write_region(struct gdrpy_region *region, const char *text)
{
	void *address;
	int result = gdrpy_region_map(region, &address);

	if (result)
		return result;
	memcpy(address, text, strlen(text));
	return gdrpy_region_unmap(region, address);
}

static int read_region(struct gdrpy_region *region, size_t nbytes)
{
	void *address;
	int result = gdrpy_region_map(region, &address);

	if (result)
		return result;
	printf("ok\t{\"bytes\": \"");
	tell_hex(address, nbytes);
	printf("\"}\n");
	return gdrpy_region_unmap(region, address);
}

static int watch(const char *prefix)
{
	int result = gdrpy_watch_open(broker, prefix, &watches[nwatches]);

	if (!result)
		printf("ok\t{\"handle\": %zu, \"fd\": %d}\n", nwatches,
		       gdrpy_watch_fd(watches[nwatches]));
	nwatches += !result;
	return result;
}

static int next_event(struct gdrpy_watch *watch, int timeout_ms)
{
	static const char *const kinds[] = {
		"other", "allocated", "published", "sealed", "deleted", "ended", "freed", "lost",
	};
	struct gdrpy_event event;
	int result = gdrpy_watch_next(watch, timeout_ms, &event);

	if (!result)
		printf("ok\t{\"kind\": \"%s\", \"name\": \"%s\", \"number\": %llu, "
		       "\"version\": %llu}\n",
		       kinds[event.kind], event.name, (unsigned long long)event.number,
		       (unsigned long long)event.version);
	return result;
}

static void become(unsigned int uid)
{
	if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		perror("become");
}

/* A child that does nothing until it is killed. */
static int linger(void)
{
	pid_t child = fork();

	if (!child)
		pause();
	printf("ok\t{\"pid\": %d}\n", child);
	return 0;
}

/* Returns a result; prints the answer if it is 0 and the answer has fields. */
static int obey(char **words, int count)
{
	const char *command = words[0];
	struct gdrpy_region *region = count > 1 ? regions[atoi(words[1]) % MOST] : NULL;
	int result = 0;

	if (!strcmp(command, "allocate") || !strcmp(command, "create"))
		return make(!strcmp(command, "create"), words);
	if (!strcmp(command, "get"))
		return get(words[1], (unsigned int)atoi(words[2]));
	if (!strcmp(command, "list"))
		return list(words[1]);
	if (!strcmp(command, "stat"))
		return stat(words[1]);
	if (!strcmp(command, "read"))
		return read_region(region, (size_t)atoi(words[2]));
	if (!strcmp(command, "watch"))
		return watch(words[1]);
	if (!strcmp(command, "next"))
		return next_event(watches[atoi(words[1])], atoi(words[2]));

	if (!strcmp(command, "connect"))
		result = gdrpy_broker_connect(strcmp(words[1], "-") ? words[1] : NULL,
					      atoi(words[2]), atoi(words[3]), &broker);
	else if (!strcmp(command, "close"))
		gdrpy_broker_close(broker);
	else if (!strcmp(command, "unwatch"))
		gdrpy_watch_close(watches[atoi(words[1])]);
	else if (!strcmp(command, "write"))
		result = write_region(region, words[2]);
	else if (!strcmp(command, "publish"))
		result = gdrpy_region_publish(region);
	else if (!strcmp(command, "seal"))
		result = gdrpy_region_seal(region);
	else if (!strcmp(command, "check"))
		result = gdrpy_region_check(region);
	else if (!strcmp(command, "delete"))
		result = gdrpy_broker_delete(broker, words[1]);
	else if (!strcmp(command, "release"))
		gdrpy_region_release(region);
	else if (!strcmp(command, "linger"))
		return linger();
	else if (!strcmp(command, "become"))
		become((unsigned int)atoi(words[1]));
	else
		printf("error\tInvalidRequest\tno such command: %s\n", command);
	if (!result)
		printf("ok\t{}\n");
	return result;
}

/* fork COMMAND ...: a child obeys, and ends. */
static void obey_line(char **words, int count)
{
	bool in_child = !strcmp(words[0], "fork");
	pid_t child = in_child ? fork() : 0;
	int result;

	if (child) {
		waitpid(child, NULL, 0);
		return;
	}
	result = obey(words + in_child, count - in_child);
	if (result)
		tell_error(result);
	fflush(stdout);
	if (in_child)
		_exit(0);
}

int main(void)
{
	static char line[4 * MOST];
	char *words[8];
	int count;

	while (fgets(line, sizeof(line), stdin)) {
		char *rest = line;

		line[strcspn(line, "\n")] = '\0';
		for (count = 0; count < 8 && rest; count++)
			words[count] = strsep(&rest, "\t");
		obey_line(words, count);
	}
	return 0;
}
