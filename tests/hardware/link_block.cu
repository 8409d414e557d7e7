/* SPDX-License-Identifier: MIT */
/* As benchmarks/link_kernel.cu, by a block of threads that each take 16 bytes of each request. */
#include <gdrpy/channel.cuh>

extern "C" __global__ void serve(const gdr_link *link)
{
	gdrpy::LinkServer server(link);
	unsigned int piece = threadIdx.x;

	while (unsigned long long n = server.wait_block(4)) {
		for (unsigned long long i = 0; i < n && piece < server.record_nbytes() / 16; i++) {
			uint4 one = server.load16(i, piece);

			server.answer16(i, piece, make_uint4(~one.x, ~one.y, ~one.z, ~one.w));
		}
		server.release_block(n);
	}
	if (piece == 0)
		server.stop();
}
