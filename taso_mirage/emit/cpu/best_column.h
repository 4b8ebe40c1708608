// The place of the largest element of x B for many rows x and one B: numbers of 8 bits rule out most columns, the others are computed.
// With b = d q + e for a column's integers q and a row x = X + f of integers in units of their own, the column's element is within
// |X| |e| + |f| |b| of d (X q), by Cauchy and Schwarz; the rounding of all sums is added. A column whose upper bound is below some lower
// bound is not the largest, and B is read in a quarter of its bytes. NaN and infinity leave every column, which are then all computed.
#include <algorithm>
#include <cmath>
#include <memory>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace {

template <size_t K, size_t N>
class BestColumn {
 public:
  // Columns lie side by side, rows `stride` elements apart.
  BestColumn(const float* b, size_t stride) : b_(b), stride_(stride), q_(new int32_t[GROUPS * DEPTH * 16]) {
    for (size_t g = 0; g < GROUPS; ++g) prepare(g);
  }

  // The first place of the largest of the columns' products with x.
  int64_t operator()(const float* x) {
    const Row row = integers(x);
    float lower[16], sums[16];
    for (float& each : lower) each = -INFINITY;
    for (size_t g = 0; g + TOGETHER <= GROUPS; g += TOGETHER) bounds<TOGETHER>(g, row, lower);
    for (size_t g = GROUPS / TOGETHER * TOGETHER; g < GROUPS; ++g) bounds<1>(g, row, lower);
    float least = *std::max_element(lower, lower + 16);
    for (size_t g = 0; g < GROUPS; ++g)
      if (may_be(g, least)) closer(g, row, lower);
    least = *std::max_element(lower, lower + 16);
    float best = -INFINITY;
    int64_t place = 0;
    const auto take = [&](float value, size_t at) {
      if (value > best) best = value, place = static_cast<int64_t>(at);
    };
    for (size_t g = 0; g < GROUPS; ++g)
      if (may_be(g, least)) {
        product(x, b_ + g * 16, sums);
        for (size_t c = 0; c < 16; ++c) take(sums[c], g * 16 + c);
      }
    for (size_t n = GROUPS * 16; n < N; ++n) {
      float s[4] = {};  // in the same order as in a group, so that equal columns have equal products
      for (size_t k = 0; k < K; k += 4)
        for (size_t j = 0; j < 4; ++j) s[j] += b_[(k + j) * stride_ + n] * x[k + j];
      take((s[0] + s[1]) + (s[2] + s[3]), n);
    }
    return place;
  }

 private:
  static constexpr size_t GROUPS = N / 16, DEPTH = K / 4, TOGETHER = 8;
  static_assert(K % 4 == 0 && K <= 65536 && N >= 16, "sums of products of 8 bits fit into 32");
  static constexpr float ROUNDING = static_cast<float>(K + 64) * 2.4e-7f, TINY = 1e-36f;

  struct Row {
    uint32_t high[DEPTH], low[DEPTH];
    float unit, size, error, rest;  // the lengths of the row, and of what is left with and without the low integers
  };

  // x = unit * (high + low / 254) + f: both are between -127 and 127, and stored with 128 more.
  static Row integers(const float* x) {
    Row made;
    float most = 0.0f, whole = 0.0f, left = 0.0f, rest = 0.0f;
    for (size_t k = 0; k < K; ++k) most = maximum(most, std::fabs(x[k]));
    made.unit = most / 127.0f;
    const float inverse = most > SMALL ? 127.0f / most : 0.0f;
    uint8_t high[K], low[K];
#pragma omp simd reduction(+ : whole, left, rest)
    for (size_t k = 0; k < K; ++k) {
      const int32_t h = nearest(x[k] * inverse);
      const float r = x[k] - made.unit * static_cast<float>(h);
      const int32_t l = nearest(r * inverse * 254.0f);
      const float f = r - made.unit * static_cast<float>(l) / 254.0f;
      high[k] = static_cast<uint8_t>(h + 128), low[k] = static_cast<uint8_t>(l + 128);
      whole += x[k] * x[k], left += r * r, rest += f * f;
    }
    std::memcpy(made.high, high, K);
    std::memcpy(made.low, low, K);
    made.size = length(whole, most) + length(left, most);
    made.error = length(left, most) + ROUNDING * made.size;
    made.rest = length(rest, most) + ROUNDING * made.size;
    return made;
  }

  // The nearest integer of a number between -127 and 127: the lowest digits of its sum with 1.5 * 2^23.
  static int32_t nearest(float x) {
    const float shifted = x + 12582912.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    return static_cast<int32_t>(bits << 24) >> 24;
  }

  // Below this, squares of what is left lose their digits.
  static constexpr float SMALL = 1e-12f;

  // A bound of the length of a vector with this largest element, by the sum of its squares, whose rounding is added.
  static float length(float squares, float most) {
    const float whole = std::sqrt(static_cast<float>(K));
    return (most > SMALL || most != most ? std::sqrt(squares) : whole * most) * 1.005f + 1e-5f / 127.0f * whole * most + TINY;
  }

