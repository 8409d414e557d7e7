/* SPDX-License-Identifier: MIT */
/*
 * Every driver function of the simulation: the exported symbol, the name to look it up by, the CUDA
 * version (1000 * major + 10 * minor) since which that name means this symbol, the parameters.
 * Define SIM_FUNCTION before including this, which undefines it. Versions of one name are in
 * ascending order.
 */
/* clang-format off */

/* The symbol is the name, or the name with a suffix such as _v2. */
#define SIM_PLAIN(name, since, parameters) SIM_FUNCTION(name, name, since, parameters)
#define SIM_VERSION(name, suffix, since, parameters) \
	SIM_FUNCTION(name##_v##suffix, name, since, parameters)

SIM_PLAIN(cuInit, 2000, (unsigned int flags))
SIM_PLAIN(cuDriverGetVersion, 2020, (int *version))
SIM_PLAIN(cuGetErrorName, 6000, (CUresult error, const char **name))
SIM_PLAIN(cuGetErrorString, 6000, (CUresult error, const char **string))
SIM_PLAIN(cuGetProcAddress, 11030,
	(const char *symbol, void **function, int version, uint64_t flags))
SIM_VERSION(cuGetProcAddress, 2, 12000,
	(const char *symbol, void **function, int version, uint64_t flags, int *status))

SIM_PLAIN(cuDeviceGetCount, 2000, (int *count))
SIM_PLAIN(cuDeviceGet, 2000, (CUdevice *device, int ordinal))
SIM_PLAIN(cuDeviceGetName, 2000, (char *name, int length, CUdevice device))
SIM_PLAIN(cuDeviceGetUuid, 9020, (CUuuid *uuid, CUdevice device))
SIM_VERSION(cuDeviceGetUuid, 2, 11040, (CUuuid *uuid, CUdevice device))
SIM_VERSION(cuDeviceTotalMem, 2, 3020, (size_t *bytes, CUdevice device))
SIM_PLAIN(cuDeviceGetAttribute, 2000, (int *value, int attribute, CUdevice device))
SIM_PLAIN(cuDeviceGetPCIBusId, 4010, (char *id, int length, CUdevice device))
SIM_PLAIN(cuDeviceGetByPCIBusId, 4010, (CUdevice *device, const char *id))
SIM_PLAIN(cuDeviceCanAccessPeer, 4000, (int *can, CUdevice device, CUdevice peer))

SIM_PLAIN(cuDevicePrimaryCtxRetain, 7000, (CUcontext *context, CUdevice device))
SIM_VERSION(cuDevicePrimaryCtxRelease, 2, 11000, (CUdevice device))
SIM_VERSION(cuDevicePrimaryCtxReset, 2, 11000, (CUdevice device))
SIM_VERSION(cuDevicePrimaryCtxSetFlags, 2, 11000, (CUdevice device, unsigned int flags))
SIM_PLAIN(cuDevicePrimaryCtxGetState, 7000, (CUdevice device, unsigned int *flags, int *active))
SIM_VERSION(cuCtxCreate, 2, 3020, (CUcontext *context, unsigned int flags, CUdevice device))
SIM_VERSION(cuCtxCreate, 3, 11040,
	(CUcontext *context, const void *affinity, int naffinity, unsigned int flags,
	 CUdevice device))
SIM_VERSION(cuCtxCreate, 4, 12050,
	(CUcontext *context, const void *parameters, unsigned int flags, CUdevice device))
SIM_VERSION(cuCtxDestroy, 2, 4000, (CUcontext context))
SIM_VERSION(cuCtxPushCurrent, 2, 4000, (CUcontext context))
SIM_VERSION(cuCtxPopCurrent, 2, 4000, (CUcontext *context))
SIM_PLAIN(cuCtxSetCurrent, 4000, (CUcontext context))
SIM_PLAIN(cuCtxGetCurrent, 4000, (CUcontext *context))
SIM_PLAIN(cuCtxGetDevice, 2000, (CUdevice *device))
SIM_VERSION(cuCtxGetDevice, 2, 13000, (CUdevice *device, CUcontext context))
SIM_PLAIN(cuCtxGetFlags, 7000, (unsigned int *flags))
SIM_PLAIN(cuCtxGetId, 12000, (CUcontext context, unsigned long long *id))
SIM_PLAIN(cuCtxGetApiVersion, 3020, (CUcontext context, unsigned int *version))
SIM_PLAIN(cuCtxGetStreamPriorityRange, 5050, (int *least, int *greatest))
SIM_PLAIN(cuCtxSynchronize, 2000, (void))
SIM_VERSION(cuCtxSynchronize, 2, 13000, (CUcontext context))
SIM_PLAIN(cuCtxEnablePeerAccess, 4000, (CUcontext peer, unsigned int flags))
SIM_PLAIN(cuCtxDisablePeerAccess, 4000, (CUcontext peer))

SIM_VERSION(cuMemGetInfo, 2, 3020, (size_t *free, size_t *total))
SIM_VERSION(cuMemAlloc, 2, 3020, (CUdeviceptr *pointer, size_t size))
SIM_VERSION(cuMemAllocPitch, 2, 3020,
	(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element))
SIM_VERSION(cuMemFree, 2, 3020, (CUdeviceptr pointer))
SIM_VERSION(cuMemGetAddressRange, 2, 3020, (CUdeviceptr *base, size_t *size, CUdeviceptr pointer))
SIM_PLAIN(cuMemGetHandleForAddressRange, 11070,
	(void *handle, CUdeviceptr pointer, size_t size, unsigned int type,
	 unsigned long long flags))

SIM_VERSION(cuMemAllocHost, 2, 3020, (void **pointer, size_t size))
SIM_PLAIN(cuMemHostAlloc, 2020, (void **pointer, size_t size, unsigned int flags))
SIM_PLAIN(cuMemFreeHost, 2000, (void *pointer))
SIM_VERSION(cuMemHostRegister, 2, 6050, (void *pointer, size_t size, unsigned int flags))
SIM_PLAIN(cuMemHostUnregister, 4000, (void *pointer))
SIM_VERSION(cuMemHostGetDevicePointer, 2, 3020,
	(CUdeviceptr *device, void *pointer, unsigned int flags))
SIM_PLAIN(cuMemHostGetFlags, 2030, (unsigned int *flags, void *pointer))

SIM_PLAIN(cuPointerGetAttribute, 4000, (void *data, int attribute, CUdeviceptr pointer))
SIM_PLAIN(cuPointerGetAttributes, 7000,
	(unsigned int count, int *attributes, void **data, CUdeviceptr pointer))
SIM_PLAIN(cuPointerSetAttribute, 6000, (const void *data, int attribute, CUdeviceptr pointer))

SIM_PLAIN(cuMemGetAllocationGranularity, 10020,
	(size_t *granularity, const CUmemAllocationProp *properties, unsigned int option))
SIM_PLAIN(cuMemAddressReserve, 10020,
	(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wish,
	 unsigned long long flags))
SIM_PLAIN(cuMemAddressFree, 10020, (CUdeviceptr pointer, size_t size))
SIM_PLAIN(cuMemCreate, 10020,
	(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
	 unsigned long long flags))
SIM_PLAIN(cuMemRelease, 10020, (CUmemGenericAllocationHandle handle))
SIM_PLAIN(cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle *handle, void *pointer))
SIM_PLAIN(cuMemMap, 10020,
	(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
	 unsigned long long flags))
