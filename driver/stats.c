// SPDX-License-Identifier: GPL-2.0 OR MIT
/* /proc/driver/gdrdrv: counters since the module was loaded, and the live pins. */
#include <linux/atomic.h>
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/proc_fs.h>

#include "gdrdrv.h"

static atomic64_t gdrdrv_counters[GDRDRV_COUNTERS];
static LIST_HEAD(gdrdrv_live_pins);
static DEFINE_MUTEX(gdrdrv_live_pins_lock);

static const char *const gdrdrv_counter_names[GDRDRV_COUNTERS] = {
	[GDRDRV_COUNT_PINS] = "pins",
	[GDRDRV_COUNT_PINS_REFUSED] = "pins_refused",
	[GDRDRV_COUNT_UNPINS] = "unpins",
	[GDRDRV_COUNT_REVOCATIONS] = "revocations",
	[GDRDRV_COUNT_MAPPINGS] = "mappings",
	[GDRDRV_COUNT_FAULTS] = "faults",
	[GDRDRV_COUNT_SHARES] = "shares",
	[GDRDRV_COUNT_EVENTS_LOST] = "events_lost",
	[GDRDRV_COUNT_WC_REFUSED] = "write_combining_refused",
};

void gdrdrv_count(enum gdrdrv_counter counter)
{
	atomic64_inc(&gdrdrv_counters[counter]);
}

void gdrdrv_stats_add_pin(struct gdrdrv_pin *pin)
{
	mutex_lock(&gdrdrv_live_pins_lock);
	list_add_tail(&pin->live, &gdrdrv_live_pins);
	mutex_unlock(&gdrdrv_live_pins_lock);
}

void gdrdrv_stats_remove_pin(struct gdrdrv_pin *pin)
{
	mutex_lock(&gdrdrv_live_pins_lock);
	list_del_init(&pin->live);
	mutex_unlock(&gdrdrv_live_pins_lock);
}

/* Users who open the file see their own line; root sees everything. */
static int gdrdrv_stats_show(struct seq_file *seq, void *unused)
{
	const kuid_t *opener = &seq->file->f_cred->uid;
	int i;

	if (!uid_eq(*opener, GLOBAL_ROOT_UID) || !capable(CAP_SYS_ADMIN)) {
		gdrdrv_quota_show(seq, opener);
		return 0;
	}
	for (i = 0; i < GDRDRV_COUNTERS; i++)
		seq_printf(seq, "%s: %lld\n", gdrdrv_counter_names[i],
			   atomic64_read(&gdrdrv_counters[i]));
	gdrdrv_quota_show(seq, NULL);
	return 0;
}

/* This and the next have the format of NVIDIA's gdrdrv, whose tests read them. */
static int gdrdrv_params_show(struct seq_file *seq, void *unused)
{
	const bool *use_persistent_mapping = seq->private;

	seq_printf(seq, "Version: %u.%u\n", GDRDRV_ABI_VERSION >> 16, GDRDRV_ABI_VERSION & 0xffff);
	seq_puts(seq, "Built for NVIDIA driver flavor: " GDRDRV_FLAVOR "\n");
	seq_printf(seq, "Use persistent mapping: %s\n", *use_persistent_mapping ? "yes" : "no");
	seq_puts(seq, "dbg_enabled: 0\ninfo_enabled: 0\n");
	return 0;
}

static int gdrdrv_refcount_show(struct seq_file *seq, void *unused)
{
	seq_printf(seq, "%llu\n", gdrdrv_quota_pins());
	return 0;
}

static const char *gdrdrv_type_name(u32 type)
{
	switch (type) {
	case GDRDRV_MAPPING_CACHED:
		return "cached";
	case GDRDRV_MAPPING_DEVICE:
		return "device";
	default:
		return "write-combined";
	}
}

static void gdrdrv_pin_show(struct seq_file *seq, struct gdrdrv_pin *pin)
{
	mutex_lock(&pin->lock);
	seq_printf(seq, "%d %u %u %#llx %llu %s %s %u%s\n", pin->owner.tgid, __kuid_val(pin->uid),
		   pin->handle, pin->pages.va, pin->pages.length,
		   pin->pages.persistent ? "persistent" : "revocable", gdrdrv_type_name(pin->type),
		   pin->mappings, pin->state == GDRDRV_PIN_REVOKED ? " revoked" : "");
	mutex_unlock(&pin->lock);
}

static int gdrdrv_pins_show(struct seq_file *seq, void *unused)
{
	struct gdrdrv_pin *pin;

	seq_puts(seq, "# pid uid handle va bytes lifetime type mappings\n");
	mutex_lock(&gdrdrv_live_pins_lock);
	list_for_each_entry(pin, &gdrdrv_live_pins, live)
		gdrdrv_pin_show(seq, pin);
	mutex_unlock(&gdrdrv_live_pins_lock);
	return 0;
}

int gdrdrv_stats_init(bool *use_persistent_mapping)
{
	struct proc_dir_entry *directory;

	directory = proc_mkdir("driver/gdrdrv", NULL);
	if (!directory)
		return -ENOMEM;
	if (!proc_create_single("stats", 0444, directory, gdrdrv_stats_show) ||
	    !proc_create_single_data("params", 0444, directory, gdrdrv_params_show,
				     use_persistent_mapping) ||
	    !proc_create_single("nv_get_pages_refcount", 0440, directory, gdrdrv_refcount_show) ||
	    !proc_create_single("pins", 0400, directory, gdrdrv_pins_show)) {
		gdrdrv_stats_exit();
		return -ENOMEM;
	}
	return 0;
}

void gdrdrv_stats_exit(void)
{
	remove_proc_subtree("driver/gdrdrv", NULL);
}
