// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The tracepoints' code, which trace.h generates if this is defined. */
#define CREATE_TRACE_POINTS
#include "trace.h"
