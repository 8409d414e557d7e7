/* SPDX-License-Identifier: MIT */
/* What each operation is called, what may come of it, and how often it is chosen. */
#include <errno.h>

#include "storm.h"

/* Any handle may have been unpinned by another thread meanwhile: EINVAL. */
const struct kind operation_kinds[OPERATIONS] = {
	[OPEN_NODE] = {"open"},
	[PIN] = {"pin", .allowed = {EINVAL}},
	[PIN_V2] = {"pin_v2", .allowed = {EINVAL}},
	[PIN_V3] = {"pin_v3", .allowed = {EINVAL, EOPNOTSUPP}},
	[UNPIN] = {"unpin", .allowed = {EINVAL}},
	/* ENOMEM: the kernel's answer if what is mapped there may not be unmapped in part. */
	[MAP_BY_HANDLE] = {"map_by_handle", .allowed = {EINVAL, EACCES, ENOMEM}},
	/* ENODEV: there is no share yet. */
	[MAP_SHARE] = {"map_share", .allowed = {EINVAL, EACCES, ENOMEM, ENODEV}},
	[MAP_PEER_SHARE] = {"map_peer_share", .allowed = {EINVAL, EACCES, ENOMEM, ENODEV}},
	[TOUCH] = {"touch", .allowed = {RESULT_SIGBUS, RESULT_SIGSEGV}},
	[TOUCH_PEER] = {"touch_peer", .allowed = {RESULT_SIGBUS, RESULT_SIGSEGV}},
	[TOUCH_BY_KERNEL] = {"touch_by_kernel", .allowed = {EFAULT}},
	[UNMAP] = {"unmap", .allowed = {EINVAL}},
	[UNMAP_PART] = {"unmap_part", .allowed = {EINVAL}},
	[PROTECT] = {"protect", .allowed = {EINVAL, EACCES, ENOMEM}},
	[PROTECT_PART] = {"protect_part", .allowed = {EINVAL, EACCES, ENOMEM}},
	[MOVE] = {"move", .allowed = {EINVAL, EFAULT}},
	[SHRINK] = {"shrink", .allowed = {EINVAL, EFAULT}},
	[GROW] = {"grow", .must_fail = true, .allowed = {EFAULT}},
	[ADVISE] = {"advise", .allowed = {EINVAL, ENOMEM}},
	[SHARE] = {"share", .allowed = {EINVAL}},
	/* The mailbox is full. */
	[SEND_SHARE] = {"send_share", .allowed = {EAGAIN}},
	[SEND_NODE] = {"send_node", .allowed = {EAGAIN}},
	[RECEIVE] = {"receive", .allowed = {EAGAIN}},
	[FORK] = {"fork"},
	[NEW_MEMORY] = {"new_memory", .allowed = {ENOMEM}},
	[FREE_MEMORY] = {"free_memory"},
	[CLOSE_MEMORY] = {"close_memory"},
	[READ_EVENTS] = {"read_events", .allowed = {EAGAIN}},
	[POLL_NODE] = {"poll_node"},
	[POLL_SHARE] = {"poll_share"},
	[SET_TYPE] = {"set_type", .allowed = {EINVAL, EBUSY, EOPNOTSUPP}},
	[GET_INFO] = {"get_info", .allowed = {EINVAL}},
	[GET_CB_FLAG] = {"get_cb_flag", .allowed = {EINVAL}},
	[READ_PROC] = {"read_proc"},
	[UNLOAD] = {"unload", .must_fail = true, .allowed = {EWOULDBLOCK}},
	[STRANGER_IOCTL] = {"stranger_ioctl", .must_fail = true, .allowed = {EACCES}},
	[STRANGER_MAP] = {"stranger_map", .must_fail = true, .allowed = {EACCES}},
	[STRANGER_READ] = {"stranger_read", .must_fail = true, .allowed = {EACCES}},
	[CHILD_TOUCH] = {"child_touch", .must_fail = true, .allowed = {RESULT_SIGSEGV}},
	[CHILD_MAP_SHARE] = {"child_map_share", .allowed = {EINVAL, EACCES, ENOMEM, ENODEV}},
	[CHILD_TOUCH_SHARE] = {"child_touch_share", .allowed = {RESULT_SIGBUS, RESULT_SIGSEGV}},
	[KILL_CHILD] = {"kill_child"},
	[KILL_WORKER] = {"kill_worker"},
	/* Only where an injected failure hit a fault, or the frame of a signal. */
	[LOST_WORKER] = {"lost_worker", .must_fail = true, .allowed = {}},
};

static const struct {
	int (*run)(struct thread *thread);
	unsigned int weight;
} operations[CHOSEN] = {
	[OPEN_NODE] = {op_open_node, 2},
	[PIN] = {op_pin, 2},
	[PIN_V2] = {op_pin_v2, 2},
	[PIN_V3] = {op_pin_v3, 8},
	[UNPIN] = {op_unpin, 2},
	[MAP_BY_HANDLE] = {op_map_by_handle, 12},
	[MAP_SHARE] = {op_map_share, 12},
	[MAP_PEER_SHARE] = {op_map_peer_share, 12},
	[TOUCH] = {op_touch, 20},
	[TOUCH_PEER] = {op_touch_peer, 12},
	[TOUCH_BY_KERNEL] = {op_touch_by_kernel, 6},
	[UNMAP] = {op_unmap, 2},
	[UNMAP_PART] = {op_unmap_part, 2},
	[PROTECT] = {op_protect, 4},
	[PROTECT_PART] = {op_protect_part, 3},
	[MOVE] = {op_move, 5},
	[SHRINK] = {op_shrink, 2},
	[GROW] = {op_grow, 2},
	[ADVISE] = {op_advise, 8},
	[SHARE] = {op_share, 12},
	[SEND_SHARE] = {op_send_share, 8},
	[SEND_NODE] = {op_send_node, 1},
	[RECEIVE] = {op_receive, 10},
	[FORK] = {op_fork, 1},
	[NEW_MEMORY] = {op_new_memory, 10},
	[FREE_MEMORY] = {op_free_memory, 1},
	[CLOSE_MEMORY] = {op_close_memory, 1},
	[READ_EVENTS] = {op_read_events, 2},
	[POLL_NODE] = {op_poll_node, 3},
	[POLL_SHARE] = {op_poll_share, 3},
	[SET_TYPE] = {op_set_type, 3},
	[GET_INFO] = {op_get_info, 4},
	[GET_CB_FLAG] = {op_get_cb_flag, 3},
	[READ_PROC] = {op_read_proc, 1},
	[UNLOAD] = {op_unload, 1},
};

int operation_run(enum operation operation, struct thread *thread)
{
	return operations[operation].run(thread);
}

enum operation operation_choose(struct random *random)
{
	unsigned int total = 0, pick;
	int operation;

	for (operation = 0; operation < CHOSEN; operation++)
		total += operations[operation].weight;
	pick = below(random, total);
	for (operation = 0; pick >= operations[operation].weight; operation++)
		pick -= operations[operation].weight;
	return operation;
}
