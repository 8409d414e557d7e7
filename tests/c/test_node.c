/* SPDX-License-Identifier: MIT */
/* The calls of /dev/gdrdrv, to modules of every kind: this file answers in their place. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "backends/node.h"
#include "check.h"

#define ANY_FILE "/dev/null"

/* What the module is and does, set by each test. */
static struct {
	uint32_t version, minimum_api;
	uint64_t features;
	int error;	   /* of every call but those that open() makes */
	int interruptions; /* so many calls end with EINTR first */
	unsigned int last;
	uint32_t pin_flags;
	struct gdrdrv_event event;
	size_t event_size; /* 0: none waits */
} module;

static int fail(int error)
{
	errno = error;
	return -1;
}

static int answer(unsigned long command, void *argument)
{
	module.last = (unsigned int)command;
	if (module.error)
		return fail(module.error);

	switch (command) {
	case GDRDRV_IOC_PIN_BUFFER:
		((struct gdrdrv_pin_buffer *)argument)->handle = 1;
		return 0;
	case GDRDRV_IOC_PIN_V3:
		module.pin_flags = ((struct gdrdrv_pin_v3 *)argument)->flags;
		((struct gdrdrv_pin_v3 *)argument)->handle = 3;
		return 0;
	case GDRDRV_IOC_GET_INFO:
		*(struct gdrdrv_get_info *)argument = (struct gdrdrv_get_info){
			.va = 0x10000, .mapped_size = 0x20000, .mapped = 1, .wc_mapping = 1};
		return 0;
	case GDRDRV_IOC_GET_INFO_V2:
		*(struct gdrdrv_get_info_v2 *)argument =
			(struct gdrdrv_get_info_v2){.va = 0x10000,
						    .mapped_size = 0x20000,
						    .mapping_type = GDRDRV_MAPPING_DEVICE};
		return 0;
	case GDRDRV_IOC_GET_CB_FLAG:
		((struct gdrdrv_get_cb_flag *)argument)->flag = 1;
		return 0;
	case GDRDRV_IOC_SHARE:
		((struct gdrdrv_share *)argument)->fd = 77;
		return 0;
	case GDRDRV_IOC_UNPIN_BUFFER:
		return 0;
	}
	return fail(ENOTTY);
}

int __wrap_ioctl(int fd, unsigned long command, ...)
{
	void *argument;
	va_list args;

	(void)fd;
	va_start(args, command);
	argument = va_arg(args, void *);
	va_end(args);

	if (module.interruptions) {
		module.interruptions--;
		return fail(EINTR);
	}
	switch (command) {
	case GDRDRV_IOC_GET_VERSION:
		if (!module.version)
			return fail(ENOTTY);
		*(struct gdrdrv_get_version *)argument =
			(struct gdrdrv_get_version){module.version, module.minimum_api};
		return 0;
	case GDRDRV_IOC_FEATURES:
		if (!module.features)
			return fail(ENOTTY);
		((struct gdrdrv_features *)argument)->features = module.features;
		return 0;
	case GDRDRV_IOC_GET_ATTR:
		((struct gdrdrv_get_attr *)argument)->val = 1;
		return 0;
	}
	return answer(command, argument);
}

ssize_t __wrap_read(int fd, void *to, size_t size)
{
	(void)fd;
	(void)size;
	if (module.interruptions) {
		module.interruptions--;
		return fail(EINTR);
	}
	if (module.error)
		return fail(module.error);
	if (!module.event_size)
		return fail(EAGAIN);
	memcpy(to, &module.event, module.event_size);
	return (ssize_t)module.event_size;
}

int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	if (module.interruptions) {
		module.interruptions--;
		return fail(EINTR);
	}
	return __real_poll(fds, count, timeout_ms);
}

static void become(uint32_t version, uint64_t features)
{
	memset(&module, 0, sizeof(module));
	module.version = version;
	module.minimum_api = GDRDRV_VERSION(2, 0);
	module.features = features;
}

static struct core_node open_node(void)
{
	struct core_node node;

	CHECK_EQ(core_node_open(&node, ANY_FILE), 0);
	return node;
}

