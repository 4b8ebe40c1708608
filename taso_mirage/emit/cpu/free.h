// Sizes that a run gives: memory of their size, and blocks of dot products. A size is a `constant<N>` where the compiler knows it, else a number.
#include <cstdlib>
#include <type_traits>

namespace {

template <size_t N>
using constant = std::integral_constant<size_t, N>;

template <class T>
struct known : std::false_type {};
template <size_t N>
struct known<std::integral_constant<size_t, N>> : std::true_type {};

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

// f(constant<r>()) for r of 1 to MOST.
template <size_t MOST, class F>
inline void with_constant(size_t r, F f) {
  if constexpr (MOST > 0) {
    if (r == MOST) f(constant<MOST>());
    else with_constant<MOST - 1>(r, f);
  }
}

template <size_t R, bool AHEAD, class A, class B>
inline void free_rows(size_t N, size_t K, const A* a, size_t am, size_t ak, const B* b, size_t bk, float* c, size_t cm) {
  constexpr size_t V = R >= 4 ? 4 : 8;
  size_t n = 0;
  for (; n + V * WIDTH <= N; n += V * WIDTH) columns_block<R, V, AHEAD>(K, a, am, ak, b + n, bk, c + n, cm);
  for (; n + 2 * WIDTH <= N; n += 2 * WIDTH) columns_block<R, 2, AHEAD>(K, a, am, ak, b + n, bk, c + n, cm);
  for (; n + WIDTH <= N; n += WIDTH) columns_block<R, 1, AHEAD>(K, a, am, ak, b + n, bk, c + n, cm);
  if (n < N)
    for (size_t r = 0; r < R; ++r)
      for (size_t k = 0; k < K; ++k) {
        const float f = static_cast<float>(a[r * am + k * ak]);
        for (size_t i = n; i < N; ++i) c[r * cm + i] += f * static_cast<float>(b[k * bk + i]);
      }
}

// As `columns` for sizes that are not all known.
template <bool AHEAD = false, class A, class B>
[[maybe_unused]] inline void columns_free(size_t M, size_t N, size_t K, const A* __restrict a, size_t am, size_t ak, const B* __restrict b,
                                          size_t bk, float* __restrict c, size_t cm) {
  size_t m = 0;
  for (; m + 6 <= M; m += 6) free_rows<6, AHEAD>(N, K, a + m * am, am, ak, b, bk, c + m * cm, cm);
  with_constant<5>(M - m, [&](auto rest) { free_rows<rest, AHEAD>(N, K, a + m * am, am, ak, b, bk, c + m * cm, cm); });
}

template <class M, class N, class K, class... More>
[[maybe_unused]] inline void columns_of(M m, N n, K k, More... more) {
  if constexpr (known<M>::value && known<N>::value && known<K>::value) columns<M::value, N::value, K::value>(more...);
  else columns_free(m, n, k, more...);
}

template <class A, class B>
[[maybe_unused]] inline void streamed_free(size_t M, size_t N, size_t K, const A* __restrict a, size_t am, size_t ak, const B* __restrict b,
                                           size_t bk, float* __restrict c, size_t cm) {
  constexpr size_t J = 16;
  for (size_t k = 0; k < K; k += J) columns_free<true>(M, N, smaller(J, K - k), a + k * ak, am, ak, b + k * bk, bk, c, cm);
}

template <class M, class N, class K, class... More>
[[maybe_unused]] inline void streamed_of(M m, N n, K k, More... more) {
  if constexpr (known<M>::value && known<N>::value && known<K>::value) streamed<M::value, N::value, K::value>(more...);
  else streamed_free(m, n, k, more...);
}

// `count` of at most P rows of b are turned, so that results lie along vectors; those of the others are dropped.
template <size_t P, size_t LONGEST, class A, class B>
inline void free_turned(size_t M, size_t count, size_t K, const A* a, size_t am, const B* b, size_t bn, float* c, size_t cm) {
  constexpr size_t R = 6;
  alignas(4 * WIDTH) float panel[LONGEST * P];
  for (size_t i = 0; i < P; ++i)
    for (size_t k = 0; k < K; ++k) panel[k * P + i] = i < count ? static_cast<float>(b[i * bn + k]) : 0.0f;
  if (count == P) return columns_free(M, P, K, a, am, size_t{1}, panel, P, c, cm);
  for (size_t m = 0; m < M; m += R) {
    alignas(4 * WIDTH) float part[R * P] = {};
    const size_t rows = smaller(R, M - m);
    columns_free(rows, P, K, a + m * am, am, size_t{1}, panel, P, part, P);
    for (size_t r = 0; r < rows; ++r)
      for (size_t i = 0; i < count; ++i) c[(m + r) * cm + i] += part[r * P + i];
  }
}

// As `rows` for sizes that are not all known.
template <class A, class B>
[[maybe_unused]] inline void rows_free(size_t M, size_t N, size_t K, const A* __restrict a, size_t am, const B* __restrict b, size_t bn,
                                       float* __restrict c, size_t cm, size_t cn) {
  constexpr size_t P = 4 * WIDTH, MANY = 16, LONGEST = 256;
  if (M >= MANY && N >= WIDTH && K <= LONGEST && cn == 1) {
    size_t n = 0;
    for (; n + P <= N; n += P) free_turned<P, LONGEST>(M, P, K, a, am, b + n * bn, bn, c + n, cm);
    with_constant<4>((N - n + WIDTH - 1) / WIDTH, [&](auto vectors) {
      free_turned<vectors * WIDTH, LONGEST>(M, N - n, K, a, am, b + n * bn, bn, c + n, cm);
    });
    return;
  }
  for (size_t m = 0; m < M; ++m)
    for (size_t n = 0; n < N; ++n) {
      vec sums = {};
      size_t k = 0;
      for (; k + WIDTH <= K; k += WIDTH) sums += load(a + m * am + k) * load(b + n * bn + k);
      float sum = 0.0f;
      for (size_t i = 0; i < WIDTH; ++i) sum += sums[i];
      for (; k < K; ++k) sum += static_cast<float>(a[m * am + k]) * static_cast<float>(b[n * bn + k]);
      c[m * cm + n * cn] += sum;
    }
}

template <class M, class N, class K, class... More>
[[maybe_unused]] inline void rows_of(M m, N n, K k, More... more) {
  if constexpr (known<M>::value && known<N>::value && known<K>::value) rows<M::value, N::value, K::value>(more...);
  else rows_free(m, n, k, more...);
}

}  // namespace
