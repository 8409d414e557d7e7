/* SPDX-License-Identifier: MIT */
/* The supervisor of last closes: runs one target after the other, and looks at what is left. */
#include "closes.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"
#include "standin.h"

#define STUCK_SECONDS 120
#define END_SECONDS 60
#define CHILDREN_MAX (RUNNERS_MAX + HELPERS_MAX)

struct closes *closes;
struct round *round_now;

static const char *const target_names[TARGETS] = {"fork", "rights", "uring",
						  "proc", "kill",   "unload"};

static const char usage[] =
	"usage: closes --target fork|rights|uring|proc|kill|unload|all [--operations N]\n"
	"              [--seconds N] [--seed N] [--module FILE] [--json]\n"
	"\n"
	"Last closes of /dev/gdrdrv by forked children, by sockets in cycles, by rings of "
	"io_uring,\n"
	"beside readers of /proc, by SIGKILL, and while the module is unloaded and loaded again\n"
	"from FILE, which unload and all need. Each target ends after so many operations\n"
	"(unload only once it did unload), or seconds. Exit status 1: a call ended as it may not,\n"
	"or something was left behind.\n";

void closes_fail(const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	dprintf(STDERR_FILENO, "closes: %s: seed %llu, round of seed %#llx: %s\n",
		target_names[closes->target], (unsigned long long)closes->options.seed,
		round_now ? (unsigned long long)round_now->seed : 0ull, text);
	closes->failed = true;
	_exit(1);
}

pid_t fork_or_fail(void)
{
	pid_t child = fork();

	if (child < 0)
		closes_fail("fork: %s", strerror(errno));
	if (child)
		record_event(FORK, 0);
	return child;
}

