/* SPDX-License-Identifier: MIT */
/*
 * The symbols of libgdrapi.so, for the linker. It is an ELF filter of libgdrapi.so.2: programs that
 * open or link it get the functions there. A wheel cannot hold a symbolic link.
 */
#define NAME(name) void name(void);
#define NAMES                                                                                      \
	NAME(gdr_open)                                                                             \
	NAME(gdr_close)                                                                            \
	NAME(gdr_pin_buffer)                                                                       \
	NAME(gdr_pin_buffer_v2)                                                                    \
	NAME(gdr_unpin_buffer)                                                                     \
	NAME(gdr_get_callback_flag)                                                                \
	NAME(gdr_get_info)                                                                         \
	NAME(gdr_get_info_v2)                                                                      \
	NAME(gdr_map)                                                                              \
	NAME(gdr_map_v2)                                                                           \
	NAME(gdr_unmap)                                                                            \
	NAME(gdr_copy_to_mapping)                                                                  \
	NAME(gdr_copy_from_mapping)                                                                \
	NAME(gdr_runtime_get_version)                                                              \
	NAME(gdr_driver_get_version)                                                               \
	NAME(gdr_get_attribute)                                                                    \
	NAME(gdr_get_mapping_type_string)

#pragma GCC visibility push(default)
NAMES
#pragma GCC visibility pop

/* Never run: the loader looks in libgdrapi.so.2 first. */
#undef NAME
#define NAME(name)                                                                                 \
	void name(void)                                                                            \
	{                                                                                          \
		__builtin_trap();                                                                  \
	}
NAMES
