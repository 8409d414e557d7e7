"""Builds gdrpy._core._ffi: the C core's infrequent calls, through cffi in API mode."""

import cffi

CDEF = """
static const char *const CORE_RM_TESTED_MIN;
static const char *const CORE_RM_TESTED_MAX;

/* error.h */
enum core_failure {
    CORE_FAILED_CALL, CORE_FAILED_CUDA, CORE_FAILED_MEMORY, CORE_FAILED_PERMISSION,
    CORE_FAILED_UNAVAILABLE, CORE_FAILED_HANDLE, CORE_FAILED_SIZE, CORE_FAILED_REVOKED, ...
};
struct core_error {
    enum core_failure failure;
    int number;
    uint32_t status;
    const char *result;
    char call[...];
    char purpose[...];
    char message[...];
};
int core_fail_call(struct core_error *error, int number, uint32_t status, const char *format, ...);

/* node.h */
static const char *const GDRDRV_NODE;
struct core_node {
    int fd;
    uint64_t features;
    bool persistent;
    ...;
};
struct core_pin_info {
    uint64_t va;
    uint64_t nbytes;
    ...;
};
struct gdrdrv_event {
    uint64_t handle;
    uint32_t lost;
    ...;
};
bool core_node_full(const struct core_node *node);
int core_node_open(struct core_node *node, const char *path);
void core_node_close(struct core_node *node);
int core_node_info(const struct core_node *node, uint64_t handle, struct core_pin_info *info);
int core_node_next_event(const struct core_node *node, struct gdrdrv_event *event);
int64_t core_share_size(int fd);

/* memory.h */
struct core_map {
    void *address;
    ...;
};
enum core_mapping_kind { CORE_MAPPING_NONE, ... };
struct core_view {
    struct core_map map;
    enum core_mapping_kind kind;
    ...;
};
struct core_memory {
    const struct core_backend *backend;
    uint64_t buffer_id;
    uint64_t nbytes;
    uint32_t page_size;
    int device;
    char location[...];
    bool persistent;
    bool readonly;
    uint64_t handle;
    ...;
};
int core_memory_map(struct core_memory *memory, uint64_t offset, size_t nbytes, bool readonly,
                   struct core_view *view, struct core_error *error);
int core_memory_unmap(struct core_memory *memory, struct core_view *view, struct core_error *error);
bool core_memory_revoked(struct core_memory *memory);
int core_memory_share(struct core_memory *memory, bool readonly, struct core_error *error);
int core_memory_release(struct core_memory *memory, struct core_error *error);

/* backends.h */
struct core_cuda {
    int (*cuMemExportToShareableHandle)(void *, uint64_t, int, unsigned long long);
    int (*on_bar)(void);
    ...;
};
bool core_cuda_find(struct core_cuda *cuda);
struct core_request {
    uint64_t ptr;
    uint64_t nbytes;
    int fd;
    int device;
    bool revocable;
    bool sigbus;
    const struct core_node *node;
    ...;
};
struct core_status {
    bool usable;
    char reason[...];
    char remedy[...];
};
struct core_backend {
    const char *name;
    void (*status)(const struct core_cuda *cuda, int device, const struct core_node *node,
                   struct core_status *status);
    ...;
};
const struct core_backend *const *core_candidates(const struct core_cuda *cuda);
const struct core_backend *core_backend_named(const char *name);
bool core_take_to(struct core_memory **place, const struct core_cuda *cuda,
                  const struct core_backend *forced, const struct core_request *request,
                  struct core_error *error);
bool core_take_export_to(struct core_memory **place, const struct core_backend *backend, int fd,
                         uint64_t nbytes, int device, struct core_error *error);
int core_release_from(struct core_memory **place, struct core_error *error);
struct core_rm_gpu {
    uint32_t pci_domain;
    uint8_t pci_bus;
    uint8_t pci_slot;
    ...;
};
struct core_engine_block {
    uint32_t client;
    uint32_t object;
    uint64_t offset;
    uint64_t nbytes;
};
bool core_nvrm_part(const struct core_memory *memory, unsigned int index, struct core_rm_gpu *gpu,
                    struct core_engine_block *block);
void core_node_explain(int error, struct core_status *status);
void core_driver_version(char *version);
bool core_driver_tested(const char *version);

/* copy.h */
struct core_copy_routine {
    const char *name;
    void (*copy)(void *dst, const void *src, size_t nbytes);
    bool (*supported)(void);
    ...;
};
extern const struct core_copy_routine core_routines_to_wc[], core_routines_from_wc[];
const char *core_routine_to_wc(size_t nbytes);
const char *core_routine_from_wc(size_t nbytes);
"""

#: cffi makes an object of a returned pointer only after the call; without memory for it the pointer
#: would be lost. So it is kept in a place that was made before.
SOURCE = """
static bool core_take_to(struct core_memory **place, const struct core_cuda *cuda,
                         const struct core_backend *forced, const struct core_request *request,
                         struct core_error *error)
{
    *place = core_take(cuda, forced, request, error);
    return *place;
}

static bool core_take_export_to(struct core_memory **place, const struct core_backend *backend,
                                int fd, uint64_t nbytes, int device, struct core_error *error)
{
    *place = backend->take_export(fd, nbytes, device, error);
    return *place;
}

static int core_release_from(struct core_memory **place, struct core_error *error)
{
    struct core_memory *memory = *place;

    *place = NULL;
    return memory ? core_memory_release(memory, error) : 0;
}
"""

ffi = cffi.FFI()
ffi.cdef(CDEF)
ffi.set_source(
    "gdrpy._core._ffi",
    "".join(f'#include "{name}.h"\n' for name in ("backends/backends", "copy/copy", "rm/abi"))
    + SOURCE,
    include_dirs=["gdrpy/_core", "driver"],
    # For free-threaded Pythons, cffi defines the last one in the source too, which -Werror refuses.
    extra_compile_args=[
        *("-std=gnu11", "-O2", "-fvisibility=hidden", "-pthread"),
        "-U_CFFI_NO_LIMITED_API",
    ],
    extra_link_args=["-ldl", "-pthread"],
    py_limited_api=True,
)
