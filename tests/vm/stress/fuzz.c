/* SPDX-License-Identifier: MIT */
/* The fuzzer's phases: each a process, so that what it leaves is taken away with it. */
#include "fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "guard.h"
#include "standin.h"

/* A phase's calls, of all its threads and the stranger. */
#define PHASE_CALLS 5000

struct fuzz *fuzz;
struct phase *phase;

static const char usage[] = "usage: fuzz [--seed N] [--calls N] [--threads N] [--json]\n"
			    "\n"
			    "Calls on /dev/gdrdrv, good and bad, in phases of 5000; the n-th phase "
			    "has the seed N + n, so\n"
			    "it is repeated by --seed with its number and --calls 1. Exit status "
			    "1: a call ended as it\n"
			    "may not, or something was left behind.\n";

/* EFAULT: the structure's address. EINVAL: what is in it, or a handle that lives no more. */
const struct kind call_kinds[CALLS] = {
	[CALL_PIN] = {"pin", .allowed = {EFAULT, EINVAL}},
	[CALL_PIN_V2] = {"pin_v2", .allowed = {EFAULT, EINVAL}},
	[CALL_PIN_V3] = {"pin_v3", .allowed = {EFAULT, EINVAL, EOPNOTSUPP}},
	[CALL_UNPIN] = {"unpin", .allowed = {EFAULT, EINVAL}},
	[CALL_GET_CB_FLAG] = {"get_cb_flag", .allowed = {EFAULT, EINVAL}},
	[CALL_GET_INFO] = {"get_info", .allowed = {EFAULT, EINVAL}},
	[CALL_GET_INFO_V2] = {"get_info_v2", .allowed = {EFAULT, EINVAL}},
	[CALL_GET_ATTR] = {"get_attr", .allowed = {EFAULT, EINVAL}},
	[CALL_SET_TYPE] = {"set_type", .allowed = {EFAULT, EINVAL, EBUSY, EOPNOTSUPP}},
	[CALL_GET_VERSION] = {"get_version", .allowed = {EFAULT}},
	[CALL_FEATURES] = {"features", .allowed = {EFAULT, EINVAL}},
	[CALL_SHARE] = {"share", .allowed = {EFAULT, EINVAL}},
	[CALL_UNKNOWN_COMMAND] = {"unknown_command", .must_fail = true, .allowed = {ENOTTY}},
	[CALL_OTHER_TYPE] = {"other_type", .must_fail = true, .allowed = {EINVAL}},
	/* A number that is no descriptor's yet stands for /dev/null. */
	[CALL_SHARE_IOCTL] = {"share_ioctl", .must_fail = true, .allowed = {ENOTTY}},
	[CALL_OPEN] = {"open"},
	[CALL_MMAP_NODE] = {"mmap_node",
			    .allowed = {EINVAL, EACCES, ENOMEM, EOVERFLOW, EOPNOTSUPP}},
	[CALL_MMAP_SHARE] = {"mmap_share",
			     .allowed = {EINVAL, EACCES, ENOMEM, EOVERFLOW, EOPNOTSUPP, ENODEV}},
	[CALL_MUNMAP] = {"munmap", .allowed = {EINVAL}},
	[CALL_MREMAP] = {"mremap", .allowed = {EINVAL, EFAULT}},
	[CALL_MPROTECT] = {"mprotect", .allowed = {EINVAL, EACCES, ENOMEM}},
	[CALL_TOUCH] = {"touch", .allowed = {RESULT_SIGBUS, RESULT_SIGSEGV}},
	[CALL_READ] = {"read", .allowed = {EINVAL, EAGAIN, EFAULT, ESPIPE}},
	[CALL_POLL] = {"poll"},
	[CALL_MISUSE] = {"misuse", .allowed = {EINVAL, ESPIPE, ENXIO, ENODEV, EFAULT, EBADF}},
	[CALL_FREE_MEMORY] = {"free_memory", .allowed = {EINVAL}},
	[CALL_PLACE_MEMORY] = {"place_memory"},
};

#define STRANGER(call, its_name) [call] = {its_name, .must_fail = true, .allowed = {EACCES}}

