// Sizes that a run gives: memory of their size.
#include <cstdlib>

namespace {

[[maybe_unused]] inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
[[maybe_unused]] inline size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Memory of a thread, which grows to what the largest block needs.
struct thread_memory_t {
  void* memory = nullptr;
  size_t size = 0;
  ~thread_memory_t() { std::free(memory); }
};

[[maybe_unused]] inline char* memory_of_thread(size_t bytes) {
  static thread_local thread_memory_t room;
  if (bytes > room.size) {
    std::free(room.memory);
    room.memory = std::aligned_alloc(64, aligned(bytes));
    room.size = bytes;
    if (room.memory == nullptr) std::abort();
  }
  return static_cast<char*>(room.memory);
}

}  // namespace
