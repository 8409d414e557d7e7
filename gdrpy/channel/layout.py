"""The layout of channels, inboxes and links in memory, for kernels written in Python."""

#: Byte offsets of the fields of ``struct gdr_channel``, as in gdrpy/channel.h.
RECORD_NBYTES, CAPACITY, RECORDS, TAIL, CLOSED, HEAD, STOPPED = 12, 16, 24, 32, 40, 48, 56

#: Of ``struct gdr_slots``, as in gdrpy/inbox.h.
SLOT_ADDRESS, SLOT_CAPACITY, SLOT_RECORD_NBYTES = SLOTS = 0, 8, 16

#: Of ``struct gdr_inbox``.
INBOX_SLOTS, RESERVED, TAKEN, END = 16, 40, 48, 56

#: Of ``struct gdr_link``, as in gdrpy/channel.h.
LINK_REQUESTS, LINK_ANSWERS, LINK_END, LINK_TAKEN, LINK_STOPPED = 16, 40, 64, 72, 80

#: What an inbox's ``taken`` is at least once its reader is closed.
READER_CLOSED = 1 << 63
