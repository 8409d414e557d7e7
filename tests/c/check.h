/* SPDX-License-Identifier: MIT */
/*
 * The test helper of the C tests. A test is a function without arguments whose name is a sentence:
 *
 *	static void a_copy_of_no_bytes_touches_nothing(void)
 *	{
 *		CHECK_EQ(bytes_touched(), 0);
 *	}
 *
 *	CHECK_MAIN(TEST(a_copy_of_no_bytes_touches_nothing), ...)
 *
 * The first check that fails ends the program with status 1, in a forked child and in a thread too.
 * The program's argument, if any, picks the tests whose name contains it.
 */
#ifndef GDRPY_TESTS_CHECK_H
#define GDRPY_TESTS_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct check_test {
	const char *name;
	void (*run)(void);
};

static const char *check_current = "(no test)";

/* A check of a program's own, made after each of its tests; NULL for none. */
static void (*check_after_each)(void);

static inline void __attribute__((noreturn, format(printf, 3, 4)))
check_fail(const char *file, int line, const char *format, ...)
{
	va_list args;

	fflush(stdout);
	fprintf(stderr, "%s:%d: in %s: ", file, line, check_current);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(1);
}

/* Fail with a message of one's own, as printf. */
#define FAIL(...) check_fail(__FILE__, __LINE__, __VA_ARGS__)

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond))                                                                       \
			FAIL("%s is false", #cond);                                                \
	} while (0)

/* Integers, enums; on failure both values are printed. Pointers: CHECK(a == b). */
#define CHECK_EQ(actual, expected)                                                                 \
	do {                                                                                       \
		long long check_actual = (long long)(actual);                                      \
		long long check_expected = (long long)(expected);                                  \
		if (check_actual != check_expected)                                                \
			FAIL("%s is %lld (%#llx), expected %s = %lld (%#llx)", #actual,            \
			     check_actual, check_actual, #expected, check_expected,                \
			     check_expected);                                                      \
	} while (0)

#define CHECK_STR_EQ(actual, expected)                                                             \
	do {                                                                                       \
		const char *check_actual = (actual);                                               \
		const char *check_expected = (expected);                                           \
		if (strcmp(check_actual, check_expected) != 0)                                     \
			FAIL("%s is \"%s\", expected \"%s\"", #actual, check_actual,               \
			     check_expected);                                                      \
	} while (0)

/* Names the first byte that differs. */
#define CHECK_MEM_EQ(actual, expected, nbytes)                                                     \
	do {                                                                                       \
		const unsigned char *check_actual = (const void *)(actual);                        \
		const unsigned char *check_expected = (const void *)(expected);                    \
		size_t check_nbytes = (nbytes), check_i = 0;                                       \
		if (memcmp(check_actual, check_expected, check_nbytes) == 0)                       \
			break;                                                                     \
		while (check_actual[check_i] == check_expected[check_i])                           \
			check_i++;                                                                 \
		FAIL("%s: byte %zu of %zu is %#x, expected %#x", #actual, check_i, check_nbytes,   \
		     check_actual[check_i], check_expected[check_i]);                              \
	} while (0)

static inline int check_run(int argc, char **argv, const struct check_test *tests, size_t ntests)
{
	size_t run = 0;

	for (size_t i = 0; i < ntests; i++) {
		if (argc > 1 && !strstr(tests[i].name, argv[1]))
			continue;
		check_current = tests[i].name;
		tests[i].run();
		if (check_after_each)
			check_after_each();
		run++;
	}
	if (!run) {
		fprintf(stderr, "%s: no test has \"%s\" in its name\n", argv[0], argv[1]);
		return 1;
	}
	printf("%s: %zu tests passed\n", argv[0], run);
	return 0;
}

#define TEST(function) {#function, function}

#define CHECK_MAIN(...)                                                                            \
	int main(int argc, char **argv)                                                            \
	{                                                                                          \
		static const struct check_test tests[] = {__VA_ARGS__};                            \
		return check_run(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));             \
	}

#endif
