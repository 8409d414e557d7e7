/* SPDX-License-Identifier: MIT */
/*
 * Every driver function of the simulation: the exported symbol, the name to look it up by, the CUDA
 * version (1000 * major + 10 * minor) since which that name means this symbol, the parameters.
 * Define SIM_FUNCTION before including this, which undefines it. Versions of one name are in
 * ascending order.
 */
/* clang-format off */

SIM_FUNCTION(cuInit, cuInit, 2000, (unsigned int flags))
SIM_FUNCTION(cuDriverGetVersion, cuDriverGetVersion, 2020, (int *version))
SIM_FUNCTION(cuGetErrorName, cuGetErrorName, 6000, (CUresult error, const char **name))
SIM_FUNCTION(cuGetErrorString, cuGetErrorString, 6000, (CUresult error, const char **string))
SIM_FUNCTION(cuGetProcAddress, cuGetProcAddress, 11030,
	     (const char *symbol, void **function, int version, uint64_t flags))
SIM_FUNCTION(cuGetProcAddress_v2, cuGetProcAddress, 12000,
	     (const char *symbol, void **function, int version, uint64_t flags, int *status))

SIM_FUNCTION(cuDeviceGetCount, cuDeviceGetCount, 2000, (int *count))
SIM_FUNCTION(cuDeviceGet, cuDeviceGet, 2000, (CUdevice *device, int ordinal))
SIM_FUNCTION(cuDeviceGetName, cuDeviceGetName, 2000, (char *name, int length, CUdevice device))
SIM_FUNCTION(cuDeviceGetUuid, cuDeviceGetUuid, 9020, (CUuuid *uuid, CUdevice device))
SIM_FUNCTION(cuDeviceGetUuid_v2, cuDeviceGetUuid, 11040, (CUuuid *uuid, CUdevice device))
SIM_FUNCTION(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, (size_t *bytes, CUdevice device))
SIM_FUNCTION(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000,
	     (int *value, int attribute, CUdevice device))
SIM_FUNCTION(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010,
	     (char *id, int length, CUdevice device))
SIM_FUNCTION(cuDeviceGetByPCIBusId, cuDeviceGetByPCIBusId, 4010,
	     (CUdevice *device, const char *id))
SIM_FUNCTION(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000,
	     (int *can, CUdevice device, CUdevice peer))

SIM_FUNCTION(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000,
	     (CUcontext *context, CUdevice device))
SIM_FUNCTION(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, (CUdevice device))
SIM_FUNCTION(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, (CUdevice device))
SIM_FUNCTION(cuDevicePrimaryCtxSetFlags_v2, cuDevicePrimaryCtxSetFlags, 11000,
	     (CUdevice device, unsigned int flags))
SIM_FUNCTION(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000,
	     (CUdevice device, unsigned int *flags, int *active))
SIM_FUNCTION(cuCtxCreate_v2, cuCtxCreate, 3020,
	     (CUcontext *context, unsigned int flags, CUdevice device))
SIM_FUNCTION(cuCtxCreate_v3, cuCtxCreate, 11040,
	     (CUcontext *context, const void *affinity, int naffinity, unsigned int flags,
	      CUdevice device))
SIM_FUNCTION(cuCtxCreate_v4, cuCtxCreate, 12050,
	     (CUcontext *context, const void *parameters, unsigned int flags, CUdevice device))
SIM_FUNCTION(cuCtxDestroy_v2, cuCtxDestroy, 4000, (CUcontext context))
SIM_FUNCTION(cuCtxPushCurrent_v2, cuCtxPushCurrent, 4000, (CUcontext context))
SIM_FUNCTION(cuCtxPopCurrent_v2, cuCtxPopCurrent, 4000, (CUcontext *context))
SIM_FUNCTION(cuCtxSetCurrent, cuCtxSetCurrent, 4000, (CUcontext context))
SIM_FUNCTION(cuCtxGetCurrent, cuCtxGetCurrent, 4000, (CUcontext *context))
SIM_FUNCTION(cuCtxGetDevice, cuCtxGetDevice, 2000, (CUdevice *device))
SIM_FUNCTION(cuCtxGetDevice_v2, cuCtxGetDevice, 13000, (CUdevice *device, CUcontext context))
SIM_FUNCTION(cuCtxGetFlags, cuCtxGetFlags, 7000, (unsigned int *flags))
SIM_FUNCTION(cuCtxGetId, cuCtxGetId, 12000, (CUcontext context, unsigned long long *id))
SIM_FUNCTION(cuCtxGetApiVersion, cuCtxGetApiVersion, 3020,
	     (CUcontext context, unsigned int *version))
