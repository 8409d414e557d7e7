// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The identity of the calling process. */
#include <linux/sched/signal.h>

#include "gdrdrv.h"

struct gdrdrv_process gdrdrv_current_process(void)
{
	return (struct gdrdrv_process){
		.tgid = task_tgid_nr(current),
		.start = current->group_leader->start_boottime,
	};
}

bool gdrdrv_is_current(const struct gdrdrv_process *process)
{
	struct gdrdrv_process now = gdrdrv_current_process();

	return now.tgid == process->tgid && now.start == process->start;
}
