/* SPDX-License-Identifier: MIT */
/*
 * Takes every record of a channel up to its end, and holds it against a pattern: the 64-bit words
 * of all records, in order, are 0 * ODD, 1 * ODD, 2 * ODD, ... modulo 2**64, so no two are the same.
 * For NVRTC, with -I of gdrpy.include_dir().
 */
#include <gdrpy/channel.cuh>

#define ODD 0x9E3779B97F4A7C15ull

struct verdict {
	unsigned long long records;    /* taken */
	unsigned long long mismatches; /* words that are not what they should be */
	unsigned long long checksum;   /* of all words, added up modulo 2**64 */
	unsigned long long batches;    /* times that records were waited for */
};

static __device__ unsigned long long wrong(unsigned long long found, unsigned long long index)
{
	return found != index * ODD;
}

/* One block of any number of threads; *verdict begins as zeros. */
extern "C" __global__ void verify(const gdr_channel *channel, verdict *result)
{
	gdrpy::ChannelReader reader(channel);
	unsigned int pieces = reader.record_nbytes() / 16;
	unsigned long long mismatches = 0, checksum = 0, batches = 0, first = reader.popped();

	while (unsigned long long n = reader.wait_block()) {
		for (unsigned long long i = threadIdx.x; i < n * pieces; i += blockDim.x) {
			uint4 piece = reader.load16(i / pieces, (unsigned int)(i % pieces));
			unsigned long long low = piece.x | (unsigned long long)piece.y << 32;
			unsigned long long high = piece.z | (unsigned long long)piece.w << 32;
			unsigned long long index = (reader.popped() * pieces + i) * 2;

			mismatches += wrong(low, index) + wrong(high, index + 1);
			checksum += low + high;
		}
		reader.release_block(n);
		batches++;
	}

	atomicAdd(&result->mismatches, mismatches);
	atomicAdd(&result->checksum, checksum);
	if (threadIdx.x == 0) {
		result->records = reader.popped() - first;
		result->batches = batches;
	}
}