SIM_FUNCTION(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050,
	     (int *least, int *greatest))
SIM_FUNCTION(cuCtxSynchronize, cuCtxSynchronize, 2000, (void))
SIM_FUNCTION(cuCtxSynchronize_v2, cuCtxSynchronize, 13000, (CUcontext context))
SIM_FUNCTION(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000,
	     (CUcontext peer, unsigned int flags))
SIM_FUNCTION(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, (CUcontext peer))

SIM_FUNCTION(cuMemGetInfo_v2, cuMemGetInfo, 3020, (size_t *free, size_t *total))
SIM_FUNCTION(cuMemAlloc_v2, cuMemAlloc, 3020, (CUdeviceptr *pointer, size_t size))
SIM_FUNCTION(cuMemAllocPitch_v2, cuMemAllocPitch, 3020,
	     (CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
	      unsigned int element))
SIM_FUNCTION(cuMemFree_v2, cuMemFree, 3020, (CUdeviceptr pointer))
SIM_FUNCTION(cuMemGetAddressRange_v2, cuMemGetAddressRange, 3020,
	     (CUdeviceptr *base, size_t *size, CUdeviceptr pointer))
SIM_FUNCTION(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, 11070,
	     (void *handle, CUdeviceptr pointer, size_t size, unsigned int type,
	      unsigned long long flags))

SIM_FUNCTION(cuMemAllocHost_v2, cuMemAllocHost, 3020, (void **pointer, size_t size))
SIM_FUNCTION(cuMemHostAlloc, cuMemHostAlloc, 2020,
	     (void **pointer, size_t size, unsigned int flags))
SIM_FUNCTION(cuMemFreeHost, cuMemFreeHost, 2000, (void *pointer))
SIM_FUNCTION(cuMemHostRegister_v2, cuMemHostRegister, 6050,
	     (void *pointer, size_t size, unsigned int flags))
SIM_FUNCTION(cuMemHostUnregister, cuMemHostUnregister, 4000, (void *pointer))
SIM_FUNCTION(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer, 3020,
	     (CUdeviceptr *device, void *pointer, unsigned int flags))
SIM_FUNCTION(cuMemHostGetFlags, cuMemHostGetFlags, 2030, (unsigned int *flags, void *pointer))

SIM_FUNCTION(cuPointerGetAttribute, cuPointerGetAttribute, 4000,
	     (void *data, int attribute, CUdeviceptr pointer))
SIM_FUNCTION(cuPointerGetAttributes, cuPointerGetAttributes, 7000,
	     (unsigned int count, int *attributes, void **data, CUdeviceptr pointer))
SIM_FUNCTION(cuPointerSetAttribute, cuPointerSetAttribute, 6000,
	     (const void *data, int attribute, CUdeviceptr pointer))

SIM_FUNCTION(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020,
	     (size_t *granularity, const CUmemAllocationProp *properties, unsigned int option))
SIM_FUNCTION(cuMemAddressReserve, cuMemAddressReserve, 10020,
	     (CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wish,
	      unsigned long long flags))
SIM_FUNCTION(cuMemAddressFree, cuMemAddressFree, 10020, (CUdeviceptr pointer, size_t size))
SIM_FUNCTION(cuMemCreate, cuMemCreate, 10020,
	     (CUmemGenericAllocationHandle *handle, size_t size,
	      const CUmemAllocationProp *properties, unsigned long long flags))
SIM_FUNCTION(cuMemRelease, cuMemRelease, 10020, (CUmemGenericAllocationHandle handle))
SIM_FUNCTION(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000,
	     (CUmemGenericAllocationHandle *handle, void *pointer))
SIM_FUNCTION(cuMemMap, cuMemMap, 10020,
	     (CUdeviceptr pointer, size_t size, size_t offset,
	      CUmemGenericAllocationHandle handle, unsigned long long flags))