  void prepare(size_t g) {
    const float* b = b_ + g * 16;
    float most[16] = {}, unit[16], inverse[16], own[16] = {}, rest[16] = {};
    int32_t total[16] = {}, packed[16] = {};
    for (size_t k = 0; k < K; ++k)
#pragma omp simd
      for (size_t c = 0; c < 16; ++c) most[c] = maximum(most[c], std::fabs(b[k * stride_ + c]));
    for (size_t c = 0; c < 16; ++c) unit[c] = most[c] / 127.0f, inverse[c] = most[c] > SMALL ? 127.0f / most[c] : 0.0f;
    for (size_t k = 0; k < K; ++k) {
#pragma omp simd
      for (size_t c = 0; c < 16; ++c) {
        const float value = b[k * stride_ + c];
        const int32_t n = nearest(value * inverse[c]);
        const float e = value - unit[c] * static_cast<float>(n);
        packed[c] |= static_cast<int32_t>((static_cast<uint32_t>(n) & 255u) << (8 * (k % 4)));
        total[c] += n, own[c] += value * value, rest[c] += e * e;
      }
      if (k % 4 < 3) continue;
      std::memcpy(q_.get() + (g * DEPTH + k / 4) * 16, packed, sizeof packed);
      std::memset(packed, 0, sizeof packed);
    }
    for (size_t c = 0; c < 16; ++c) {
      const size_t n = g * 16 + c;
      unit_[n] = unit[c], totals_[n] = 128 * total[c];
      error_[n] = length(rest[c], most[c]), size_[n] = length(own[c], most[c]);
    }
  }

  // Whether a group may have the largest element.
  bool may_be(size_t g, float least) const {
    int32_t found = 0;
#pragma omp simd reduction(| : found)
    for (size_t c = 0; c < 16; ++c) found |= !(upper_[g * 16 + c] < least);
    return found != 0;
  }

  // The products of integers of 8 bits with the columns of COUNT groups.
  template <size_t COUNT>
  void sums(size_t g, const uint32_t* row, int32_t (*made)[16]) const {
    const int32_t* q = q_.get() + g * DEPTH * 16;
#if defined(__AVX512VNNI__)
    __m512i s[COUNT] = {};
    for (size_t k = 0; k < DEPTH; ++k) {
      const __m512i x = _mm512_set1_epi32(static_cast<int32_t>(row[k]));
#pragma GCC unroll 8
      for (size_t i = 0; i < COUNT; ++i) s[i] = _mm512_dpbusd_epi32(s[i], x, _mm512_loadu_si512(q + (i * DEPTH + k) * 16));
    }
    for (size_t i = 0; i < COUNT; ++i) _mm512_storeu_si512(made[i], s[i]);
#else
    for (size_t i = 0; i < COUNT; ++i) {
      int32_t s[16] = {};
      for (size_t k = 0; k < DEPTH; ++k)
        for (size_t j = 0; j < 4; ++j)
#pragma omp simd
          for (size_t c = 0; c < 16; ++c)
            s[c] += (q[(i * DEPTH + k) * 16 + c] << (24 - 8 * j) >> 24) * static_cast<int32_t>(row[k] >> (8 * j) & 255u);
      std::memcpy(made[i], s, sizeof s);
    }
#endif
  }

  // The bounds of COUNT groups, by the high integers.
  template <size_t COUNT>
  void bounds(size_t g, const Row& row, float* least) {
    int32_t high[COUNT][16];
    sums<COUNT>(g, row.high, high);
    for (size_t i = 0; i < COUNT; ++i)
#pragma omp simd
      for (size_t c = 0; c < 16; ++c) near_[(g + i) * 16 + c] = static_cast<float>(high[i][c] - totals_[(g + i) * 16 + c]);
    for (size_t i = 0; i < COUNT; ++i) bounded(g + i, row.unit, row.size, row.error, least);
  }

  // The same of one group, with the low integers.
  void closer(size_t g, const Row& row, float* least) {
    int32_t low[1][16];
    sums<1>(g, row.low, low);
    for (size_t c = 0; c < 16; ++c) near_[g * 16 + c] += static_cast<float>(low[0][c] - totals_[g * 16 + c]) / 254.0f;
    bounded(g, row.unit, row.size, row.rest, least);
  }

  // The bounds by what is near the products; `least` has the largest lower one of each column of a group.
  void bounded(size_t g, float unit, float size, float error, float* least) {
#pragma omp simd
    for (size_t c = 0; c < 16; ++c) {
      const size_t n = g * 16 + c;
      const float near = unit * unit_[n] * near_[n], bound = size * error_[n] + error * size_[n] + TINY;
      upper_[n] = near + bound;
      least[c] = near - bound > least[c] ? near - bound : least[c];
    }
  }

  // The products of x with 16 columns.
  void product(const float* x, const float* b, float* sums) const {
    constexpr size_t V = 16 / WIDTH;
    vec s[4][V] = {};
    for (size_t k = 0; k < K; k += 4)
#pragma GCC unroll 4
      for (size_t j = 0; j < 4; ++j)
#pragma GCC unroll 4
        for (size_t v = 0; v < V; ++v) s[j][v] += load(b + (k + j) * stride_ + v * WIDTH) * x[k + j];
    for (size_t v = 0; v < V; ++v) store(sums + v * WIDTH, (s[0][v] + s[1][v]) + (s[2][v] + s[3][v]));
  }

  const float* b_;
  const size_t stride_;
  std::unique_ptr<int32_t[]> q_;  // integers of a group's columns, four rows in 32 bits
  std::unique_ptr<float[]> unit_{new float[N]}, error_{new float[N]}, size_{new float[N]};
  std::unique_ptr<float[]> near_{new float[N]}, upper_{new float[N]};
  std::unique_ptr<int32_t[]> totals_{new int32_t[N]};
};

}  // namespace
