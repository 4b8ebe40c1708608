// Compiled kernels for the CPU: libraries that were opened, and the functions in them.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "plan.h"

namespace cpu {

using Parallel = void (*)(void (*)(void*, size_t), size_t, void*, void*);
using Entry = void (*)(const void**, void**, void*, Parallel, void*);

// Open a library of compiled kernels. Problem where it is none, or was built for another machine or version.
void open(const std::string& path);

using Prepare = void (*)(const void**, void*);
using Room = size_t (*)(const size_t*);

// The entry takes the sizes that a run gives behind the inputs and what is prepared; `room` says the bytes of scratch memory that it needs then.
// `prepare`, if there is one, makes so many bytes of the inputs `weights`, which the entry reads behind the inputs.
struct Function {
  Entry entry;
  size_t scratch;
  Room room;
  Prepare prepare;
  size_t prepared;
  std::vector<size_t> weights;
};

// The compiled kernel that a plan names, in the libraries that were opened. Problem where none has it, or it has other types.
Function find(const plan::Plan& plan);

}  // namespace cpu
