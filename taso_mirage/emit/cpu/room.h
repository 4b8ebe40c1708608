// Memory for the threads that run blocks of kernels.

#include <cstdlib>

// Memory of a thread, one for all kernels of a library: it grows to what the largest needs.
struct taso_mirage_room_t {
  void* memory = nullptr;
  std::size_t count = 0;
  float* of(std::size_t wanted) {
    if (wanted > count) {
      std::free(memory);
      memory = std::aligned_alloc(64, (wanted * sizeof(float) + 63) / 64 * 64);
      count = wanted;
      if (memory == nullptr) std::abort();
    }
    return static_cast<float*>(memory);
  }
  ~taso_mirage_room_t() { std::free(memory); }
};
inline thread_local taso_mirage_room_t taso_mirage_room;
