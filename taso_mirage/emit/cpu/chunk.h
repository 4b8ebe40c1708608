// Products of a chunk of n <= C steps of a loop whose state s, a matrix of K keys and V values, is multiplied by decays d and gets
// products of a column u and a row w added (emit/cpu/chunks.py). D: 0 without decays, 1 for one of a step, K for one of each key.

namespace {

// g[i][j]: for j < i the sum over the keys of p[i], u[j] and the decays of the steps between; 0 elsewhere. No quotients of decays, which
// may be 0.
template <size_t C, size_t K, size_t D>
[[maybe_unused]] inline void chunk_scores(size_t n, const float* p, const float* u, const float* d, float* g) {
  for (size_t i = 0; i < n * C; ++i) g[i] = 0.0f;
  if constexpr (D == K) {
    alignas(64) float r[K];
    for (size_t j = 0; j < n; ++j) {
      for (size_t k = 0; k < K; ++k) r[k] = u[j * K + k];
      for (size_t i = j + 1; i < n; ++i) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (size_t k = 0; k < K; ++k) {
          sum += p[i * K + k] * r[k];
          r[k] *= d[i * K + k];
        }
        g[i * C + j] = sum;
      }
    }
  } else {
    if (n == C) rows<C, C, K>(p, K, u, K, g, C, size_t{1});
    else rows_of(n, n, size_t{K}, p, K, u, K, g, C, size_t{1});
    for (size_t j = 0; j < n; ++j) {
      float r = 1.0f;
      for (size_t i = 0; i <= j; ++i) g[i * C + j] = 0.0f;
      for (size_t i = j + 1; i < n; ++i) {
        g[i * C + j] *= r;
        if constexpr (D == 1) r *= d[i];
      }
    }
  }
}

// x[i] times the decays of the steps before i, or after it; the products of all decays are added to none, and stand in `all`.
template <size_t C, size_t K, size_t D, bool AFTER>
[[maybe_unused]] inline void chunk_decayed(size_t n, const float* d, float* x, float* all) {
  if constexpr (D > 0) {
    for (size_t k = 0; k < D; ++k) all[k] = 1.0f;
    for (size_t t = 0; t < n; ++t) {
      const size_t i = AFTER ? n - 1 - t : t;
      for (size_t k = 0; k < K; ++k) x[i * K + k] *= all[D == 1 ? 0 : k];
      for (size_t k = 0; k < D; ++k) all[k] *= d[i * D + k];
    }
  }
}

// y[i] = the sum over the keys of p[i] and s.
template <size_t C, size_t K, size_t V>
[[maybe_unused]] inline void chunk_read(size_t n, const float* p, const float* s, float* y) {
  for (size_t i = 0; i < n * V; ++i) y[i] = 0.0f;
  if (n == C) columns<C, V, K>(p, K, size_t{1}, s, V, y, V);
  else columns_of(n, size_t{V}, size_t{K}, p, K, size_t{1}, s, V, y, V);
}

// y[i] += the sum of the rows w[j], j < i, times g[i][j]: for all i, or for one.
template <size_t C, size_t V>
[[maybe_unused]] inline void chunk_add(size_t n, const float* g, const float* w, float* y) {
  if (n == C) columns<C, V, C>(g, C, size_t{1}, w, V, y, V);
  else columns_of(n, size_t{V}, n, g, C, size_t{1}, w, V, y, V);
}

template <size_t C, size_t V>
[[maybe_unused]] inline void chunk_add_row(size_t i, const float* g, const float* w, float* y) {
  columns_of(size_t{1}, size_t{V}, i, g + i * C, size_t{0}, size_t{1}, w, V, y + i * V, V);
}

// s += the sum of u[i] times w[i].
template <size_t C, size_t K, size_t V>
[[maybe_unused]] inline void chunk_write(size_t n, const float* u, const float* w, float* s) {
  if (n == C) columns<K, V, C>(u, size_t{1}, K, w, V, s, V);
  else columns_of(size_t{K}, size_t{V}, n, u, size_t{1}, K, w, V, s, V);
}

// s *= the product of all decays.
template <size_t K, size_t V, size_t D>
[[maybe_unused]] inline void chunk_decay(const float* all, float* s) {
  for (size_t k = 0; D > 0 && k < K; ++k)
    for (size_t i = 0; i < V; ++i) s[k * V + i] *= all[D == 1 ? 0 : k];
}

}  // namespace
