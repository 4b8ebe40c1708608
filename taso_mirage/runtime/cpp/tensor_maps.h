// Tensor maps: what Hopper's hardware knows of a tensor whose boxes it copies to shared memory by itself (TMA). A kernel takes them as arguments.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "plan.h"

namespace cuda {

// CUtensorMap: what the driver makes of a tensor, aligned as it wants it.
struct alignas(64) EncodedMap {
  uint64_t words[16];
};

// The maps of one node's kernels. A map is a function of what it is asked for by, an address and sizes: so one that is kept is right whatever
// became of the memory since, and a launch has a copy of its own, which a CUDA graph keeps. Several threads may ask.
class TensorMaps {
 public:
  // The map of the tensor of this type at an address. Problem where the driver refuses it; `who` is the kernel.
  EncodedMap of(const plan::TensorMap& map, const plan::Type& type, const void* address, const plan::Sizes& sizes, const std::string& who);

 private:
  std::mutex guard;
  std::map<std::tuple<const plan::TensorMap*, const void*, plan::Region>, EncodedMap> known;
};

}  // namespace cuda
