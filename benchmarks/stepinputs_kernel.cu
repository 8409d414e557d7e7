/* SPDX-License-Identifier: MIT */
/* The first kernel of a step, by one thread: tells the CPU what its inputs hold, if they agree. */

extern "C" __global__ void answer(const int *tokens, const long long *positions, const int *blocks,
				  unsigned long long last, volatile unsigned int *reply)
{
	int token = tokens[0];

	*reply = positions[0] == token && blocks[last] == token ? token : 0;
}
