// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The tracepoints' own code, which trace.h makes where this is defined. */
#define CREATE_TRACE_POINTS
#include "trace.h"
