/* SPDX-License-Identifier: MIT */
/* What is counted of last closes, and what may come of each. */
#include <errno.h>

#include "closes.h"

/* EINVAL: a handle that lives no more, memory that was freed, a pin that has ended. */
const struct kind operation_kinds[OPERATIONS] = {
	[OPEN_NODE] = {"open"},
	[PIN] = {"pin", .allowed = {EINVAL}},
	[UNPIN] = {"unpin"},
	[SHARE] = {"share", .allowed = {EINVAL}},
	[GET_INFO] = {"get_info", .allowed = {EINVAL}},
	[GET_CB_FLAG] = {"get_cb_flag", .allowed = {EINVAL}},
	[SET_TYPE] = {"set_type", .allowed = {EINVAL, EBUSY, EOPNOTSUPP}},
	[MAP_BY_HANDLE] = {"map_by_handle", .allowed = {EINVAL, ENOMEM}},
	/* ENODEV: /dev/null, where a share is not yet. */
	[MAP_SHARE] = {"map_share", .allowed = {EINVAL, EACCES, ENODEV, ENOMEM}},
	[TOUCH] = {"touch", .allowed = {RESULT_SIGBUS, RESULT_SIGSEGV}},
	/* Over a part of what another thread has just mapped there. */
	[MOVE] = {"move", .allowed = {EINVAL, ENOMEM}},
	[UNMAP] = {"unmap"},
	[READ_EVENTS] = {"read_events"},
	[POLL_NODE] = {"poll_node"},
	[POLL_SHARE] = {"poll_share"},
	[CLOSE_NODE] = {"close_node"},
	[CLOSE_SHARE] = {"close_share"},
	[NEW_MEMORY] = {"new_memory"},
	[PLACE_MEMORY] = {"place_memory"},
	[FREE_MEMORY] = {"free_memory", .allowed = {EINVAL}},
	[CLOSE_MEMORY] = {"close_memory"},
	[STRANGER_IOCTL] = {"stranger_ioctl", .must_fail = true, .allowed = {EACCES, ENOTTY}},
	[STRANGER_MAP] = {"stranger_map", .must_fail = true, .allowed = {EACCES, ENODEV}},
	[SEND] = {"send"},
	[REGISTER] = {"register"},
	[UNREGISTER] = {"unregister"},
	[SUBMIT] = {"submit"},
	[REOPEN] = {"reopen", .allowed = {ENOENT, ESRCH, ENXIO, EACCES}},
	[TOUCH_WITNESS] = {"touch_witness"},
	[TOUCH_AFTER] = {"touch_after", .must_fail = true, .allowed = {RESULT_SIGBUS}},
	[MAP_AFTER] = {"map_after", .must_fail = true, .allowed = {EINVAL}},
};

const struct kind event_kinds[EVENTS] = {
	[ROUND] = {"round"},
	[FORK] = {"fork"},
	[EXEC] = {"exec"},
	[KILL] = {"kill"},
	[OUTLIVED_OWNER] = {"outlived_owner"},
	[LAST_CLOSE] = {"last_close"},
	[COLLECT] = {"collect"},
	[CLOSE_HANDED_ON] = {"close_handed_on"},
	[READ_MODULE] = {"read_module"},
	[READ_OWNER] = {"read_owner", .allowed = {ENOENT, ESRCH, EACCES}},
	[UNLOAD] = {"unload", .allowed = {EWOULDBLOCK}},
	[LOAD] = {"load"},
};

/* Where the module comes and goes, its files do too. */
static const struct kind without_module = {"", .allowed = {ENOENT, ENXIO, ENODEV, EIO}};

static void check(const struct kind *kind, int result, bool may_be_gone)
{
	if (kind_allows(kind, result))
		return;
	if (may_be_gone && closes->target == TARGET_UNLOAD && kind_allows(&without_module, result))
		return;
	closes_fail("%s: %s", kind->name, result_name(result));
}

void record(enum operation operation, int result)
{
	check(&operation_kinds[operation], result, operation == OPEN_NODE);
	tally_add(&closes->operations, operation, result);
}

void record_event(enum event event, int result)
{
	check(&event_kinds[event], result, event == READ_MODULE);
	tally_add(&closes->events, event, result);
}