SIM_FUNCTION(cuMemUnmap, cuMemUnmap, 10020, (CUdeviceptr pointer, size_t size))
SIM_FUNCTION(cuMemSetAccess, cuMemSetAccess, 10020,
	     (CUdeviceptr pointer, size_t size, const CUmemAccessDesc *accesses, size_t count))
SIM_FUNCTION(cuMemGetAccess, cuMemGetAccess, 10020,
	     (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer))
SIM_FUNCTION(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020,
	     (void *shareable, CUmemGenericAllocationHandle handle, unsigned int type,
	      unsigned long long flags))
SIM_FUNCTION(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020,
	     (CUmemGenericAllocationHandle *handle, void *shareable, unsigned int type))
SIM_FUNCTION(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020,
	     (CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle))

SIM_FUNCTION(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010,
	     (CUipcMemHandle *handle, CUdeviceptr pointer))
SIM_FUNCTION(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle, 11000,
	     (CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags))
SIM_FUNCTION(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, (CUdeviceptr pointer))
SIM_FUNCTION(cuIpcGetEventHandle, cuIpcGetEventHandle, 4010,
	     (CUipcEventHandle *handle, CUevent event))
SIM_FUNCTION(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010,
	     (CUevent *event, CUipcEventHandle handle))

SIM_FUNCTION(cuMemcpy, cuMemcpy, 4000, (CUdeviceptr dst, CUdeviceptr src, size_t size))
SIM_FUNCTION(cuMemcpyAsync, cuMemcpyAsync, 4000,
	     (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream))
SIM_FUNCTION(cuMemcpyPeer, cuMemcpyPeer, 4000,
	     (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
	      size_t size))
SIM_FUNCTION(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000,
	     (CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
	      size_t size, CUstream stream))
SIM_FUNCTION(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020, (CUdeviceptr dst, const void *src, size_t size))
SIM_FUNCTION(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, 3020,
	     (CUdeviceptr dst, const void *src, size_t size, CUstream stream))
SIM_FUNCTION(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020, (void *dst, CUdeviceptr src, size_t size))
SIM_FUNCTION(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, 3020,
	     (void *dst, CUdeviceptr src, size_t size, CUstream stream))
SIM_FUNCTION(cuMemcpyDtoD_v2, cuMemcpyDtoD, 3020, (CUdeviceptr dst, CUdeviceptr src, size_t size))
SIM_FUNCTION(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync, 3020,
	     (CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream))
SIM_FUNCTION(cuMemcpy2D_v2, cuMemcpy2D, 3020, (const CUDA_MEMCPY2D *copy))
SIM_FUNCTION(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned, 3020, (const CUDA_MEMCPY2D *copy))
SIM_FUNCTION(cuMemcpy2DAsync_v2, cuMemcpy2DAsync, 3020,
	     (const CUDA_MEMCPY2D *copy, CUstream stream))

SIM_FUNCTION(cuMemsetD8_v2, cuMemsetD8, 3020, (CUdeviceptr dst, unsigned char value, size_t count))
SIM_FUNCTION(cuMemsetD16_v2, cuMemsetD16, 3020,
	     (CUdeviceptr dst, unsigned short value, size_t count))
SIM_FUNCTION(cuMemsetD32_v2, cuMemsetD32, 3020, (CUdeviceptr dst, unsigned int value, size_t count))
SIM_FUNCTION(cuMemsetD8Async, cuMemsetD8Async, 3020,
	     (CUdeviceptr dst, unsigned char value, size_t count, CUstream stream))
SIM_FUNCTION(cuMemsetD16Async, cuMemsetD16Async, 3020,
	     (CUdeviceptr dst, unsigned short value, size_t count, CUstream stream))
SIM_FUNCTION(cuMemsetD32Async, cuMemsetD32Async, 3020,
	     (CUdeviceptr dst, unsigned int value, size_t count, CUstream stream))
SIM_FUNCTION(cuMemsetD2D8_v2, cuMemsetD2D8, 3020,
	     (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height))
SIM_FUNCTION(cuMemsetD2D16_v2, cuMemsetD2D16, 3020,
	     (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height))
SIM_FUNCTION(cuMemsetD2D32_v2, cuMemsetD2D32, 3020,
	     (CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height))