/* With somebody else's node nothing can be done; with a share, what any holder may. */
const struct kind stranger_kinds[CALLS] = {
	STRANGER(CALL_PIN, "pin"),
	STRANGER(CALL_PIN_V2, "pin_v2"),
	STRANGER(CALL_PIN_V3, "pin_v3"),
	STRANGER(CALL_UNPIN, "unpin"),
	STRANGER(CALL_GET_CB_FLAG, "get_cb_flag"),
	STRANGER(CALL_GET_INFO, "get_info"),
	STRANGER(CALL_GET_INFO_V2, "get_info_v2"),
	STRANGER(CALL_GET_ATTR, "get_attr"),
	STRANGER(CALL_SET_TYPE, "set_type"),
	STRANGER(CALL_GET_VERSION, "get_version"),
	STRANGER(CALL_FEATURES, "features"),
	STRANGER(CALL_SHARE, "share"),
	STRANGER(CALL_UNKNOWN_COMMAND, "unknown_command"),
	[CALL_OTHER_TYPE] = {"other_type", .must_fail = true, .allowed = {EINVAL}},
	[CALL_SHARE_IOCTL] = {"share_ioctl", .must_fail = true, .allowed = {ENOTTY}},
	[CALL_OPEN] = {"open"},
	[CALL_MMAP_NODE] = {"mmap_node", .must_fail = true,
			    .allowed = {EINVAL, EACCES, ENOMEM, EOVERFLOW, EOPNOTSUPP}},
	[CALL_MMAP_SHARE] = {"mmap_share",
			     .allowed = {EINVAL, EACCES, ENOMEM, EOVERFLOW, EOPNOTSUPP, ENODEV}},
	[CALL_MUNMAP] = {"munmap", .allowed = {EINVAL}},
	[CALL_MREMAP] = {"mremap", .allowed = {EINVAL, EFAULT}},
	[CALL_MPROTECT] = {"mprotect", .allowed = {EINVAL, EACCES, ENOMEM}},
	[CALL_TOUCH] = {"touch", .allowed = {RESULT_SIGBUS, RESULT_SIGSEGV}},
	[CALL_READ] = {"read", .allowed = {EINVAL, EACCES, EFAULT, ESPIPE}},
	[CALL_POLL] = {"poll"},
	[CALL_MISUSE] = {"misuse", .allowed = {EINVAL, ESPIPE, ENXIO, ENODEV, EFAULT, EBADF}},
	[CALL_FREE_MEMORY] = {"free_memory"},
	[CALL_PLACE_MEMORY] = {"place_memory"},
};

static void __attribute__((noreturn)) give_up(const char *what)
{
	fprintf(stderr, "fuzz: seed %llu: %s: %s\n", phase ? (unsigned long long)phase->seed : 0ull,
		what, strerror(errno));
	exit(1);
}

void install_fd(int fd, int at)
{
	if (dup3(fd, at, O_CLOEXEC) < 0)
		give_up("dup3");
	close(fd);
}

void record(const struct thread *thread, enum call call, int result)
{
	const struct kind *kind = thread->stranger ? &stranger_kinds[call] : &call_kinds[call];

	tally_add(thread->stranger ? &fuzz->strangers : &fuzz->own, call, result);
	if (kind_allows(kind, result))
		return;
	dprintf(STDERR_FILENO, "fuzz: seed %llu%s: %s: %s\n", (unsigned long long)phase->seed,
		thread->stranger ? ", a stranger" : "", kind->name, result_name(result));
	_exit(1);
}

static char *map_or_give_up(void *at, size_t size, int protection, int flags, int fd)
{
	char *mapped = mmap(at, size, protection, flags, fd, 0);

	if (mapped == MAP_FAILED)
		give_up("mmap");
	return mapped;
}

static char *reserve(size_t size)
{
	const uintptr_t mask = GDRDRV_GPU_PAGE_SIZE - 1;
	char *room = map_or_give_up(NULL, size + mask + 1, PROT_NONE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);

	return (char *)(((uintptr_t)room + mask) & ~mask);
}

static struct window make_window(void)
{
	int fd = memfd_create("window", MFD_CLOEXEC);
	struct window window;

