// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Events of one open file, for read and poll. */
#include <linux/build_bug.h>
#include <linux/log2.h>
#include <linux/uaccess.h>

#include "gdrdrv.h"

void gdrdrv_events_init(struct gdrdrv_events *events)
{
	BUILD_BUG_ON(!is_power_of_2(GDRDRV_EVENT_ROOM));
	spin_lock_init(&events->lock);
	mutex_init(&events->reader);
	init_waitqueue_head(&events->wait);
}

static struct gdrdrv_event *gdrdrv_event_slot(struct gdrdrv_events *events, unsigned int index)
{
	return &events->ring[index % GDRDRV_EVENT_ROOM];
}

void gdrdrv_event_post(struct gdrdrv_events *events, u32 kind, u64 handle)
{
	spin_lock(&events->lock);
	events->sequence++;
	if (events->head - events->tail < GDRDRV_EVENT_ROOM && !events->lost) {
		*gdrdrv_event_slot(events, events->head++) = (struct gdrdrv_event){
			.handle = handle,
			.sequence = events->sequence,
			.kind = kind,
		};
	} else {
		/* After a loss all are lost until the reader gets the OVERFLOW, to keep the order.
		 */
		events->lost++;
		gdrdrv_count(GDRDRV_COUNT_EVENTS_LOST);
	}
	spin_unlock(&events->lock);
	wake_up_interruptible_poll(&events->wait, EPOLLIN | EPOLLRDNORM);
}

/* The next event, which stays queued; the OVERFLOW follows the queued ones. */
static bool gdrdrv_event_peek(struct gdrdrv_events *events, struct gdrdrv_event *event)
{
	bool found = true;

	spin_lock(&events->lock);
	if (events->head != events->tail)
		*event = *gdrdrv_event_slot(events, events->tail);
	else if (events->lost)
		*event = (struct gdrdrv_event){
			.sequence = events->sequence - events->lost + 1,
			.kind = GDRDRV_EVENT_OVERFLOW,
			.lost = events->lost,
		};
	else
		found = false;
	spin_unlock(&events->lock);
	return found;
}

/* Takes the event that was peeked. Events lost since then are reported next. */
static void gdrdrv_event_take(struct gdrdrv_events *events, const struct gdrdrv_event *event)
{
	spin_lock(&events->lock);
	if (event->kind == GDRDRV_EVENT_OVERFLOW)
		events->lost -= event->lost;
	else
		events->tail++;
	spin_unlock(&events->lock);
}

static bool gdrdrv_events_pending(struct gdrdrv_events *events)
{
	bool pending;

	spin_lock(&events->lock);
	pending = events->head != events->tail || events->lost;
	spin_unlock(&events->lock);
	return pending;
}

/* Copies as many whole events as are pending and fit. */
static ssize_t gdrdrv_events_copy(struct gdrdrv_events *events, char __user *to, size_t size)
{
	struct gdrdrv_event event;
	size_t done = 0;

	if (mutex_lock_interruptible(&events->reader))
		return -ERESTARTSYS;
	while (size - done >= sizeof(event) && gdrdrv_event_peek(events, &event)) {
		if (copy_to_user(to + done, &event, sizeof(event))) {
			mutex_unlock(&events->reader);
			return done ? done : -EFAULT;
		}
		gdrdrv_event_take(events, &event);
		done += sizeof(event);
	}
	mutex_unlock(&events->reader);
	return done;
}

ssize_t gdrdrv_events_read(struct file *filp, char __user *to, size_t size, loff_t *pos)
{
	struct gdrdrv_file *gfile = filp->private_data;
	struct gdrdrv_events *events = &gfile->events;
	ssize_t ret;

	if (!gdrdrv_is_current(&gfile->owner))
		return -EACCES;
	if (size < sizeof(struct gdrdrv_event))
		return -EINVAL;

	for (;;) {
		ret = gdrdrv_events_copy(events, to, size);
		if (ret)
			return ret;
		if (filp->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(events->wait, gdrdrv_events_pending(events)))
			return -ERESTARTSYS;
	}
}

__poll_t gdrdrv_events_poll(struct file *filp, poll_table *wait)
{
	struct gdrdrv_file *gfile = filp->private_data;

	if (!gdrdrv_is_current(&gfile->owner))
		return EPOLLERR;
	poll_wait(filp, &gfile->events.wait, wait);
	return gdrdrv_events_pending(&gfile->events) ? EPOLLIN | EPOLLRDNORM : 0;
}
