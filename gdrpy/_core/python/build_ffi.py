"""Builds gdrpy._core._ffi: the C core's cold calls, seen from Python through cffi in API mode."""

import cffi

CDEF = """
static const char *const GDR_NVRM_TESTED_MIN;
static const char *const GDR_NVRM_TESTED_MAX;

/* map.h */
struct gdr_map {
    void *address;
    size_t nbytes;
    ...;
};
uint64_t gdr_map_pages(struct gdr_map *map, uint64_t offset, size_t nbytes);
int gdr_map_fd(struct gdr_map *map, int fd, uint64_t file_offset, uint64_t offset, bool readonly,
               void *at);
int gdr_map_undo(struct gdr_map *map);

/* node.h */
#define GDRDRV_FEATURE_PIN_V3 ...
#define GDRDRV_FEATURE_SHARE ...
#define GDRDRV_FEATURE_EVENTS ...
#define GDRDRV_PIN_V3_PERSISTENT ...
#define GDRDRV_PIN_V3_REVOCABLE ...
#define GDRDRV_PIN_V3_ZERO_AFTER ...
#define GDRDRV_EVENT_REVOKED ...
#define GDRDRV_GPU_PAGE_SIZE ...
static const char *const GDRDRV_NODE;
struct gdr_node {
    int fd;
    uint32_t version;
    uint64_t features;
    bool persistent;
};
struct gdr_pin_info {
    uint64_t va;
    uint64_t nbytes;
    uint32_t mapping_type;
    bool revoked;
};
struct gdrdrv_event {
    uint64_t handle;
    uint64_t sequence;
    uint32_t kind;
    uint32_t lost;
};
int gdr_node_open(struct gdr_node *node, const char *path);
void gdr_node_close(struct gdr_node *node);
int gdr_node_pin(const struct gdr_node *node, uint64_t address, uint64_t nbytes, uint32_t flags,
                 uint64_t *handle);
int gdr_node_unpin(const struct gdr_node *node, uint64_t handle);
int gdr_node_info(const struct gdr_node *node, uint64_t handle, struct gdr_pin_info *info);
int gdr_node_share(const struct gdr_node *node, uint64_t handle, bool readonly);
int gdr_node_next_event(const struct gdr_node *node, struct gdrdrv_event *event);
int64_t gdr_share_size(int fd);
bool gdr_share_ended(int fd, int timeout_ms);

/* nvrm.h */
struct gdr_nvrm_error {
    char call[48];
    int error;
    uint32_t status;
};
struct gdr_nvrm_gpu {
    uint32_t pci_domain;
    uint8_t pci_bus;
    uint8_t pci_slot;
    uint32_t minor;
};
struct gdr_nvrm_memory {
    struct gdr_nvrm_gpu gpu;
    uint64_t nbytes;
    ...;
};
struct gdr_nvrm_mapping {
    struct gdr_map map;
    ...;
};
struct gdr_ipc_info {
    uint32_t pid;
    uint64_t nbytes;
    uint64_t block_nbytes;
    uint64_t block_offset;
    uint32_t client;
    uint32_t object;
};
struct gdr_nvrm;
int gdr_nvrm_open(struct gdr_nvrm **client, struct gdr_nvrm_error *error);
int gdr_nvrm_import(struct gdr_nvrm *client, int fd, struct gdr_nvrm_memory *memory,
                    struct gdr_nvrm_error *error);
int gdr_nvrm_duplicate(struct gdr_nvrm *client, const struct gdr_nvrm_gpu *gpu,
                       const struct gdr_ipc_info *source, struct gdr_nvrm_memory *memory,
                       struct gdr_nvrm_error *error);
int gdr_nvrm_release(struct gdr_nvrm *client, const struct gdr_nvrm_memory *memory,
                     struct gdr_nvrm_error *error);
int gdr_nvrm_map(struct gdr_nvrm *client, const struct gdr_nvrm_memory *memory, uint64_t offset,
                 size_t nbytes, bool readonly, void *at, struct gdr_nvrm_mapping *mapping,
                 struct gdr_nvrm_error *error);
int gdr_nvrm_unmap(struct gdr_nvrm *client, struct gdr_nvrm_mapping *mapping,
                   struct gdr_nvrm_error *error);
void gdr_nvrm_abandon(struct gdr_nvrm *client);
struct gdr_cuda_ipc {
    uint8_t bytes[64];
};
void gdr_ipc_parse(const struct gdr_cuda_ipc *handle, struct gdr_ipc_info *info);

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
    "".join(f'#include "{name}.h"\n' for name in ("copy", "map", "node", "nvrm", "nvrm_abi")),
    include_dirs=["gdrpy/_core", "driver"],
    extra_compile_args=["-std=gnu11", "-O2", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)
