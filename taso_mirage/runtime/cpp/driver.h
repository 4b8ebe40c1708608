// The CUDA driver, which is opened when it is first asked for something: what is called of it, and its errors as ours.
#pragma once
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "plan.h"

namespace cuda {

using Result = int;

struct Attribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    int allowed;
    unsigned dims[3];
  } value;
};

struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
  Attribute* attributes;
  unsigned count;
};

struct Driver {
  Result (*CtxGetCurrent)(void**);
  Result (*CtxSetCurrent)(void*);
  Result (*CtxGetDevice)(int*);
  Result (*DeviceGetAttribute)(int*, int, int);
  Result (*ModuleLoadData)(void**, const void*);
  Result (*ModuleUnload)(void*);
  Result (*ModuleGetFunction)(void**, void*, const char*);
  Result (*FuncGetAttribute)(int*, int, void*);
  Result (*FuncSetAttribute)(void*, int, int);
  Result (*LaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  Result (*StreamCreate)(void**, unsigned);
  Result (*StreamDestroy)(void*);
  Result (*StreamWaitEvent)(void*, void*, unsigned);
  Result (*EventCreate)(void**, unsigned);
  Result (*EventRecord)(void*, void*);
  Result (*EventDestroy)(void*);
  Result (*GetErrorString)(Result, const char**);
  Result (*LaunchKernelEx)(const Config*, void*, void**, void**);  // newer drivers have these five
  Result (*FuncGetParamInfo)(void*, size_t, size_t*, size_t*);
  Result (*FuncLoad)(void*);
  Result (*CtxGetId)(void*, unsigned long long*);
  Result (*TensorMapEncodeTiled)(void*, int, uint32_t, const void*, const uint64_t*, const uint64_t*, const uint32_t*, const uint32_t*, int, int, int, int);
};

const Driver& driver();

// Problem unless a call succeeded: what could not be done, and what the driver says of it.
void succeed(Result result, const std::string& what);

}  // namespace cuda
