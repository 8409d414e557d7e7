/* SPDX-License-Identifier: MIT */
#include "backends/node.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/forks.h"
#include "common/wait.h"

#define HAS_INFO_V2 GDRDRV_VERSION(2, 4)
#define HAS_ATTRIBUTES GDRDRV_VERSION(2, 5)
#define HAS_PIN_V2 GDRDRV_VERSION(2, 5)
#define HAS_TYPES GDRDRV_VERSION(2, 5)

#define MODULE_VERSION "/sys/module/gdrdrv/version"

static int call(const struct core_node *node, unsigned long command, void *argument)
{
	int ret;

	do {
		ret = ioctl(node->fd, command, argument);
	} while (ret < 0 && errno == EINTR);
	return ret < 0 ? -errno : 0;
}

static int read_version(struct core_node *node)
{
	struct gdrdrv_get_version version = {0};
	int ret = call(node, GDRDRV_IOC_GET_VERSION, &version);

	if (ret)
		return ret;
	node->version = version.gdrdrv_version;
	if (node->version >> 16 != GDRDRV_ABI_VERSION >> 16 ||
	    version.minimum_gdr_api_version > GDRDRV_ABI_VERSION)
		return -EPROTO;
	return 0;
}

/* An unknown attribute counts as absent. */
static bool has_attribute(const struct core_node *node, enum gdrdrv_attribute which)
{
	struct gdrdrv_get_attr attribute = {.attr = which};

	return node->version >= HAS_ATTRIBUTES && !call(node, GDRDRV_IOC_GET_ATTR, &attribute) &&
	       attribute.val;
}

static void read_abilities(struct core_node *node)
{
	struct gdrdrv_features features = {.size = sizeof(features)};

	if (!call(node, GDRDRV_IOC_FEATURES, &features))
		node->features = features.features;
	node->persistent = has_attribute(node, GDRDRV_ATTR_USE_PERSISTENT_MAPPING);
}

int core_node_open(struct core_node *node, const char *path)
{
	int ret;

	*node = (struct core_node){.fd = core_private_open(path, O_RDWR | O_NONBLOCK)};
	if (node->fd < 0)
		return -errno;
	ret = read_version(node);
	if (ret) {
		core_node_close(node);
		return ret;
	}
	read_abilities(node);
	return 0;
}

void core_node_close(struct core_node *node)
{
	core_private_close(node->fd);
	node->fd = -1;
}

bool core_node_full(const struct core_node *node)
{
	const uint64_t all = GDRDRV_FEATURE_PIN_V3 | GDRDRV_FEATURE_SHARE | GDRDRV_FEATURE_EVENTS;

	return (node->features & all) == all;
}

bool core_node_forces_pcie(const struct core_node *node)
{
	return has_attribute(node, GDRDRV_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE);
}

void core_node_origin(const struct core_node *node, char *words, size_t size)
{
	char version[32] = "unknown";
	int fd = core_private_open(MODULE_VERSION, O_RDONLY);
	ssize_t got = fd >= 0 ? read(fd, version, sizeof(version) - 1) : 0;

	if (got > 0)
		version[got - (version[got - 1] == '\n')] = '\0';
	if (fd >= 0)
		core_private_close(fd);
	snprintf(words, size, "%s gdrdrv, version %s, ABI %u.%u",
		 core_node_full(node) ? "gdrpy's" : "NVIDIA's", version, node->version >> 16,
		 node->version & 0xffff);
}

int core_node_pin(const struct core_node *node, uint64_t address, uint64_t nbytes, uint32_t flags,
		  uint64_t *handle)
{
	struct gdrdrv_pin_buffer v1 = {.addr = address, .size = nbytes};
	struct gdrdrv_pin_buffer_v2 v2 = {
		.addr = address, .size = nbytes, .flags = GDRDRV_PIN_FLAG_FORCE_PCIE};
	struct gdrdrv_pin_v3 v3 = {
		.size = sizeof(v3), .flags = flags, .addr = address, .length = nbytes};
	int ret = -EOPNOTSUPP;

	if (node->features & GDRDRV_FEATURE_PIN_V3) {
		ret = call(node, GDRDRV_IOC_PIN_V3, &v3);
		*handle = v3.handle;
	} else if (flags == GDRDRV_PIN_V3_FORCE_PCIE && node->version >= HAS_PIN_V2) {
		ret = call(node, GDRDRV_IOC_PIN_BUFFER_V2, &v2);
		*handle = v2.handle;
	} else if (!flags) {
		ret = call(node, GDRDRV_IOC_PIN_BUFFER, &v1);
		*handle = v1.handle;
	}
	return ret;
}

