/* SPDX-License-Identifier: MIT */
/*
 * Which accesses a copy makes to its mapping, seen from outside: the mapping's page is
 * inaccessible, so each access faults, is noted, runs alone by single step, and the page is closed
 * again. A copy that makes each byte's access once and in order makes accesses as long as they are
 * apart.
 */
#if defined(__x86_64__)

#define _GNU_SOURCE
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "check.h"
#include "copy/copy.h"

#define PAGE 4096
#define LINE 64
#define LONGEST 150
#define PAGE_FAULT_WRITE 2 /* in the error code of a page fault */
#define TRAP_FLAG 0x100	   /* in EFLAGS: trap after the next instruction */
#define MOST_ACCESSES 512

struct access {
	uintptr_t at;
	bool is_write;
};

static unsigned char *mapping_page;
static unsigned char host[LONGEST + LINE];
static struct access accesses[MOST_ACCESSES];
static size_t naccesses;

static void note_access_and_step(int signal, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
	uintptr_t at = (uintptr_t)info->si_addr;

	(void)signal;
	if (at - (uintptr_t)mapping_page >= PAGE || naccesses == MOST_ACCESSES)
		FAIL("access %zu, at %p, is outside of the mapping", naccesses, info->si_addr);
	accesses[naccesses++] = (struct access){at, regs[REG_ERR] & PAGE_FAULT_WRITE};
	mprotect(mapping_page, PAGE, PROT_READ | PROT_WRITE);
	regs[REG_EFL] |= TRAP_FLAG;
}

static void close_page_again(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)info;
	mprotect(mapping_page, PAGE, PROT_NONE);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

__attribute__((constructor)) static void set_up(void)
{
	struct sigaction fault = {.sa_sigaction = note_access_and_step, .sa_flags = SA_SIGINFO};
	struct sigaction trap = {.sa_sigaction = close_page_again, .sa_flags = SA_SIGINFO};

	mapping_page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mapping_page != MAP_FAILED);
	CHECK_EQ(sigaction(SIGSEGV, &fault, NULL), 0);
	CHECK_EQ(sigaction(SIGTRAP, &trap, NULL), 0);
}

static void trace(core_copy_fn copy, void *dst, const void *src, size_t nbytes)
{
	naccesses = 0;
	CHECK_EQ(mprotect(mapping_page, PAGE, PROT_NONE), 0);
	copy(dst, src, nbytes);
	CHECK_EQ(mprotect(mapping_page, PAGE, PROT_READ | PROT_WRITE), 0);
}

static bool is_natural(uintptr_t at, size_t nbytes)
{
	return nbytes && !(nbytes & (nbytes - 1)) && at % nbytes == 0;
}

/* The traced copy took its range once, in order, each access naturally aligned and not wider. */
static bool accesses_are_words(uintptr_t start, size_t nbytes, bool writes, size_t widest)
{
	uintptr_t next = start;

	for (size_t i = 0; i < naccesses; i++) {
		uintptr_t end = i + 1 < naccesses ? accesses[i + 1].at : start + nbytes;

		if (accesses[i].at != next || accesses[i].is_write != writes ||
		    !is_natural(next, end - next) || end - next > widest)
			return false;
		next = end;
	}
	return next == start + nbytes;
}

/* The traced copy wrote its range once and in order, and no store straddles two lines. */
static bool stores_stay_in_lines(uintptr_t start, size_t nbytes)
{
	uintptr_t next = start;

	for (size_t i = 0; i < naccesses; i++) {
		uintptr_t end = i + 1 < naccesses ? accesses[i + 1].at : start + nbytes;

		if (accesses[i].at != next || !accesses[i].is_write || end <= next ||
		    next / LINE != (end - 1) / LINE)
			return false;
		next = end;
	}
	return next == start + nbytes;
}

/* The traced copy only read, and only lines that the range touches. */
static bool loads_stay_in_lines(uintptr_t start, size_t nbytes)
{
	uintptr_t first_line = start / LINE, last_line = (start + nbytes - 1) / LINE;

	for (size_t i = 0; i < naccesses; i++)
		if (accesses[i].is_write || accesses[i].at / LINE < first_line ||
		    accesses[i].at / LINE > last_line)
			return false;
	return naccesses > 0;
}

static enum core_mapping_kind public_type;

static void public_to(void *dst, const void *src, size_t nbytes)
{
	core_copy_to(public_type, dst, src, nbytes);
}

