// Two threads inside of each step of a loop. The first thread of a team leads: in each step it gives the second one a part, such as half
// of the columns of a product, and computes the other part itself. It waits for nobody: while no second thread has come, and after a
// bounded wait for one that the system does not run, it computes both parts. What the second thread writes, the first one reads only
// where a part ended in time, and the second thread gets its next part when it has ended the one before. So a late part has no effect.
#include <atomic>
#include <memory>
#include <thread>

namespace {

class Team {
 public:
  Team() {}

  // Whether there is a second thread, and its parts have ended: then what it reads may be written.
  bool ready() const { return came.load(std::memory_order_acquire) && idle(); }

  // Give the second thread, which is ready, the part f(data).
  void give(void (*f)(void*), void* data) {
    part = f, operands = data;
    asked.store(++given, std::memory_order_release);
  }

  // Whether the part that was given last has ended, or ends soon.
  bool taken() const {
    for (size_t i = 0; i < WAITS; ++i, pause())
      if (idle()) return true;
    return false;
  }

  // The work of a thread of the team.
  void block(void (*kernel)(void*, size_t), void* data) {
    if (threads.fetch_add(1) != 0) return help();
    kernel(data, 0);
    while (!idle()) std::this_thread::yield();  // a late part still writes
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

  bool idle() const { return ended.load(std::memory_order_acquire) == given; }

  void help() {
    came.store(true, std::memory_order_release);
    for (uint64_t seen = 0;;) {
      for (size_t i = 0; asked.load(std::memory_order_acquire) == seen; ++i) i < SPINS ? pause() : std::this_thread::yield();
      seen = asked.load(std::memory_order_acquire);
      if (seen == END) return;
      part(operands);
      ended.store(seen, std::memory_order_release);
    }
  }

  alignas(64) std::atomic<uint64_t> asked{0};
  alignas(64) std::atomic<uint64_t> ended{0};
  alignas(64) std::atomic<uint32_t> threads{0};
  std::atomic<bool> came{false};
  uint64_t given = 0;
  void (*part)(void*) = nullptr;
  void* operands = nullptr;
};

// The object of a type and a number that a thread keeps from run to run, because fresh memory is slow.
template <size_t NUMBER, class T>
[[maybe_unused]] T& of_thread() {
  static thread_local const std::unique_ptr<T> own(new T);
  return *own;
}

// The products of rows with a matrix of K rows and N columns that is the same in all steps. The columns of a half are copied into panels
// of some vectors, which are read from end to end, by the thread that reads them: the halves then stay in the caches of two cores. The
// thread that leads has a copy of the right half of its own, for what the second one does not compute in time.
template <size_t K, size_t N, class B = float>
class StepMatrix {
 public:
  // Rows lie `stride` elements apart, columns side by side.
  void begin(Team* team, const B* b, size_t stride) {
    team_ = team, b_ = b, stride_ = stride;
    left_.copied = right_.copied = spare_.copied = false;
  }

  // c += a B. A column has the same sums in the same order, whichever thread computes it.
  void add(const float* a, size_t ak, float* c) {
    const bool given = team_->ready();
    if (given) {
      for (size_t k = 0; k < K; ++k) row_[k] = a[k * ak];
      team_->give(second, this);
    }
    half(left_, 0, a, ak, c);
    if (!given || !team_->taken()) return half(spare_, H, a, ak, c + H);
    for (size_t n = 0; n < H; ++n) c[H + n] += product_[n];
  }

 private:
  static_assert(N % (2 * WIDTH) == 0);
  static constexpr size_t H = N / 2, P = 8 * WIDTH;
  struct Half {
    bool copied;
    alignas(64) float panels[K * H];
  };

  static void second(void* data) {
    StepMatrix& own = *static_cast<StepMatrix*>(data);
    for (float& each : own.product_) each = 0.0f;
    own.half(own.right_, H, own.row_, 1, own.product_);
  }

  void half(Half& own, size_t first, const float* a, size_t ak, float* c) const {
    if (!own.copied) copy(own, b_ + first);
    size_t n = 0;
    for (; n + P <= H; n += P) columns<1, P, K>(a, size_t{0}, ak, own.panels + n * K, P, c + n, size_t{0});
    if constexpr (H % P != 0) columns<1, H % P, K>(a, size_t{0}, ak, own.panels + n * K, H % P, c + n, size_t{0});
  }

  void copy(Half& own, const B* b) const {
    for (size_t k = 0; k < K; ++k)
      for (size_t n = 0; n < H; n += P) {
        const size_t wide = n + P <= H ? P : H % P;
        for (size_t i = 0; i < wide; ++i) own.panels[n * K + k * wide + i] = static_cast<float>(b[k * stride_ + n + i]);
      }
    own.copied = true;
  }

  Team* team_;
  const B* b_;
  size_t stride_;
  Half left_, right_, spare_;
  alignas(64) float row_[K];
  alignas(64) float product_[H];
};

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