SIM_PLAIN(cuMemUnmap, 10020, (CUdeviceptr pointer, size_t size))
SIM_PLAIN(cuMemSetAccess, 10020,
	(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *accesses, size_t count))
SIM_PLAIN(cuMemGetAccess, 10020,
	(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer))
SIM_PLAIN(cuMemExportToShareableHandle, 10020,
	(void *shareable, CUmemGenericAllocationHandle handle, unsigned int type,
	 unsigned long long flags))
SIM_PLAIN(cuMemImportFromShareableHandle, 10020,
	(CUmemGenericAllocationHandle *handle, void *shareable, unsigned int type))
SIM_PLAIN(cuMemGetAllocationPropertiesFromHandle, 10020,
	(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle))

SIM_PLAIN(cuIpcGetMemHandle, 4010, (CUipcMemHandle *handle, CUdeviceptr pointer))
SIM_VERSION(cuIpcOpenMemHandle, 2, 11000,
	(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags))
SIM_PLAIN(cuIpcCloseMemHandle, 4010, (CUdeviceptr pointer))
SIM_PLAIN(cuIpcGetEventHandle, 4010, (CUipcEventHandle *handle, CUevent event))
SIM_PLAIN(cuIpcOpenEventHandle, 4010, (CUevent *event, CUipcEventHandle handle))

SIM_PLAIN(cuMemcpy, 4000, (CUdeviceptr dst, CUdeviceptr src, size_t size))
SIM_PLAIN(cuMemcpyAsync, 4000, (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream))
SIM_PLAIN(cuMemcpyPeer, 4000,
	(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
	 size_t size))
SIM_PLAIN(cuMemcpyPeerAsync, 4000,
	(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
	 size_t size, CUstream stream))
SIM_VERSION(cuMemcpyHtoD, 2, 3020, (CUdeviceptr dst, const void *src, size_t size))
SIM_VERSION(cuMemcpyHtoDAsync, 2, 3020,
	(CUdeviceptr dst, const void *src, size_t size, CUstream stream))
SIM_VERSION(cuMemcpyDtoH, 2, 3020, (void *dst, CUdeviceptr src, size_t size))
SIM_VERSION(cuMemcpyDtoHAsync, 2, 3020, (void *dst, CUdeviceptr src, size_t size, CUstream stream))
SIM_VERSION(cuMemcpyDtoD, 2, 3020, (CUdeviceptr dst, CUdeviceptr src, size_t size))
SIM_VERSION(cuMemcpyDtoDAsync, 2, 3020,
	(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream))
