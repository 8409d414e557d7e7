"""The layout of a channel in memory, for consumers written in Python."""

#: Byte offsets of the fields of ``struct gdr_channel``, as in gdrpy/channel.h.
RECORD_NBYTES, CAPACITY, RECORDS, TAIL, CLOSED, HEAD, STOPPED = 12, 16, 24, 32, 40, 48, 56
