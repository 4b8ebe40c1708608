// A thread pool for tests and benchmarks of generated kernels: workers that spin for a while, as ONNX Runtime's do, then sleep.
// Each keeps to a core of its own, as theirs do: else a worker may wait behind the caller on one core while another is idle. A run
// ends when all blocks are done; a worker that the system does not let run in time takes no part in it.
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

namespace {

void rest() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Keeps this thread to the core with this place among those that the process may use.
void keep_to(size_t place) {
#ifdef __linux__
  cpu_set_t all, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &all) && place-- == 0) {
      CPU_SET(core, &one);
      sched_setaffinity(0, sizeof one, &one);
      return;
    }
#else
  (void)place;
#endif
}

struct Pool {
  std::mutex mutex;
  std::condition_variable wake;
  size_t threads = 1;
  std::atomic<uint64_t> left{0};  // the round in the upper half, chunks that nobody has taken in the lower
  std::atomic<uint32_t> done{0};
  void (*fn)(void*, size_t) = nullptr;
  void* data = nullptr;
  size_t count = 0, chunk = 1;

  void share() {
    for (uint64_t now = left.load(); static_cast<uint32_t>(now) != 0;) {
      if (!left.compare_exchange_weak(now, now - 1)) continue;
      const size_t first = (static_cast<uint32_t>(now) - 1) * chunk;  // this round cannot end before `done` counts this chunk
      for (size_t i = first; i < first + chunk && i < count; ++i) fn(data, i);
      done.fetch_add(1);
      now = left.load();
    }
  }

  void worker() {
    for (uint64_t seen = 0;;) {
      for (size_t spin = 0; left.load() >> 32 == seen && spin < 50000; ++spin) rest();
      if (left.load() >> 32 == seen) {
        std::unique_lock<std::mutex> lock(mutex);
        wake.wait(lock, [&] { return left.load() >> 32 != seen; });
      }
      seen = left.load() >> 32;
      share();
    }
  }
};

}  // namespace

extern "C" void* pool_new(size_t threads) {
  Pool* pool = new Pool;
  pool->threads = threads;
  for (size_t i = 1; i < threads; ++i) {
    std::thread([pool, i] {
      keep_to(i);
      pool->worker();
    }).detach();
  }
  return pool;
}

extern "C" void pool_run(void (*fn)(void*, size_t), size_t count, void* data, void* handle) {
  Pool* pool = static_cast<Pool*>(handle);
  pool->fn = fn;
  pool->data = data;
  pool->count = count;
  pool->chunk = (count + 8 * pool->threads - 1) / (8 * pool->threads);
  const uint32_t chunks = static_cast<uint32_t>((count + pool->chunk - 1) / pool->chunk);
  pool->done = 0;
  {
    std::lock_guard<std::mutex> lock(pool->mutex);
    pool->left = (((pool->left.load() >> 32) + 1) << 32) + chunks;
  }
  pool->wake.notify_all();
  pool->share();
  for (size_t spin = 0; pool->done.load() != chunks; ++spin)
    if (spin < 100000) rest();
    else std::this_thread::yield();
}
