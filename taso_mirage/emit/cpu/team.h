// Two threads inside of each step of a loop: the second one computes the right half of the columns of a row times a matrix, whose
// halves stay in the caches of two cores. The first thread of a team leads. It waits for nobody: while no second thread has come, and
// after a bounded wait for one that the system does not run, it computes both halves. The second thread reads and writes only memory of
// the team, and gets its next part when it has ended the one before, so a late part has no effect.
#include <atomic>
#include <thread>

namespace {

class Team {
 public:
  static constexpr size_t MOST = 4096;  // elements of a row, and of half of its product

  Team() {}

  // Give a part to the second thread; false if there is none, or it is not ready.
  template <size_t H, size_t K, class B>
  bool give(const float* a, size_t ak, const B* b, size_t bk) {
    static_assert(H <= MOST && K <= MOST);
    if (!came.load(std::memory_order_acquire) || ended.load(std::memory_order_acquire) != given) return false;
    for (size_t k = 0; k < K; ++k) row[k] = a[k * ak];
    matrix = b, stride = bk, part = compute<H, K, B>;
    asked.store(++given, std::memory_order_release);
    return true;
  }

  // The product that was given last; null if it takes too long.
  const float* taken() {
    for (size_t i = 0; i < WAITS; ++i, pause())
      if (ended.load(std::memory_order_acquire) == given) return product;
    return nullptr;
  }

  // The work of a thread of the team.
  void block(void (*kernel)(void*, size_t), void* data) {
    if (threads.fetch_add(1) != 0) return help();
    kernel(data, 0);
    asked.store(END, std::memory_order_release);
  }

 private:
  static constexpr uint64_t END = ~uint64_t{0};
  static constexpr size_t WAITS = 4000, SPINS = 20000;  // about 0.1 and 0.5 ms

  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }

  template <size_t H, size_t K, class B>
  static void compute(Team& team) {
    for (size_t n = 0; n < H; ++n) team.product[n] = 0.0f;
    streamed<1, H, K>(team.row, size_t{0}, size_t{1}, static_cast<const B*>(team.matrix), team.stride, team.product, size_t{0});
  }

  void help() {
    came.store(true, std::memory_order_release);
    for (uint64_t seen = 0;;) {
      for (size_t i = 0; asked.load(std::memory_order_acquire) == seen; ++i) i < SPINS ? pause() : std::this_thread::yield();
      seen = asked.load(std::memory_order_acquire);
      if (seen == END) return;
      part(*this);
      ended.store(seen, std::memory_order_release);
    }
  }

  alignas(64) std::atomic<uint64_t> asked{0};
  alignas(64) std::atomic<uint64_t> ended{0};
  alignas(64) std::atomic<uint32_t> threads{0};
  std::atomic<bool> came{false};
  uint64_t given = 0;
  void (*part)(Team&) = nullptr;
  const void* matrix = nullptr;
  size_t stride = 0;
  alignas(64) float row[MOST];
  alignas(64) float product[MOST];
};

// As `streamed` with one row, by two threads. The halves have the same sums in the same order as the whole.
template <size_t M, size_t N, size_t K, class B>
[[maybe_unused]] inline void shared_streamed(Team& team, const float* a, size_t am, size_t ak, const B* b, size_t bk, float* c, size_t cm) {
  static_assert(M == 1 && N % (2 * WIDTH) == 0);
  constexpr size_t H = N / 2;
  const bool given = team.give<H, K>(a, ak, b + H, bk);
  streamed<1, H, K>(a, am, ak, b, bk, c, cm);
  const float* right = given ? team.taken() : nullptr;
  if (right != nullptr) std::memcpy(c + H, right, H * sizeof(float));
  else streamed<1, H, K>(a, am, ak, b + H, bk, c + H, cm);
}

typedef void (*kernel_t)(void*, size_t);
struct TeamRun {
  Team& team;
  kernel_t kernel;
  void** tensors;
};

// Run the only block of a kernel, with a second thread if there is one.
[[maybe_unused]] void run_team(Team& team, kernel_t kernel, void** tensors, parallel_for_t parallel_for, void* pool) {
  if (parallel_for == nullptr) return kernel(tensors, 0);
  TeamRun whole{team, kernel, tensors};
  parallel_for([](void* data, size_t) {
    const TeamRun& own = *static_cast<TeamRun*>(data);
    own.team.block(own.kernel, own.tensors);
  }, 2, &whole, pool);
}

}  // namespace
