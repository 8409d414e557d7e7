/* SPDX-License-Identifier: MIT */
/* The calls of gdrpy/broker.h on one region. */
#include "brokerlib/connection.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_GET_SEALS
#define F_GET_SEALS 1034
#define F_SEAL_SHRINK 2
#endif

static struct broker_lease *lease_of(const struct gdrpy_region *region)
{
	return (struct broker_lease *)region;
}

struct published {
	uint64_t version;
};

static const struct broker_field published_fields[] = {
	BROKER_FIELD(struct published, version, "version", BROKER_TO_NUMBER, false),
	{0},
};

/* A request about a region that this connection holds. */
static int ask_about(struct broker_lease *lease, const char *call,
		     const struct broker_field *fields, void *reply)
{
	struct broker_request request;
	int result = broker_enter(lease->broker, call);

	if (result)
		return result;
	broker_request_begin(&request, call);
	request.lease = lease;
	broker_write_key(&request.writer, "region");
	broker_write_number(&request.writer, (int64_t)lease->region.number);
	result = broker_ask(lease->broker, &request, fields, reply, NULL);
	broker_leave(lease->broker);
	return result;
}

int gdrpy_region_publish(struct gdrpy_region *region)
{
	struct published published;
	int result = ask_about(lease_of(region), "publish", published_fields, &published);

	if (!result)
		region->version = published.version;
	return result;
}

int gdrpy_region_seal(struct gdrpy_region *region)
{
	int result = ask_about(lease_of(region), "seal", NULL, NULL);

	if (!result)
		region->sealed = region->readonly = true;
	return result;
}

int gdrpy_region_check(const struct gdrpy_region *region)
{
	struct broker_lease *lease = lease_of(region);
	int result = broker_enter(lease->broker, "check");

	if (result)
		return result;
	if (lease->state == BROKER_LOST)
		result = broker_fail(GDRPY_BROKER_GONE, "check: the broker at %s lost region %llu",
				     lease->broker->path, (unsigned long long)region->number);
	broker_leave(lease->broker);
	return result;
}

int gdrpy_region_map(const struct gdrpy_region *region, void **address)
{
	int protection = region->readonly ? PROT_READ : PROT_READ | PROT_WRITE;
	int seals = fcntl(region->fd, F_GET_SEALS);
	struct stat status;
	void *mapped;

	/* Memory that another process may shrink would end this one by SIGBUS. */
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(region->fd, &status) ||
	    (uint64_t)status.st_size < region->size)
		return broker_fail(
			GDRPY_BROKER_MISSING_VIEW,
			"map: the descriptor of region %llu is not a memory file of its "
			"size: import a GPU's memory by cuMemImportFromShareableHandle()",
			(unsigned long long)region->number);
	mapped = mmap(NULL, region->size, protection, MAP_SHARED, region->fd, 0);
	if (mapped == MAP_FAILED)
		return broker_fail(GDRPY_BROKER_OUT_OF_MEMORY, "map: mmap of %llu bytes: %m",
				   (unsigned long long)region->size);
	*address = mapped;
	return 0;
}

int gdrpy_region_unmap(const struct gdrpy_region *region, void *address)
{
	if (munmap(address, region->size))
		return broker_fail(GDRPY_BROKER_INVALID_REQUEST, "unmap: %p: %m", address);
	return 0;
}

void gdrpy_region_release(struct gdrpy_region *region)
{
	struct broker_lease *lease = lease_of(region);

	if (!region)
		return;
	close(region->fd); /* before the broker may free the memory */
	if (lease->broker->pid == getpid()) {
		pthread_mutex_lock(&lease->broker->lock);
		broker_give_back(lease->broker, lease);
		broker_leave(lease->broker);
	}
	free(lease);
}
