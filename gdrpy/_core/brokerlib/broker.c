/* SPDX-License-Identifier: MIT */
/* The calls of gdrpy/broker.h on a broker: their requests, and what the replies say. */
#include "brokerlib/connection.h"

#include "common/forks.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE_TEXT_LIMIT 40

static __thread char error_text[1024];

int broker_fail(int result, const char *format, ...)
{
	size_t last = sizeof(error_text) - 2;
	va_list args;
	int nbytes;

	va_start(args, format);
	nbytes = vsnprintf(error_text, sizeof(error_text), format, args);
	va_end(args);
	if (nbytes >= (int)sizeof(error_text)) { /* end before a character that was cut */
		while ((error_text[last] & 0xc0) == 0x80)
			last--;
		error_text[last] = '\0';
	}
	/* A path may be no text. */
	for (char *rest = error_text; *(rest += broker_text_length(rest, strlen(rest)));)
		*rest = '?';
	return result;
}

const char *broker_quote(char quoted[96], const char *argument)
{
	size_t nbytes = argument ? strlen(argument) : 0;
	size_t shown = argument ? broker_text_length(argument, nbytes < 80 ? nbytes : 80) : 0;

	if (argument)
		snprintf(quoted, 96, "'%.*s'%s", (int)shown, argument, shown < nbytes ? "..." : "");
	else
		strcpy(quoted, "NULL");
	return quoted;
}

const char *gdrpy_broker_error(void)
{
	return error_text;
}

void gdrpy_broker_version(int *major, int *minor)
{
	*major = GDRPY_BROKER_VERSION_MAJOR;
	*minor = GDRPY_BROKER_VERSION_MINOR;
}

int gdrpy_broker_connect(const char *path, int timeout_ms, int reconnect_ms,
			 struct gdrpy_broker **made)
{
	char found[sizeof((*made)->path)], reason[64] = "it is not a socket";
	struct gdrpy_broker *broker;
	int result;

	if (timeout_ms <= 0 || reconnect_ms < 0)
		return broker_fail(GDRPY_BROKER_INVALID_REQUEST,
				   "connect: timeout_ms must be from 1 on and reconnect_ms from 0 "
				   "on, not %d and %d",
				   timeout_ms, reconnect_ms);
	result = broker_find_path(path, found, sizeof(found));
	if (!result)
		result = broker_new(found, timeout_ms, reconnect_ms, &broker);
	if (result)
		return result;
	result = broker_open(broker);
	errno = broker->lost_errno;
	if (errno != ENOTSOCK)
		snprintf(reason, sizeof(reason), "%m");
	if (result == BROKER_SILENT)
		result = broker_fail(GDRPY_BROKER_TIMEOUT,
				     "connect: the broker at %s did not answer within %d ms: give "
				     "it more by timeout_ms",
				     found, timeout_ms);
	else if (broker_is_cut_off(result))
		result = broker_fail(GDRPY_BROKER_UNAVAILABLE,
				     "connect: no broker answers at %s (%s): start one by `gdrpy "
				     "serve`, or say by the path or GDRPY_SOCKET where it is",
				     found, reason);
	if (result)
		broker_close(broker);
	else
		*made = broker;
	return result;
}

void gdrpy_broker_close(struct gdrpy_broker *broker)
{
	broker_close(broker);
}

/* One request, and its reply by a table, while no other call has the connection. */
static int call(struct gdrpy_broker *broker, struct broker_request *request,
		const struct broker_field *fields, void *reply)
{
	int result = broker_enter(broker, request->call);

	if (result)
		return result;
	result = broker_ask(broker, request, fields, reply, NULL);
	broker_leave(broker);
	return result;
}

/* Grants */

struct grant {
	struct gdrpy_region region;
	struct broker_reader metadata;
};

