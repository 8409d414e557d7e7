/* SPDX-License-Identifier: MIT */
/* Answers each request of 64 bytes by its complement. For NVRTC, as inbox_kernel.cu. */
#include <gdrpy/channel.cuh>

struct record {
	unsigned long long word[8];
};

/* One thread. */
extern "C" __global__ void serve(const gdr_link *link)
{
	gdrpy::LinkServer server(link);
	record one;

	while (server.next_relaxed(one)) {
		for (int word = 0; word < 8; word++)
			one.word[word] = ~one.word[word];
		server.answer_relaxed(0, one);
		server.release(1);
	}
	server.stop();
}

/* One warp, whose threads each take 8 bytes of a request. */
extern "C" __global__ void serve_warp(const gdr_link *link)
{
	gdrpy::LinkServer server(link);
	uint2 part;

	while (server.next_warp_relaxed(part)) {
		if (gdrpy::lane() < 8)
			server.answer8(0, gdrpy::lane(), make_uint2(~part.x, ~part.y));
		server.release_warp(1);
	}
	if (gdrpy::lane() == 0)
		server.stop();
}