/* Up to some milliseconds: often nothing, seldom a sleep. */
void linger(struct random *random)
{
	for (uint64_t turns = random_next(random) >> (57 + below(random, 7)); turns--;)
		sched_yield();
	if (once_in(random, 16))
		poll(NULL, 0, 1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void __attribute__((noreturn)) runner_main(unsigned int index, struct random random)
{
	round_now = &closes->rounds[index];
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	guard_install();
	world_reserve();
	while (!closes->stop) {
		run_round(&random);
		/* The module is without users now and then. */
		if (closes->target == TARGET_UNLOAD)
			linger(&random);
	}
	_exit(0);
}

static pid_t start(unsigned int index, unsigned int runners)
{
	struct random random = {closes->options.seed + ((uint64_t)index << 32) +
				((uint64_t)closes->target << 40)};
	pid_t child = fork();

	if (child < 0)
		closes_fail("fork: %s", strerror(errno));
	if (child)
		return child;
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	random_next(&random);
	if (index < runners)
		runner_main(index, random);
	if (closes->target == TARGET_UNLOAD && index == runners)
		unloader(random);
	proc_reader(random);
}

/* What ended must have ended well. */
static bool reap(pid_t *children, unsigned int *left)
{
	bool fine = true;
	int status;
	pid_t ended;

	while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
		for (unsigned int i = 0; i < CHILDREN_MAX; i++) {
			if (children[i] != ended)
				continue;
			children[i] = 0;
			*left -= 1;
			fine = fine && !status;
		}
	}
	return fine;
}

/* As many operations as were asked for, and for TARGET_UNLOAD one unload at least. */
static bool enough(void)
{
	return closes->operations.total >= closes->options.operations &&
	       (closes->target != TARGET_UNLOAD || closes->events.counts[LOAD][0]);
}

/* False: something failed, or made no progress. */
static bool await_operations(pid_t *children, unsigned int *left)
{
	double begin = now(), progress = begin;
	uint64_t total, last = 0;

	while (!enough() && now() - begin < closes->options.seconds) {
		total = closes->operations.total;
		if (!reap(children, left) || closes->failed)
			return false;
		if (total != last)
			progress = now();
		last = total;
		if (now() - progress > STUCK_SECONDS) {
			fprintf(stderr, "closes: %s: seed %llu: no operation for %d s\n",
				target_names[closes->target],
				(unsigned long long)closes->options.seed, STUCK_SECONDS);
			return false;
		}
		poll(NULL, 0, 10);
	}
	return true;
}

static bool end_all(pid_t *children, unsigned int left, bool fine)
{
	double end = now() + END_SECONDS;

	closes->stop = true;
	while (fine && left && now() < end) {
		fine = reap(children, &left) && !closes->failed;
		poll(NULL, 0, 10);
	}
	for (unsigned int i = 0; i < CHILDREN_MAX; i++) {
		if (children[i])
			kill(-children[i], SIGKILL);
	}
	while (waitpid(-1, NULL, 0) > 0)
		;
	return fine && !left;
}

/* Of /proc/driver/gdrdrv: 0 only once nvidia.ko has everything back, and no pin is listed. */
static unsigned long long pins_left(void)
{
	FILE *count = fopen("/proc/driver/gdrdrv/nv_get_pages_refcount", "re");
	FILE *list = fopen("/proc/driver/gdrdrv/pins", "re");
	unsigned long long pins = 0;
	char line[256];

	if (!count || fscanf(count, "%llu", &pins) != 1 || !list ||
	    !fgets(line, sizeof(line), list)) {
		perror("closes: /proc/driver/gdrdrv");
		exit(1);
	}
	while (fgets(line, sizeof(line), list))
		pins++;
	fclose(count);
	fclose(list);
	return pins;
}

static unsigned long long await_no_pins(void)
{
	for (int attempt = 0; attempt < 1000 && pins_left(); attempt++)
		poll(NULL, 0, 10);
	return pins_left();
}

static void report(double seconds, unsigned long long pins, const struct gpustandin_stats *before,
		   const struct gpustandin_stats *left)
{
	const char *name = target_names[closes->target];

	printf("closes: %s, seed %llu: %llu operations in %.1f s\n", name,
	       (unsigned long long)closes->options.seed,
	       (unsigned long long)closes->operations.total, seconds);
	tally_print(&closes->operations, operation_kinds, OPERATIONS);
	printf("closes: and besides\n");
	tally_print(&closes->events, event_kinds, EVENTS);
	printf("closes: left: %llu blocks, %llu pinned pages, %llu pins; %llu callbacks, %llu "
	       "tables lost\n",
	       left->blocks, left->pinned_pages, pins, left->callbacks - before->callbacks,
	       left->lost_tables - before->lost_tables);
	fflush(stdout);
}

/* What remains of a target's run, to be printed last. */
struct outcome {
	bool skipped;
	double seconds;
	unsigned long long pins;
	struct gpustandin_stats before, left;
	struct tally operations, events;
};

static void print_json(const struct outcome *outcomes, const bool *wanted)
{
	const char *comma = "";

	printf("{\"seed\": %llu, \"targets\": {", (unsigned long long)closes->options.seed);
	for (int target = 0; target < TARGETS; target++) {
		const struct outcome *found = &outcomes[target];

		if (!wanted[target])
			continue;
		printf("%s\"%s\": {\"operations\": %llu, \"skipped\": %s, \"seconds\": %.1f, "
		       "\"pinned_pages_left\": %llu, \"pins_left\": %llu, \"callbacks\": %llu, "
		       "\"lost_tables\": %llu, \"results\": ",
		       comma, target_names[target], (unsigned long long)found->operations.total,
		       found->skipped ? "true" : "false", found->seconds, found->left.pinned_pages,
		       found->pins, found->left.callbacks - found->before.callbacks,
		       found->left.lost_tables - found->before.lost_tables);
		tally_print_json(&found->operations, operation_kinds, OPERATIONS);
		printf(", \"events\": ");
		tally_print_json(&found->events, event_kinds, EVENTS);
		printf("}");
		comma = ", ";
	}
	printf("}}\n");
}

static void load_if_gone(void)
{
	int module;

	if (!access("/sys/module/gdrdrv", F_OK))
		return;
	module = open(closes->options.module, O_RDONLY | O_CLOEXEC);
	if (module >= 0)
		load_module(module);
	close(module);
}

static bool run_target(enum target target, struct outcome *outcome)
{
	unsigned int runners = target == TARGET_KILL || target == TARGET_UNLOAD ? 2 : RUNNERS_MAX;
	unsigned int count =
		target == TARGET_PROC || target == TARGET_UNLOAD ? runners + 2 : runners;
	pid_t children[CHILDREN_MAX] = {};
	double begin = now();
	bool fine;

	if (target == TARGET_URING && !uring_is_there()) {
		printf("closes: uring: this kernel has no io_uring\n");
		outcome->skipped = true;
		return true;
	}
	gpu_memory_all_back(&outcome->before);
	memset(&closes->operations, 0, sizeof(closes->operations));
	memset(&closes->events, 0, sizeof(closes->events));
	closes->target = target;
	closes->stop = false;
	for (unsigned int i = 0; i < count; i++)
		children[i] = start(i, runners);
	fine = await_operations(children, &count);
	fine = end_all(children, count, fine);
	if (target == TARGET_UNLOAD)
		load_if_gone();
	if (!gpu_memory_all_back(&outcome->left)) {
		fprintf(stderr, "closes: %s: GPU memory is still held\n", target_names[target]);
		fine = false;
	}
	outcome->pins = await_no_pins();
	outcome->seconds = now() - begin;
	memcpy(&outcome->operations, &closes->operations, sizeof(closes->operations));
	memcpy(&outcome->events, &closes->events, sizeof(closes->events));
	report(outcome->seconds, outcome->pins, &outcome->before, &outcome->left);
	return fine && !outcome->pins;
}

static void __attribute__((noreturn)) refuse(void)
{
	fputs(usage, stderr);
	exit(2);
}

static void choose_targets(const char *name, bool *wanted)
{
	bool all = !strcmp(name, "all"), any = all;

	for (int target = 0; target < TARGETS; target++) {
		wanted[target] = all || !strcmp(name, target_names[target]);
		any = any || wanted[target];
	}
	if (!any)
		refuse();
}

static void parse(int argc, char **argv, struct options *options, bool *wanted)
{
	static const struct option names[] = {
		{"target", required_argument, NULL, 't'},
		{"operations", required_argument, NULL, 'o'},
		{"seconds", required_argument, NULL, 'n'},
		{"seed", required_argument, NULL, 's'},
		{"module", required_argument, NULL, 'm'},
		{"json", no_argument, NULL, 'j'},
		{},
	};
	const char *target = "";
	int option;

	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		uint64_t number = optarg ? strtoull(optarg, NULL, 0) : 0;

		if (option == 't')
			target = optarg;
		else if (option == 'o')
			options->operations = number;
		else if (option == 'n')
			options->seconds = number;
		else if (option == 's')
			options->seed = number;
		else if (option == 'm')
			options->module = optarg;
		else if (option == 'j')
			options->json = true;
		else
			refuse();
	}
	choose_targets(target, wanted);
	if (optind != argc || (wanted[TARGET_UNLOAD] && !options->module))
		refuse();
}

int main(int argc, char **argv)
{
	static struct outcome outcomes[TARGETS];
	struct options options = {.seed = 1, .operations = 10000, .seconds = 600};
	bool wanted[TARGETS], fine = true;

	parse(argc, argv, &options, wanted);
	closes = shared_memory(sizeof(*closes));
	closes->options = options;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int target = 0; target < TARGETS && fine; target++) {
		if (wanted[target])
			fine = run_target(target, &outcomes[target]);
	}
	if (options.json)
		print_json(outcomes, wanted);
	return !fine;
}