int core_node_unpin(const struct core_node *node, uint64_t handle)
{
	struct gdrdrv_unpin_buffer unpin = {.handle = handle};

	return call(node, GDRDRV_IOC_UNPIN_BUFFER, &unpin);
}

/* Ask an older module, and answer like a newer one. */
static int get_info_v1(const struct core_node *node, struct gdrdrv_get_info_v2 *info)
{
	struct gdrdrv_get_info v1 = {.handle = info->handle};
	int ret = call(node, GDRDRV_IOC_GET_INFO, &v1);

	info->va = v1.va;
	info->mapped_size = v1.mapped_size;
	info->tm_cycles = v1.tm_cycles;
	info->tsc_khz = v1.tsc_khz;
	if (v1.mapped)
		info->mapping_type = v1.wc_mapping ? GDRDRV_MAPPING_WC : GDRDRV_MAPPING_CACHED;
	return ret;
}

int core_node_info(const struct core_node *node, uint64_t handle, struct core_pin_info *info)
{
	struct gdrdrv_get_cb_flag revoked = {.handle = handle};
	struct gdrdrv_get_info_v2 answer = {.handle = handle};
	int ret = node->version >= HAS_INFO_V2 ? call(node, GDRDRV_IOC_GET_INFO_V2, &answer)
					       : get_info_v1(node, &answer);

	if (!ret)
		ret = call(node, GDRDRV_IOC_GET_CB_FLAG, &revoked);
	*info = (struct core_pin_info){
		.va = answer.va,
		.nbytes = answer.mapped_size,
		.mapping_type = answer.mapping_type,
		.revoked = revoked.flag,
		.cycles = answer.tm_cycles,
		.khz = answer.tsc_khz,
	};
	return ret;
}

int core_node_request_type(const struct core_node *node, uint64_t handle, uint32_t mapping_type)
{
	struct gdrdrv_req_mapping_type request = {.handle = handle, .mapping_type = mapping_type};

	if (node->version < HAS_TYPES)
		return mapping_type == GDRDRV_MAPPING_NONE ? 0 : -EOPNOTSUPP;
	return call(node, GDRDRV_IOC_REQ_MAPPING_TYPE, &request);
}

int core_node_share(const struct core_node *node, uint64_t handle, bool readonly)
{
	struct gdrdrv_share share = {.size = sizeof(share),
				     .flags = readonly ? GDRDRV_SHARE_RDONLY : 0,
				     .handle = handle};
	int ret = call(node, GDRDRV_IOC_SHARE, &share);

	return ret ? ret : share.fd;
}

int core_node_next_event(const struct core_node *node, struct gdrdrv_event *event)
{
	ssize_t got;

	do {
		got = read(node->fd, event, sizeof(*event));
	} while (got < 0 && errno == EINTR);

	if (got < 0)
		return errno == EAGAIN ? 0 : -errno;
	return got == sizeof(*event) ? 1 : -EPROTO;
}

int64_t core_share_size(int fd)
{
	struct statfs filesystem;
	struct stat status;

	if (fstatfs(fd, &filesystem) || fstat(fd, &status))
		return -errno;
	return filesystem.f_type == GDRDRV_SHARE_MAGIC ? status.st_size : -EINVAL;
}

bool core_share_ended(int fd, int timeout_ms)
{
	struct pollfd share = {.fd = fd};
	int64_t end = core_now_ns() / 1000000 + timeout_ms, left = timeout_ms;
	int ret;

	while ((ret = poll(&share, 1, (int)left)) < 0 && errno == EINTR) {
		left = end - core_now_ns() / 1000000;
		left = left > 0 ? left : 0;
	}
	return ret > 0 && share.revents & POLLHUP;
}