static void the_newest_is_opened_with_its_features(void)
{
	struct core_node node;

	become(GDRDRV_ABI_VERSION, GDRDRV_FEATURE_PIN_V3 | GDRDRV_FEATURE_SHARE);
	node = open_node();
	CHECK_EQ(node.version, GDRDRV_ABI_VERSION);
	CHECK_EQ(node.features, GDRDRV_FEATURE_PIN_V3 | GDRDRV_FEATURE_SHARE);
	CHECK(node.persistent);
	CHECK_EQ(fcntl(node.fd, F_GETFD), FD_CLOEXEC);
	CHECK(fcntl(node.fd, F_GETFL) & O_NONBLOCK);
	core_node_close(&node);
	CHECK_EQ(node.fd, -1);
}

static void one_before_attributes_makes_no_persistent_pins(void)
{
	struct core_node node;

	become(GDRDRV_VERSION(2, 4), 0);
	node = open_node();
	CHECK(!node.persistent);
	CHECK_EQ(node.features, 0);
	core_node_close(&node);
}

static void whether_pcie_can_be_forced_is_told_by_an_attribute(void)
{
	struct core_node node;

	become(GDRDRV_VERSION(2, 5), 0);
	node = open_node();
	CHECK(core_node_forces_pcie(&node));
	core_node_close(&node);

	become(GDRDRV_VERSION(2, 4), 0);
	node = open_node();
	CHECK(!core_node_forces_pcie(&node));
	core_node_close(&node);
}

static void refused_and_closed(uint32_t version, uint32_t minimum_api, int error)
{
	int lowest = dup(0);
	struct core_node node;

	close(lowest);
	become(version, 0);
	module.minimum_api = minimum_api;
	CHECK_EQ(core_node_open(&node, ANY_FILE), error);
	CHECK_EQ(node.fd, -1);
	CHECK_EQ(dup(0), lowest); /* nothing was left open */
	close(lowest);
}

static void what_speaks_otherwise_is_refused(void)
{
	refused_and_closed(GDRDRV_VERSION(3, 0), GDRDRV_VERSION(3, 0), -EPROTO);
	refused_and_closed(GDRDRV_VERSION(1, 3), GDRDRV_VERSION(1, 0), -EPROTO);
	refused_and_closed(GDRDRV_VERSION(2, 9), GDRDRV_VERSION(2, 7), -EPROTO);
	refused_and_closed(0, 0, -ENOTTY);
}

static void a_node_that_is_missing_is_told(void)
{
	struct core_node node;

	CHECK_EQ(core_node_open(&node, "/dev/no-such-node"), -ENOENT);
}

static void a_pin_is_asked_for_in_the_newest_way_there_is(void)
{
	struct core_node node;
	uint64_t handle;

	become(GDRDRV_ABI_VERSION, GDRDRV_FEATURE_PIN_V3);
	node = open_node();
	CHECK_EQ(core_node_pin(&node, 0x10000, 1, GDRDRV_PIN_V3_REVOCABLE, &handle), 0);
	CHECK_EQ(handle, 3);
	CHECK_EQ(module.pin_flags, GDRDRV_PIN_V3_REVOCABLE);
	core_node_close(&node);

	become(GDRDRV_VERSION(2, 0), 0);
	node = open_node();
	CHECK_EQ(core_node_pin(&node, 0x10000, 1, 0, &handle), 0);
	CHECK_EQ(handle, 1);
	CHECK_EQ(core_node_pin(&node, 0x10000, 1, GDRDRV_PIN_V3_REVOCABLE, &handle), -EOPNOTSUPP);
	core_node_close(&node);
}

static void info_is_asked_for_in_the_newest_way_there_is(void)
{
	struct core_pin_info info;
	struct core_node node;

	become(GDRDRV_VERSION(2, 4), 0);
	node = open_node();
	CHECK_EQ(core_node_info(&node, 1, &info), 0);
	CHECK_EQ(info.mapping_type, GDRDRV_MAPPING_DEVICE);
	CHECK_EQ(info.va, 0x10000);
	CHECK_EQ(info.nbytes, 0x20000);
	CHECK(info.revoked);
	core_node_close(&node);

	become(GDRDRV_VERSION(2, 3), 0);
	node = open_node();
	CHECK_EQ(core_node_info(&node, 1, &info), 0);
	CHECK_EQ(info.mapping_type, GDRDRV_MAPPING_WC);
	core_node_close(&node);
}