SIM_FUNCTION(cuMemsetD2D8Async, cuMemsetD2D8Async, 3020,
	     (CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height,
	      CUstream stream))
SIM_FUNCTION(cuMemsetD2D16Async, cuMemsetD2D16Async, 3020,
	     (CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height,
	      CUstream stream))
SIM_FUNCTION(cuMemsetD2D32Async, cuMemsetD2D32Async, 3020,
	     (CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height,
	      CUstream stream))

SIM_FUNCTION(cuStreamCreate, cuStreamCreate, 2000, (CUstream *stream, unsigned int flags))
SIM_FUNCTION(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050,
	     (CUstream *stream, unsigned int flags, int priority))
SIM_FUNCTION(cuStreamDestroy_v2, cuStreamDestroy, 4000, (CUstream stream))
SIM_FUNCTION(cuStreamSynchronize, cuStreamSynchronize, 2000, (CUstream stream))
SIM_FUNCTION(cuStreamQuery, cuStreamQuery, 2000, (CUstream stream))
SIM_FUNCTION(cuStreamGetFlags, cuStreamGetFlags, 5050, (CUstream stream, unsigned int *flags))
SIM_FUNCTION(cuStreamGetPriority, cuStreamGetPriority, 5050, (CUstream stream, int *priority))
SIM_FUNCTION(cuStreamGetId, cuStreamGetId, 12000, (CUstream stream, unsigned long long *id))
SIM_FUNCTION(cuStreamGetDevice, cuStreamGetDevice, 12080, (CUstream stream, CUdevice *device))
SIM_FUNCTION(cuStreamGetCtx, cuStreamGetCtx, 9020, (CUstream stream, CUcontext *context))
SIM_FUNCTION(cuStreamGetCtx_v2, cuStreamGetCtx, 12050,
	     (CUstream stream, CUcontext *context, void **green_context))
SIM_FUNCTION(cuStreamWaitEvent, cuStreamWaitEvent, 3020,
	     (CUstream stream, CUevent event, unsigned int flags))
SIM_FUNCTION(cuStreamAddCallback, cuStreamAddCallback, 5000,
	     (CUstream stream, CUstreamCallback callback, void *user_data, unsigned int flags))
SIM_FUNCTION(cuLaunchHostFunc, cuLaunchHostFunc, 10000,
	     (CUstream stream, CUhostFn function, void *user_data))
SIM_FUNCTION(cuStreamWaitValue32_v2, cuStreamWaitValue32, 11070,
	     (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags))
SIM_FUNCTION(cuStreamWaitValue64_v2, cuStreamWaitValue64, 11070,
	     (CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags))
SIM_FUNCTION(cuStreamWriteValue32_v2, cuStreamWriteValue32, 11070,
	     (CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags))
SIM_FUNCTION(cuStreamWriteValue64_v2, cuStreamWriteValue64, 11070,
	     (CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags))
SIM_FUNCTION(cuStreamBatchMemOp_v2, cuStreamBatchMemOp, 11070,
	     (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *operations,
	      unsigned int flags))

SIM_FUNCTION(cuEventCreate, cuEventCreate, 2000, (CUevent *event, unsigned int flags))
SIM_FUNCTION(cuEventDestroy_v2, cuEventDestroy, 4000, (CUevent event))
SIM_FUNCTION(cuEventRecord, cuEventRecord, 2000, (CUevent event, CUstream stream))
SIM_FUNCTION(cuEventRecordWithFlags, cuEventRecordWithFlags, 11010,
	     (CUevent event, CUstream stream, unsigned int flags))
SIM_FUNCTION(cuCtxRecordEvent, cuCtxRecordEvent, 12050, (CUcontext context, CUevent event))
SIM_FUNCTION(cuEventQuery, cuEventQuery, 2000, (CUevent event))
SIM_FUNCTION(cuEventSynchronize, cuEventSynchronize, 2000, (CUevent event))
SIM_FUNCTION(cuEventElapsedTime, cuEventElapsedTime, 2000,
	     (float *milliseconds, CUevent start, CUevent end))
SIM_FUNCTION(cuEventElapsedTime_v2, cuEventElapsedTime, 12080,
	     (float *milliseconds, CUevent start, CUevent end))

#undef SIM_FUNCTION