	if (fd < 0 || ftruncate(fd, 2 * CPU_PAGE))
		give_up("memfd");
	window.pages = reserve(3 * CPU_PAGE);
	map_or_give_up(window.pages, 2 * CPU_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		       fd);
	mprotect(window.pages + CPU_PAGE, CPU_PAGE, PROT_READ);
	window.behind = map_or_give_up(NULL, 2 * CPU_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
	close(fd);
	return window;
}

static void make_memory(unsigned int index)
{
	int fd = gpu_memory_new(BLOCK_SIZE, index);

	if (fd < 0)
		give_up("GPU memory");
	phase->blocks[index] = reserve(BLOCK_SIZE);
	install_fd(fd, VIEW_FD + index);
	if (gpu_memory_place(VIEW_FD + index, (uintptr_t)phase->blocks[index]))
		give_up("GPU memory");
}

/* The shares that the stranger inherits. */
static void make_share(unsigned int index)
{
	unsigned int node = index % NODES;
	struct gdrdrv_pin_v3 pin = {
		.size = sizeof(pin),
		.flags = index % 2 ? GDRDRV_PIN_V3_REVOCABLE : GDRDRV_PIN_V3_PERSISTENT,
		.addr = (uintptr_t)phase->blocks[index % BLOCKS],
		.length = BLOCK_SIZE,
	};
	struct gdrdrv_share share = {.size = sizeof(share), .flags = index / 2 % 2};

	if (ioctl(NODE_FD + node, GDRDRV_IOC_PIN_V3, &pin))
		give_up("pin");
	share.handle = pin.handle;
	if (ioctl(NODE_FD + node, GDRDRV_IOC_SHARE, &share))
		give_up("share");
	phase->handles[node][index] = pin.handle;
	install_fd(share.fd, SHARE_FD + index);
}

static void set_up(void)
{
	for (int i = 0; i < NODES; i++) {
		int fd = open(GDRDRV_NODE, O_RDWR | O_CLOEXEC | O_NONBLOCK);

		if (fd < 0)
			give_up(GDRDRV_NODE);
		install_fd(fd, NODE_FD + i);
	}
	for (unsigned int i = 0; i < BLOCKS; i++)
		make_memory(i);
	for (unsigned int i = 0; i < SHARES; i++)
		make_share(i);
}

struct job {
	struct thread thread;
	pthread_t id;
	unsigned int calls;
};

static void *thread_main(void *argument)
{
	struct job *job = argument;

	for (unsigned int i = 0; i < job->calls; i++)
		call_something(&job->thread);
	return NULL;
}

static void prepare_job(struct job *job, struct random *seeds, unsigned int calls)
{
	job->calls = calls;
	job->thread.random.state = random_next(seeds);
	job->thread.window = make_window();
	for (int i = 0; i < SLOTS; i++)
		job->thread.slots[i] = reserve(BLOCK_SIZE);
}

static void __attribute__((noreturn)) phase_main(uint64_t seed, unsigned int threads)
{
	static struct job jobs[THREADS_MAX + 1];
	struct job *stranger = &jobs[threads];
	struct random seeds = {seed};
	pid_t child;
	int status;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	guard_install();
	phase = shared_memory(sizeof(*phase));
	phase->seed = seed;
	set_up();
	for (unsigned int i = 0; i <= threads; i++)
		prepare_job(&jobs[i], &seeds, PHASE_CALLS / (threads + 1));
	stranger->thread.stranger = true;

	child = fork();
	if (child < 0)
		give_up("fork");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		thread_main(stranger);
		_exit(0);
	}
	for (unsigned int i = 0; i < threads; i++) {
		if (pthread_create(&jobs[i].id, NULL, thread_main, &jobs[i]))
			give_up("pthread_create");
	}
	for (unsigned int i = 0; i < threads; i++)
		pthread_join(jobs[i].id, NULL);
	waitpid(child, &status, 0);
	_exit(status ? 1 : 0);
}

static bool run_phase(uint64_t seed, unsigned int threads)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		give_up("fork");
	if (!child)
		phase_main(seed, threads);
	waitpid(child, &status, 0);
	if (!status)
		return true;
	fprintf(stderr, "fuzz: the phase of seed %llu ended with status %#x\n",
		(unsigned long long)seed, status);
	return false;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	static const struct option names[] = {
		{"seed", required_argument, NULL, 's'},
		{"calls", required_argument, NULL, 'c'},
		{"threads", required_argument, NULL, 'n'},
		{"json", no_argument, NULL, 'j'},
		{},
	};
	unsigned long long seed = 1, calls = 20000;
	unsigned int threads = 3, phases = 0;
	bool json = false, fine = true;
	struct gpustandin_stats left;
	double start = now(), seconds;
	int option;

	while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
		if (option == 's')
			seed = strtoull(optarg, NULL, 0);
		else if (option == 'c')
			calls = strtoull(optarg, NULL, 0);
		else if (option == 'n')
			threads = strtoul(optarg, NULL, 0);
		else if (option == 'j')
			json = true;
		else
			threads = 0;
	}
	if (optind != argc || !threads || threads > THREADS_MAX) {
		fputs(usage, stderr);
		return 2;
	}

	fuzz = shared_memory(sizeof(*fuzz));
	while (fine && fuzz->own.total + fuzz->strangers.total < calls) {
		if (phases % 10 == 0) {
			printf("fuzz: phases of seeds from %llu on\n", seed + phases);
			fflush(stdout);
		}
		fine = run_phase(seed + phases++, threads);
	}
	seconds = now() - start;
	fine = gpu_memory_all_back(&left) && fine;

	printf("fuzz: seeds %llu to %llu, %u threads: %llu calls in %.1f s\n", seed,
	       seed + phases - 1, threads,
	       (unsigned long long)(fuzz->own.total + fuzz->strangers.total), seconds);
	tally_print(&fuzz->own, call_kinds, CALLS);
	printf("fuzz: and by strangers, who inherited the descriptors\n");
	tally_print(&fuzz->strangers, stranger_kinds, CALLS);
	printf("fuzz: left: %llu blocks, %llu pinned pages; %llu callbacks\n",
	       (unsigned long long)left.blocks, (unsigned long long)left.pinned_pages,
	       (unsigned long long)left.callbacks);
	if (json) {
		printf("{\"seed\": %llu, \"phases\": %u, \"threads\": %u, \"calls\": %llu, "
		       "\"seconds\": %.1f, \"pinned_pages_left\": %llu, \"lost_tables\": %llu, "
		       "\"results\": ",
		       seed, phases, threads,
		       (unsigned long long)(fuzz->own.total + fuzz->strangers.total), seconds,
		       (unsigned long long)left.pinned_pages, (unsigned long long)left.lost_tables);
		tally_print_json(&fuzz->own, call_kinds, CALLS);
		printf(", \"strangers\": ");
		tally_print_json(&fuzz->strangers, stranger_kinds, CALLS);
		printf("}\n");
	}
	return !fine;
}