#define GRANT(member, type, optional)                                                              \
	BROKER_FIELD(struct grant, region.member, #member, type, optional)

static const struct broker_field grant_fields[] = {
	BROKER_FIELD(struct grant, region.number, "region", BROKER_TO_NUMBER, false),
	GRANT(nbytes, BROKER_TO_SIZE, false),
	GRANT(size, BROKER_TO_SIZE, false),
	GRANT(version, BROKER_TO_NUMBER, false),
	GRANT(device, BROKER_TO_DEVICE, false),
	GRANT(sealed, BROKER_TO_FLAG, false),
	GRANT(readonly, BROKER_TO_FLAG, false),
	GRANT(enforced, BROKER_TO_FLAG, false),
	GRANT(created, BROKER_TO_FLAG, true),
	GRANT(name, BROKER_TO_TEXT, false),
	BROKER_FIELD(struct grant, metadata, "metadata", BROKER_TO_BYTES, false),
	{0},
};

struct status {
	struct broker_reader uuids;
};

static const struct broker_field status_fields[] = {
	BROKER_FIELD(struct status, uuids, "uuids", BROKER_TO_MAP, false),
	{0},
};

/* Learn the UUID of a GPU: the status has it, and a grant does not. */
static int find_uuid(struct gdrpy_broker *broker, int device, const char *call)
{
	char ordinal[16];
	const struct broker_field fields[] = {
		{ordinal, BROKER_TO_TEXT, true, 0, sizeof(broker->uuid)},
		{0},
	};
	struct broker_request request;
	struct status status;
	int result;

	if (device == broker->uuid_device)
		return 0;
	snprintf(ordinal, sizeof(ordinal), "%d", device);
	broker_request_begin(&request, "status");
	request.call = call; /* whose errors name it */
	result = broker_ask(broker, &request, status_fields, &status, NULL);
	if (result)
		return result;
	*broker->uuid = '\0';
	if (broker_decode(&status.uuids, fields, broker->uuid))
		return broker_malformed(broker, call, "uuids");
	broker->uuid_device = device;
	return 0;
}

/* The lease of a grant; NULL without memory. The broker then takes it back at the next resume. */
static struct broker_lease *hold(struct gdrpy_broker *broker, const struct grant *grant, bool gpu)
{
	size_t nbytes = (size_t)(grant->metadata.end - grant->metadata.next);
	struct broker_lease *lease = malloc(sizeof(*lease) + nbytes);

	if (!lease || !broker_hold(broker, lease)) {
		free(lease);
		broker_break_off(broker);
		return NULL;
	}
	lease->region = grant->region;
	lease->writable = !grant->region.readonly;
	lease->gpu = gpu;
	memcpy(lease->metadata, grant->metadata.next, nbytes);
	lease->region.metadata = lease->metadata;
	lease->region.metadata_nbytes = nbytes;
	return lease;
}

static int grant_locked(struct gdrpy_broker *broker, struct broker_request *request, bool gpu,
			struct gdrpy_region **region)
{
	struct grant grant = {0};
	struct broker_lease *lease;
	int result;

	result = broker_ask(broker, request, grant_fields, &grant, &grant.region.fd);
	if (result)
		return result;
	if (grant.region.nbytes > grant.region.size) {
		core_private_close(grant.region.fd);
		return broker_malformed(broker, request->call, "size");
	}
	lease = hold(broker, &grant, gpu);
	if (!lease)
		result = broker_fail(GDRPY_BROKER_OUT_OF_MEMORY, "%s: no memory", request->call);
	else if (grant.region.fd < 0)
		result = broker_fail(
			GDRPY_BROKER_OUT_OF_MEMORY,
			"%s: the memory's descriptor did not arrive, because this "
			"process can open no more files; close some, or raise the limit "
			"(ulimit -n)",
			request->call);
	else if (grant.region.device >= 0)
		result = find_uuid(broker, grant.region.device, request->call);
	if (!result) {
		if (grant.region.device >= 0)
			strcpy(lease->region.uuid, broker->uuid);
		core_private_hand_over(lease->region.fd);
		*region = &lease->region;
		return 0;
	}
	core_private_close(grant.region.fd);
	if (lease)
		broker_give_back(broker, lease);
	free(lease);
	return result;
}

static int ask_for_grant(struct gdrpy_broker *broker, struct broker_request *request, bool gpu,
			 struct gdrpy_region **region)
{
	int result;

	broker_write_key(&request->writer, "gpu");
	broker_write_flag(&request->writer, gpu);
	result = broker_enter(broker, request->call);
	if (result)
		return result;
	result = grant_locked(broker, request, gpu, region);
	broker_leave(broker);
	return result;
}

static void check_flags(struct broker_request *request, unsigned int flags, unsigned int known)
{
	if (flags & ~known)
		request->result = broker_fail(GDRPY_BROKER_INVALID_REQUEST,
					      "%s: flags must be among %#x, not %#x", request->call,
					      known, flags);
}

static void put_device(struct broker_request *request, const char *device)
{
	size_t nbytes = device ? strlen(device) : 0;
	bool is_ordinal = nbytes && strspn(device, "0123456789") == nbytes;
	long ordinal = is_ordinal ? strtol(device, NULL, 10) : -1;
	char quoted[96];

	broker_write_key(&request->writer, "device");
	if (!nbytes || nbytes > DEVICE_TEXT_LIMIT || ordinal >= BROKER_DEVICE_LIMIT ||
	    !broker_is_text(device, nbytes))
		request->result = broker_fail(GDRPY_BROKER_INVALID_REQUEST,
					      "%s: device must be a GPU's UUID, PCI address or "
					      "ordinal below %d, or \"cpu\", not %s",
					      request->call, BROKER_DEVICE_LIMIT,
					      broker_quote(quoted, device));
	else if (is_ordinal || !strcmp(device, "cpu"))
		broker_write_number(&request->writer, ordinal);
	else
		broker_write_text(&request->writer, device);
}

static void put_mode(struct broker_request *request, unsigned int mode)
{
	broker_write_key(&request->writer, "mode");
	broker_write_number(&request->writer, mode);
	if (mode & ~0666u)
		request->result = broker_fail(GDRPY_BROKER_INVALID_REQUEST,
					      "%s: mode must be permission bits of at most 0666, "
					      "like 0640, not %#o",
					      request->call, mode);
}

static void put_metadata(struct broker_request *request, const void *metadata, size_t nbytes)
{
	broker_write_key(&request->writer, "metadata");
	if (nbytes > GDRPY_BROKER_METADATA_BYTES || (nbytes && !metadata))
		request->result =
			broker_fail(GDRPY_BROKER_INVALID_REQUEST,
				    "%s: metadata must be up to %d bytes, not %zu at %p",
				    request->call, GDRPY_BROKER_METADATA_BYTES, nbytes, metadata);
	else
		broker_write_bytes(&request->writer, metadata, nbytes);
}

static void check_reserved(struct broker_request *request, const uint64_t *reserved, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (reserved[i])
			request->result =
				broker_fail(GDRPY_BROKER_INVALID_REQUEST,
					    "%s: `reserved` must be 0: clear the structure first",
					    request->call);
}

static int make(struct gdrpy_broker *broker, const char *call,
		const struct gdrpy_new_region *wanted, unsigned int flags,
		struct gdrpy_region **region)
{
	struct broker_request request;

	broker_request_begin(&request, call);
	if (wanted->name || !strcmp(call, "create")) {
		broker_request_name(&request, "name", wanted->name, 1);
	} else {
		broker_write_key(&request.writer, "name");
		broker_write_nil(&request.writer);
	}
	broker_write_key(&request.writer, "nbytes");
	broker_write_number(&request.writer, (int64_t)wanted->nbytes);
	if (!wanted->nbytes || wanted->nbytes > 1ull << 61)
		request.result = broker_fail(GDRPY_BROKER_INVALID_REQUEST,
					     "%s: nbytes must be from 1 to 2^61, not %llu", call,
					     (unsigned long long)wanted->nbytes);
	put_device(&request, wanted->device);
	put_mode(&request, wanted->mode);
	put_metadata(&request, wanted->metadata, wanted->metadata_nbytes);
	check_reserved(&request, wanted->reserved,
		       sizeof(wanted->reserved) / sizeof(*wanted->reserved));
	check_flags(&request, flags, GDRPY_BROKER_GPU);
	return ask_for_grant(broker, &request, flags & GDRPY_BROKER_GPU, region);
}

int gdrpy_broker_allocate(struct gdrpy_broker *broker, const struct gdrpy_new_region *wanted,
			  unsigned int flags, struct gdrpy_region **region)
{
	return make(broker, "allocate", wanted, flags, region);
}

int gdrpy_broker_create(struct gdrpy_broker *broker, const struct gdrpy_new_region *wanted,
			unsigned int flags, struct gdrpy_region **region)
{
	return make(broker, "create", wanted, flags, region);
}

int gdrpy_broker_get(struct gdrpy_broker *broker, const char *name, unsigned int flags,
		     struct gdrpy_region **region)
{
	struct broker_request request;

	broker_request_begin(&request, "get");
	broker_request_name(&request, "name", name, 1);
	broker_write_key(&request.writer, "readonly");
	broker_write_flag(&request.writer, flags & GDRPY_BROKER_READONLY);
	check_flags(&request, flags, GDRPY_BROKER_READONLY | GDRPY_BROKER_GPU);
	return ask_for_grant(broker, &request, flags & GDRPY_BROKER_GPU, region);
}

int gdrpy_broker_delete(struct gdrpy_broker *broker, const char *name)
{
	struct broker_request request;

	broker_request_begin(&request, "delete");
	broker_request_name(&request, "name", name, 1);
	return call(broker, &request, NULL, NULL);
}

/* Entries */

struct entry {
	struct gdrpy_entry told;
	struct broker_reader metadata;
};

#define ENTRY(member, type, optional)                                                              \
	BROKER_FIELD(struct entry, told.member, #member, type, optional)

static const struct broker_field entry_fields[] = {
	BROKER_FIELD(struct entry, told.number, "region", BROKER_TO_NUMBER, false),
	ENTRY(nbytes, BROKER_TO_SIZE, false),
	ENTRY(size, BROKER_TO_SIZE, false),
	ENTRY(version, BROKER_TO_NUMBER, false),
	ENTRY(readers, BROKER_TO_NUMBER, false),
	ENTRY(writers, BROKER_TO_NUMBER, false),
	ENTRY(asleep, BROKER_TO_NUMBER, true),
	ENTRY(mode, BROKER_TO_NUMBER, false),
	ENTRY(uid, BROKER_TO_NUMBER, false),
	ENTRY(gid, BROKER_TO_NUMBER, false),
	ENTRY(device, BROKER_TO_DEVICE, false),
	ENTRY(sealed, BROKER_TO_FLAG, false),
	ENTRY(linked, BROKER_TO_FLAG, true),
	ENTRY(name, BROKER_TO_TEXT, false),
	ENTRY(uuid, BROKER_TO_TEXT, false),
	BROKER_FIELD(struct entry, metadata, "metadata", BROKER_TO_BYTES, true),
	{0},
};

int gdrpy_broker_stat(struct gdrpy_broker *broker, const char *name, struct gdrpy_entry *told)
{
	struct broker_request request;
	struct entry entry = {0};
	size_t nbytes;
	int result;

	broker_request_begin(&request, "stat");
	broker_request_name(&request, "name", name, 1);
	result = broker_enter(broker, "stat");
	if (result)
		return result;
	result = broker_ask(broker, &request, entry_fields, &entry, NULL);
	nbytes = (size_t)(entry.metadata.end - entry.metadata.next);
	if (!result && nbytes > sizeof(told->metadata))
		result = broker_malformed(broker, "stat", "metadata");
	if (!result) {
		*told = entry.told;
		told->metadata_nbytes = nbytes;
		if (nbytes)
			memcpy(told->metadata, entry.metadata.next, nbytes);
	}
	broker_leave(broker);
	return result;
}

struct page {
	struct broker_value regions;
	char next[GDRPY_BROKER_NAME_BYTES]; /* "" after the last page */
};

static const struct broker_field page_fields[] = {
	BROKER_FIELD(struct page, regions, "regions", BROKER_TO_LIST, false),
	BROKER_FIELD(struct page, next, "next", BROKER_TO_TEXT, false),
	{0},
};

/* One page of a list, whose regions are in `copy`. */
static int ask_for_page(struct gdrpy_broker *broker, const char *prefix, const char *after,
			struct page *page, unsigned char *copy)
{
	struct broker_request request;
	size_t nbytes;
	int result;

	broker_request_begin(&request, "list");
	broker_request_name(&request, "prefix", prefix, 0);
	broker_request_name(&request, "after", after, 0);
	result = broker_enter(broker, "list");
	if (result)
		return result;
	result = broker_ask(broker, &request, page_fields, page, NULL);
	if (!result && *page->next && strcmp(page->next, after) <= 0)
		result = broker_malformed(broker, "list", "next"); /* it would never end */
	if (!result) {
		nbytes = (size_t)(page->regions.span.end - page->regions.span.next);
		memcpy(copy, page->regions.span.next, nbytes);
		page->regions.span = (struct broker_reader){copy, copy + nbytes};
	}
	broker_leave(broker);
	return result;
}

/* Tell of the regions of a page; `*enough` gets what the function returned last. */
static int tell_page(struct page *page, int (*tell)(const struct gdrpy_entry *, void *),
		     void *context, int *enough)
{
	const char *wrong;

	while (page->regions.number-- && !*enough) {
		struct entry entry = {.told.linked = true};

		wrong = broker_decode(&page->regions.span, entry_fields, &entry);
		if (wrong)
			return broker_fail(GDRPY_BROKER_PROTOCOL_ERROR,
					   "list: the broker's entry has a malformed or missing %s",
					   wrong);
		*enough = tell(&entry.told, context);
	}
	return 0;
}

int gdrpy_broker_list(struct gdrpy_broker *broker, const char *prefix,
		      int (*tell)(const struct gdrpy_entry *entry, void *context), void *context)
{
	unsigned char *copy = malloc(BROKER_PACKET_LIMIT);
	char after[GDRPY_BROKER_NAME_BYTES] = "";
	struct page page;
	int enough = 0;
	int result;

	if (!copy)
		return broker_fail(GDRPY_BROKER_OUT_OF_MEMORY, "list: %m");
	do {
		result = ask_for_page(broker, prefix, after, &page, copy);
		if (result)
			break;
		strcpy(after, page.next);
		result = tell_page(&page, tell, context, &enough);
	} while (!result && !enough && *after);
	free(copy);
	return result;
}
