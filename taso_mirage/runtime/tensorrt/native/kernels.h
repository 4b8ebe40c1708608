// The kernels of this library as data: kernels.cpp is generated, everything else is the same in every library.
#pragma once
#include <cstdint>

namespace taso_mirage {

// The sizes of an input, which the plugin insists on.
struct Shape {
  int32_t rank;
  int64_t dims[8];
};

// `plan` says what is computed (plan.h); `images` are the texts of its images, in base64.
struct Data {
  const char* name;
  const char* digest;
  const char* plan;
  const Shape* inputs;
  int32_t input_count;
  const void* const* images;
  int32_t image_count;
};

extern const char* const NAMESPACE;
extern const Data KERNELS[];
extern const int32_t KERNEL_COUNT;

}  // namespace taso_mirage
