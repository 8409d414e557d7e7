/* SPDX-License-Identifier: MIT */
/*
 * Takes every record of a channel up to its end, and holds it against a pattern, as
 * channel_kernel.cu does; but it tells of each batch before it releases that, in memory that
 * outlives its process. One thread. For NVRTC, with -I of gdrpy.include_dir().
 */
#include <gdrpy/channel.cuh>

#define ODD 0x9E3779B97F4A7C15ull

struct found {
	unsigned long long taken; /* records, some perhaps again after a kill */
	unsigned long long wrong; /* records with a word that is not what it should be */
	unsigned long long ends;  /* ends of the channel that were seen */
};

extern "C" __global__ void verify(const gdr_channel *channel, volatile found *found)
{
	gdrpy::ChannelReader reader(channel);
	unsigned int pieces = reader.record_nbytes() / 16;

	while (unsigned long long n = reader.wait()) {
		unsigned long long wrong = 0;

		for (unsigned long long i = 0; i < n; i++) {
			unsigned long long index = (reader.popped() + i) * pieces * 2;
			bool differs = false;

			for (unsigned int piece = 0; piece < pieces; piece++, index += 2) {
				uint4 value = reader.load16(i, piece);

				differs |= (value.x | (unsigned long long)value.y << 32) !=
					   index * ODD;
				differs |= (value.z | (unsigned long long)value.w << 32) !=
					   (index + 1) * ODD;
			}
			wrong += differs;
		}
		found->taken += n;
		found->wrong += wrong;
		__threadfence_system();
		reader.release(n);
	}
	found->ends++;
}
