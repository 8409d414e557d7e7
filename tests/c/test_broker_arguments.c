/* SPDX-License-Identifier: MIT */
/* What the broker's library refuses before it asks a broker, and the texts of its errors. */
#include "brokerlib/connection.h"
#include "check.h"

#include <stdio.h>

static struct gdrpy_broker *broker;

/* Of a broker that is away: an argument that may be sent is told by UNAVAILABLE. */
static int allocate(struct gdrpy_new_region wanted)
{
	struct gdrpy_region *region;
	int result;

	wanted.nbytes = 4096;
	if (!wanted.device)
		wanted.device = "cpu";
	CHECK_EQ(broker_new("/none/broker.sock", 1000, 0, &broker), 0);
	result = gdrpy_broker_allocate(broker, &wanted, 0, &region);
	gdrpy_broker_close(broker);
	return result;
}

static void a_device_that_is_too_long_or_too_high_is_refused(void)
{
	static const char *const fit[] = {"0", "65535", "cpu",
					  "GPU-00000000-0000-0000-0000-000000000000"};
	static const char *const wrong[] = {"", "65536", "99999999999999999999", "\xff",
					    "GPU-0000000000000000000000000000000000000"};

	for (size_t i = 0; i < 5; i++) {
		CHECK_EQ(allocate((struct gdrpy_new_region){.device = wrong[i]}),
			 GDRPY_BROKER_INVALID_REQUEST);
		CHECK(strstr(gdrpy_broker_error(), "allocate: device must be a GPU's UUID"));
	}
	for (size_t i = 0; i < 4; i++)
		CHECK_EQ(allocate((struct gdrpy_new_region){.device = fit[i]}),
			 GDRPY_BROKER_UNAVAILABLE);
}

static void metadata_are_up_to_4096_bytes_and_somewhere(void)
{
	static const unsigned char bytes[4097];

	CHECK_EQ(allocate((struct gdrpy_new_region){.metadata = bytes, .metadata_nbytes = 4096}),
		 GDRPY_BROKER_UNAVAILABLE);
	CHECK_EQ(allocate((struct gdrpy_new_region){.metadata = bytes, .metadata_nbytes = 4097}),
		 GDRPY_BROKER_INVALID_REQUEST);
	CHECK(strstr(gdrpy_broker_error(),
		     "allocate: metadata must be up to 4096 bytes, not 4097"));
	CHECK_EQ(allocate((struct gdrpy_new_region){.metadata_nbytes = 3}),
		 GDRPY_BROKER_INVALID_REQUEST);
	CHECK(strstr(gdrpy_broker_error(),
		     "allocate: metadata must be up to 4096 bytes, not 3 at"));
}

static void a_mode_has_permission_bits_alone(void)
{
	CHECK_EQ(allocate((struct gdrpy_new_region){.mode = 0666}), GDRPY_BROKER_UNAVAILABLE);
	CHECK_EQ(allocate((struct gdrpy_new_region){.mode = 0700}), GDRPY_BROKER_INVALID_REQUEST);
	CHECK_STR_EQ(gdrpy_broker_error(),
		     "allocate: mode must be permission bits of at most 0666, like 0640, not 0700");
}

static void what_is_reserved_is_zero(void)
{
	CHECK_EQ(allocate((struct gdrpy_new_region){.reserved = {[7] = 1}}),
		 GDRPY_BROKER_INVALID_REQUEST);
	CHECK_STR_EQ(gdrpy_broker_error(),
		     "allocate: `reserved` must be 0: clear the structure first");
}

static void an_error_shows_the_text_in_an_argument_up_to_a_limit(void)
{
	char quoted[96], text[100];

	memset(text, 'a', sizeof(text));
	memcpy(text + 79, "\xc3\xbc", 3); /* a character that the limit cuts */
	CHECK_STR_EQ(broker_quote(quoted, "a\xc3\xbc"), "'a\xc3\xbc'");
	CHECK_STR_EQ(broker_quote(quoted, "a\xff\xc3\xbc"), "'a'...");
	CHECK_STR_EQ(broker_quote(quoted, NULL), "NULL");
	CHECK_EQ(strlen(broker_quote(quoted, text)), 79 + strlen("''..."));
}

static void an_error_is_text_wherever_it_is_cut(void)
{
	char text[2048];

	for (size_t before = 0; before < 4; before++) {
		memset(text, 0, sizeof(text));
		memset(text, 'a', before);
		for (size_t i = before; i + 4 < sizeof(text); i += 4)
			memcpy(text + i, "\xf0\x9f\x98\x80", 4);
		broker_fail(GDRPY_BROKER_TIMEOUT, "%s", text);
		CHECK(broker_is_text(gdrpy_broker_error(), strlen(gdrpy_broker_error())));
		CHECK(strlen(gdrpy_broker_error()) > 1000);
		CHECK(!strchr(gdrpy_broker_error(), '?'));
	}
	broker_fail(GDRPY_BROKER_TIMEOUT, "no broker at %s: start one", "/tmp/\xff\xc3/socket");
	CHECK_STR_EQ(gdrpy_broker_error(), "no broker at /tmp/?\?/socket: start one");
}

CHECK_MAIN(TEST(a_device_that_is_too_long_or_too_high_is_refused),
	   TEST(metadata_are_up_to_4096_bytes_and_somewhere),
	   TEST(a_mode_has_permission_bits_alone), TEST(what_is_reserved_is_zero),
	   TEST(an_error_shows_the_text_in_an_argument_up_to_a_limit),
	   TEST(an_error_is_text_wherever_it_is_cut))