SIM_VERSION(cuMemcpy2D, 2, 3020, (const CUDA_MEMCPY2D *copy))
SIM_VERSION(cuMemcpy2DUnaligned, 2, 3020, (const CUDA_MEMCPY2D *copy))
SIM_VERSION(cuMemcpy2DAsync, 2, 3020, (const CUDA_MEMCPY2D *copy, CUstream stream))

SIM_VERSION(cuMemsetD8, 2, 3020, (CUdeviceptr dst, unsigned char value, size_t count))
SIM_VERSION(cuMemsetD16, 2, 3020, (CUdeviceptr dst, unsigned short value, size_t count))
SIM_VERSION(cuMemsetD32, 2, 3020, (CUdeviceptr dst, unsigned int value, size_t count))
SIM_PLAIN(cuMemsetD8Async, 3020,
	(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream))
SIM_PLAIN(cuMemsetD16Async, 3020,
	(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream))
SIM_PLAIN(cuMemsetD32Async, 3020,
	(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream))
SIM_VERSION(cuMemsetD2D8, 2, 3020,
	(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height))
SIM_VERSION(cuMemsetD2D16, 2, 3020,
	(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height))
SIM_VERSION(cuMemsetD2D32, 2, 3020,
	(CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height))
SIM_PLAIN(cuMemsetD2D8Async, 3020,
	(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height,
	 CUstream stream))
SIM_PLAIN(cuMemsetD2D16Async, 3020,
	(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height,
	 CUstream stream))
SIM_PLAIN(cuMemsetD2D32Async, 3020,
	(CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height,
	 CUstream stream))

SIM_PLAIN(cuStreamCreate, 2000, (CUstream *stream, unsigned int flags))
SIM_PLAIN(cuStreamCreateWithPriority, 5050, (CUstream *stream, unsigned int flags, int priority))
SIM_VERSION(cuStreamDestroy, 2, 4000, (CUstream stream))
SIM_PLAIN(cuStreamSynchronize, 2000, (CUstream stream))
SIM_PLAIN(cuStreamQuery, 2000, (CUstream stream))
SIM_PLAIN(cuStreamGetFlags, 5050, (CUstream stream, unsigned int *flags))
SIM_PLAIN(cuStreamGetPriority, 5050, (CUstream stream, int *priority))
SIM_PLAIN(cuStreamGetId, 12000, (CUstream stream, unsigned long long *id))
SIM_PLAIN(cuStreamGetDevice, 12080, (CUstream stream, CUdevice *device))
SIM_PLAIN(cuStreamGetCtx, 9020, (CUstream stream, CUcontext *context))
SIM_VERSION(cuStreamGetCtx, 2, 12050, (CUstream stream, CUcontext *context, void **green_context))
SIM_PLAIN(cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned int flags))
SIM_PLAIN(cuStreamAddCallback, 5000,
	(CUstream stream, CUstreamCallback callback, void *user_data, unsigned int flags))
SIM_PLAIN(cuLaunchHostFunc, 10000, (CUstream stream, CUhostFn function, void *user_data))
SIM_VERSION(cuStreamWaitValue32, 2, 11070,
	(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags))
SIM_VERSION(cuStreamWaitValue64, 2, 11070,
	(CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags))
SIM_VERSION(cuStreamWriteValue32, 2, 11070,
	(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags))
SIM_VERSION(cuStreamWriteValue64, 2, 11070,
	(CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags))
SIM_VERSION(cuStreamBatchMemOp, 2, 11070,
	(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations,
	 unsigned int flags))

SIM_VERSION(cuStreamBeginCapture, 2, 10010, (CUstream stream, unsigned int mode))
SIM_PLAIN(cuStreamEndCapture, 10000, (CUstream stream, CUgraph *graph))
SIM_PLAIN(cuStreamIsCapturing, 10000, (CUstream stream, unsigned int *status))
SIM_PLAIN(cuThreadExchangeStreamCaptureMode, 10010, (unsigned int *mode))
SIM_PLAIN(cuGraphDestroy, 10000, (CUgraph graph))

SIM_PLAIN(cuEventCreate, 2000, (CUevent *event, unsigned int flags))
SIM_VERSION(cuEventDestroy, 2, 4000, (CUevent event))
SIM_PLAIN(cuEventRecord, 2000, (CUevent event, CUstream stream))
SIM_PLAIN(cuEventRecordWithFlags, 11010, (CUevent event, CUstream stream, unsigned int flags))
SIM_PLAIN(cuCtxRecordEvent, 12050, (CUcontext context, CUevent event))
SIM_PLAIN(cuEventQuery, 2000, (CUevent event))
SIM_PLAIN(cuEventSynchronize, 2000, (CUevent event))
SIM_PLAIN(cuEventElapsedTime, 2000, (float *milliseconds, CUevent start, CUevent end))
SIM_VERSION(cuEventElapsedTime, 2, 12080, (float *milliseconds, CUevent start, CUevent end))

#undef SIM_PLAIN
#undef SIM_VERSION
#undef SIM_FUNCTION
