// Which instruction set the CPU loops run with. They are compiled several times from one source and
// give the same bits each time; only their speed differs. Used by programs at start and by tests;
// does not choose anything for the GPU.
#pragma once

#include "shm/contract/status.h"

namespace optlease {

enum class CpuIsa { kGeneric, kV3, kV4 };  // baseline; x86-64-v3 (AVX2, FMA); x86-64-v4 (AVX-512)

// "generic", "v3", "v4": what the environment variable OPTLEASE_ISA takes.
const char* name_of(CpuIsa isa);

// True where this build has the loops and this CPU can run them.
bool is_supported(CpuIsa isa);

// Chooses the best that is supported, or what OPTLEASE_ISA asks for; an unknown or unsupported wish
// is an error. Programs call it once at start, before other threads; without the call the first
// loop does it, and a bad wish then aborts.
Status select_cpu_isa();

// The one in use.
CpuIsa cpu_isa();

}  // namespace optlease
