"""The layout of channels, inboxes and links in memory, for kernels written in Python."""

#: Byte offsets of the fields of ``struct gdr_channel``, as in gdrpy/channel.h.
RECORD_NBYTES, CAPACITY, RECORDS, TAIL, CLOSED, HEAD, STOPPED = 12, 16, 24, 32, 40, 48, 56

#: Of ``struct gdr_slots``, as in gdrpy/inbox.h; and of these in an inbox and in a link.
SLOT_ADDRESS, SLOT_CAPACITY, SLOT_RECORD_NBYTES = 0, 8, 16
INBOX_SLOTS, LINK_ANSWERS = 16, 64

#: Of the other fields of ``struct gdr_inbox``.
RESERVED, TAKEN, END = 40, 48, 56

#: What an inbox's ``taken`` is at least once its reader is closed.
READER_CLOSED = 1 << 63
