"""Builds gdrpy._core._ffi: the C core's cold calls, seen from Python through cffi in API mode."""

import cffi

CDEF = """
static const char *const GDR_NVRM_TESTED_MIN;
static const char *const GDR_NVRM_TESTED_MAX;

/* error.h */
enum gdr_failure {
    GDR_FAILED_CALL, GDR_FAILED_CUDA, GDR_FAILED_MEMORY, GDR_FAILED_PERMISSION,
    GDR_FAILED_UNAVAILABLE, GDR_FAILED_HANDLE, GDR_FAILED_SIZE, GDR_FAILED_REVOKED, ...
};
struct gdr_error {
    enum gdr_failure failure;
    int number;
    uint32_t status;
    const char *result;
    char call[...];
    char purpose[...];
    char message[...];
};
int gdr_fail_call(struct gdr_error *error, int number, uint32_t status, const char *format, ...);

/* node.h */
static const char *const GDRDRV_NODE;
struct gdr_node {
    int fd;
    uint64_t features;
    bool persistent;
    ...;
};
struct gdr_pin_info {
    uint64_t va;
    uint64_t nbytes;
    ...;
};
struct gdrdrv_event {
    uint64_t handle;
    uint32_t lost;
    ...;
};
bool gdr_node_full(const struct gdr_node *node);
int gdr_node_open(struct gdr_node *node, const char *path);
void gdr_node_close(struct gdr_node *node);
int gdr_node_info(const struct gdr_node *node, uint64_t handle, struct gdr_pin_info *info);
int gdr_node_next_event(const struct gdr_node *node, struct gdrdrv_event *event);
int64_t gdr_share_size(int fd);

/* memory.h */
struct gdr_map {
    void *address;
    ...;
};
enum gdr_mapping_kind { GDR_MAPPING_NONE, ... };
struct gdr_view {
    struct gdr_map map;
    enum gdr_mapping_kind kind;
    ...;
};
struct gdr_memory {
    const struct gdr_backend *backend;
    uint64_t nbytes;
    uint32_t page_size;
    int device;
    char location[...];
    bool persistent;
    uint64_t handle;
    ...;
};
int gdr_memory_map(struct gdr_memory *memory, uint64_t offset, size_t nbytes, bool readonly,
                   struct gdr_view *view, struct gdr_error *error);
int gdr_memory_unmap(struct gdr_memory *memory, struct gdr_view *view, struct gdr_error *error);
bool gdr_memory_revoked(struct gdr_memory *memory);
int gdr_memory_share(struct gdr_memory *memory, bool readonly, struct gdr_error *error);
int gdr_memory_release(struct gdr_memory *memory, struct gdr_error *error);

/* backends.h */
struct gdr_cuda {
    int (*on_bar)(void);
    ...;
};
bool gdr_cuda_find(struct gdr_cuda *cuda);
struct gdr_request {
    uint64_t ptr;
    uint64_t nbytes;
    int fd;
    int device;
    bool revocable;
    bool sigbus;
    const struct gdr_node *node;
    ...;
};
struct gdr_status {
    bool usable;
    char reason[...];
    char remedy[...];
};
struct gdr_backend {
    const char *name;
    void (*status)(const struct gdr_cuda *cuda, int device, const struct gdr_node *node,
                   struct gdr_status *status);
    struct gdr_memory *(*take_export)(int fd, uint64_t nbytes, int device,
                                      struct gdr_error *error);
    ...;
};
const struct gdr_backend *const *gdr_candidates(const struct gdr_cuda *cuda);
const struct gdr_backend *gdr_backend_named(const char *name);
struct gdr_memory *gdr_take(const struct gdr_cuda *cuda, const struct gdr_backend *forced,
                            const struct gdr_request *request, struct gdr_error *error);
void gdr_node_explain(int error, struct gdr_status *status);
void gdr_driver_version(char *version);
bool gdr_driver_tested(const char *version);

/* copy.h */
struct gdr_copy_routine {
    const char *name;
    void (*copy)(void *dst, const void *src, size_t nbytes);
    bool (*supported)(void);
    ...;
};
const struct gdr_copy_routine *gdr_routines_to_wc(void);
const struct gdr_copy_routine *gdr_routines_from_wc(void);
const char *gdr_routine_to_wc(size_t nbytes);
const char *gdr_routine_from_wc(size_t nbytes);
"""

ffi = cffi.FFI()
ffi.cdef(CDEF)
ffi.set_source(
    "gdrpy._core._ffi",
    "".join(f'#include "{name}.h"\n' for name in ("backends/backends", "copy/copy", "rm/abi")),
    include_dirs=["gdrpy/_core", "driver"],
    # For free-threaded Pythons cffi defines the last one in the source, too, which -Werror refuses.
    extra_compile_args=[
        *("-std=gnu11", "-O2", "-fvisibility=hidden", "-pthread"),
        "-U_CFFI_NO_LIMITED_API",
    ],
    extra_link_args=["-ldl", "-pthread"],
    py_limited_api=True,
)