static void public_from(void *dst, const void *src, size_t nbytes)
{
	core_copy_from(public_type, dst, src, nbytes);
}

static void a_device_mapping_sees_only_natural_words_of_at_most_eight_bytes(void)
{
	public_type = CORE_MAPPING_DEVICE;
	for (size_t nbytes = 0; nbytes <= 3 * 8; nbytes++) {
		for (size_t off = 0; off < 16 * 8; off++) {
			unsigned char *mapping = mapping_page + off / 8;
			uintptr_t start = (uintptr_t)mapping;

			trace(public_to, mapping, host + off % 8, nbytes);
			CHECK(accesses_are_words(start, nbytes, true, 8));
			trace(public_from, host + off % 8, mapping, nbytes);
			CHECK(accesses_are_words(start, nbytes, false, 8));
		}
	}
}

static void a_natural_word_is_one_access(void)
{
	static const enum core_mapping_kind types[] = {CORE_MAPPING_WC, CORE_MAPPING_CACHED,
						       CORE_MAPPING_DEVICE};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		public_type = types[i];
		for (size_t nbytes = 1; nbytes <= 8; nbytes *= 2) {
			for (size_t off = 0; off < LINE; off += nbytes) {
				trace(public_to, mapping_page + off, host + 1, nbytes);
				CHECK_EQ(naccesses, 1);
				CHECK(accesses[0].is_write);
				trace(public_from, host + 1, mapping_page + off, nbytes);
				CHECK_EQ(naccesses, 1);
				CHECK(!accesses[0].is_write);
			}
		}
	}
}

static void a_routine_to_wc_stores_in_order_and_never_reads_or_straddles_a_line(void)
{
	for (const struct core_copy_routine *to = core_routines_to_wc; to->name; to++) {
		if (!to->supported())
			continue;
		for (size_t nbytes = 0; nbytes <= LONGEST; nbytes++) {
			for (size_t off = 0; off < LINE; off += 1 + nbytes / 16) {
				unsigned char *mapping = mapping_page + off;

				trace(to->copy, mapping, host + nbytes % 7, nbytes);
				if (!stores_stay_in_lines((uintptr_t)mapping, nbytes))
					FAIL("%s, %zu bytes at line + %zu", to->name, nbytes, off);
			}
		}
	}
}

static void a_routine_from_wc_only_reads_the_lines_of_its_range(void)
{
	for (const struct core_copy_routine *from = core_routines_from_wc; from->name; from++) {
		if (!from->supported())
			continue;
		for (size_t nbytes = 1; nbytes <= LONGEST; nbytes++) {
			for (size_t off = 0; off < LINE; off += 1 + nbytes / 16) {
				unsigned char *mapping = mapping_page + LINE + off;

				trace(from->copy, host + nbytes % 7, mapping, nbytes);
				if (!loads_stay_in_lines((uintptr_t)mapping, nbytes))
					FAIL("%s, %zu bytes at line + %zu", from->name, nbytes,
					     off);
			}
		}
	}
}

static void *(*volatile libc_memcpy)(void *dst, const void *src, size_t nbytes) = memcpy;

static void plain_memcpy(void *dst, const void *src, size_t nbytes)
{
	libc_memcpy(dst, src, nbytes);
}

static void the_trace_sees_through_a_plain_memcpy(void)
{
	trace(plain_memcpy, mapping_page + 1, host, 13);
	CHECK(!accesses_are_words((uintptr_t)mapping_page + 1, 13, true, 8));
	trace(plain_memcpy, mapping_page + 1, host, LINE + 13);
	CHECK(!stores_stay_in_lines((uintptr_t)mapping_page + 1, LINE + 13));
	CHECK(!loads_stay_in_lines((uintptr_t)mapping_page + 1, LINE + 13));
}

CHECK_MAIN(TEST(a_device_mapping_sees_only_natural_words_of_at_most_eight_bytes),
	   TEST(a_natural_word_is_one_access),
	   TEST(a_routine_to_wc_stores_in_order_and_never_reads_or_straddles_a_line),
	   TEST(a_routine_from_wc_only_reads_the_lines_of_its_range),
	   TEST(the_trace_sees_through_a_plain_memcpy))

#else

#include "check.h"

/* Single steps and the direction of a fault are x86's way to look; others have no such program. */
int main(int argc, char **argv)
{
	(void)argc;
	printf("%s: not run, this test is for x86_64\n", argv[0]);
	return 0;
}

#endif
