// Distances of M rows of x from N known rows of K numbers. The known rows lie side by side, strip by strip, [strips][K][COLUMNS].

#include <cmath>

namespace {

template <size_t M, size_t K, size_t N, size_t COLUMNS, size_t PARTS, bool BIAS, bool SUM>
struct Distances {
  static constexpr size_t VECTORS = COLUMNS / LANES, STRIPS = (N + COLUMNS - 1) / COLUMNS, STRIP = K * COLUMNS;
  static constexpr size_t BLOCKS = STRIPS * PARTS, PREPARED = STRIPS * STRIP * sizeof(float);

  static void prepare(const void* weights, void* prepared) {
    const float* rows = static_cast<const float*>(weights);
    float* made = static_cast<float*>(prepared);
    for (size_t strip = 0; strip < STRIPS; ++strip)
      for (size_t k = 0; k < K; ++k)
        for (size_t n = strip * COLUMNS; n < (strip + 1) * COLUMNS; ++n) *made++ = n < N ? rows[n * K + k] : 0;
  }

  // One strip of the known rows, and one part of those of x. The operands are x, what is prepared, a bias, a summand, and the result.
  static void block(void* data, size_t number) {
    void** tensors = static_cast<void**>(data);
    const size_t strip = number / PARTS, part = number % PARTS;
    const float* known = static_cast<const float*>(tensors[1]) + strip * STRIP;
    for (size_t row = part * M / PARTS; row < (part + 1) * M / PARTS; ++row) {
      const float* x = static_cast<const float*>(tensors[0]) + row * K;
      lanes_t sums[VECTORS] = {};
      for (size_t k = 0; k < K; ++k)
        for (size_t i = 0; i < VECTORS; ++i) {
          lanes_t apart;
          std::memcpy(&apart, known + k * COLUMNS + i * LANES, sizeof apart);
          apart = x[k] - apart;
          sums[i] += apart * apart;
        }
      float* y = static_cast<float*>(tensors[4]) + row * N;
      for (size_t i = 0, n = strip * COLUMNS; i < COLUMNS && n < N; ++i, ++n) y[n] = std::sqrt(sums[i / LANES][i % LANES]);
    }
  }
};

}  // namespace