static void an_interrupted_call_is_made_again(void)
{
	struct core_node node;

	become(GDRDRV_ABI_VERSION, 0);
	node = open_node();
	module.interruptions = 3;
	CHECK_EQ(core_node_unpin(&node, 1), 0);
	CHECK_EQ(module.interruptions, 0);
	core_node_close(&node);
}

static void an_error_is_the_kernels(void)
{
	struct core_pin_info info;
	struct core_node node;
	uint64_t handle;

	become(GDRDRV_ABI_VERSION, GDRDRV_FEATURE_PIN_V3);
	node = open_node();
	module.error = EDQUOT;
	CHECK_EQ(core_node_pin(&node, 0x10000, 1, 0, &handle), -EDQUOT);
	CHECK_EQ(core_node_unpin(&node, 1), -EDQUOT);
	CHECK_EQ(core_node_info(&node, 1, &info), -EDQUOT);
	CHECK_EQ(core_node_share(&node, 1, false), -EDQUOT);
	core_node_close(&node);
}

static void a_share_is_a_descriptor(void)
{
	struct core_node node;

	become(GDRDRV_ABI_VERSION, GDRDRV_FEATURE_SHARE);
	node = open_node();
	CHECK_EQ(core_node_share(&node, 1, true), 77);
	core_node_close(&node);
}

static void events_are_read_one_by_one(void)
{
	struct gdrdrv_event event;
	struct core_node node;

	become(GDRDRV_ABI_VERSION, GDRDRV_FEATURE_EVENTS);
	node = open_node();
	CHECK_EQ(core_node_next_event(&node, &event), 0);

	module.event = (struct gdrdrv_event){.handle = 5, .sequence = 9};
	module.event_size = sizeof(event);
	module.interruptions = 1;
	CHECK_EQ(core_node_next_event(&node, &event), 1);
	CHECK_EQ(event.handle, 5);

	module.event_size = 3;
	CHECK_EQ(core_node_next_event(&node, &event), -EPROTO);
	module.error = EACCES;
	CHECK_EQ(core_node_next_event(&node, &event), -EACCES);
	core_node_close(&node);
}

static void what_is_no_share_has_no_size(void)
{
	int fd = open(ANY_FILE, O_RDONLY);

	CHECK_EQ(core_share_size(fd), -EINVAL);
	CHECK(!core_share_ended(fd, 0));
	close(fd);
	CHECK_EQ(core_share_size(fd), -EBADF);
}

static void an_interrupted_wait_for_the_end_goes_on(void)
{
	int ends[2];

	become(GDRDRV_ABI_VERSION, 0);
	CHECK_EQ(pipe(ends), 0);
	module.interruptions = 2;
	CHECK(!core_share_ended(ends[0], 0));
	CHECK_EQ(module.interruptions, 0);
	close(ends[1]);
	module.interruptions = 2;
	CHECK(core_share_ended(ends[0], 10000));
	close(ends[0]);
}

CHECK_MAIN(TEST(the_newest_is_opened_with_its_features),
	   TEST(one_before_attributes_makes_no_persistent_pins),
	   TEST(whether_pcie_can_be_forced_is_told_by_an_attribute),
	   TEST(what_speaks_otherwise_is_refused), TEST(a_node_that_is_missing_is_told),
	   TEST(a_pin_is_asked_for_in_the_newest_way_there_is),
	   TEST(info_is_asked_for_in_the_newest_way_there_is),
	   TEST(an_interrupted_call_is_made_again), TEST(an_error_is_the_kernels),
	   TEST(a_share_is_a_descriptor), TEST(events_are_read_one_by_one),
	   TEST(what_is_no_share_has_no_size), TEST(an_interrupted_wait_for_the_end_goes_on))
