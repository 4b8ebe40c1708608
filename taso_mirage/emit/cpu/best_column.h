// The place of the largest element of x B for many rows x and one B: numbers of 8 bits rule out most columns, and 8 bits more most of the
// rest. With b = B + e for a column's integers B and a row x = X + f, both in units of their own, the column's element is within
// |X| |e| + |f| |b| of X B, by Cauchy and Schwarz; the rounding of all sums is added. A column whose upper bound is below some lower
// bound is not the largest. Where several columns are left, their elements are computed; NaN and infinity leave every column. So B is
// mostly read in a quarter of its bytes. The bounds of half of the columns are those of the second thread of a team.
#include <algorithm>
#include <cmath>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace {

template <size_t K, size_t N>
class BestColumn {
 public:
  // Columns lie side by side, rows `stride` elements apart. `team`: null if no other thread takes part.
  void begin(Team* team, const float* b, size_t stride) {
    team_ = team, b_ = b, stride_ = stride;
    left_.read = right_.read = spare_.read = false;
  }

  // The first place of the largest of the columns' products with x.
  int64_t operator()(const float* x) {
    const bool given = team_ != nullptr && team_->ready();
    const Row row = integers(x);
    if (given) {
      row_ = row;
      team_->give(second, this);
    }
    bounds(left_, 0, row);
    const bool taken = given && team_->taken();
    if (!taken) bounds(spare_, LEFT, row);
    Half* const halves[] = {&left_, taken ? &right_ : &spare_};
    float least = std::fmax(largest(*halves[0]), largest(*halves[1]));
    each_group(halves, least, [&](Half& own, size_t g, size_t) { closer(own, g, row); });
    least = std::fmax(largest(*halves[0]), largest(*halves[1]));
    size_t left = N - GROUPS * 16;
    int64_t place = 0;
    each_group(halves, least, [&](const Half& own, size_t g, size_t at) {
      for (size_t c = 0; c < 16; ++c)
        if (!(own.upper[g * 16 + c] < least)) place = static_cast<int64_t>(at + c), ++left;
    });
    if (left == 1 && N % 16 == 0) return place;
    place = 0;
    float best = -INFINITY, sums[16];
    const auto take = [&](float value, size_t at) {
      if (value > best) best = value, place = static_cast<int64_t>(at);
    };
    each_group(halves, least, [&](Half&, size_t, size_t at) {
      product(x, b_ + at, sums);
      for (size_t c = 0; c < 16; ++c) take(sums[c], at + c);
    });
    for (size_t n = GROUPS * 16; n < N; ++n) {
      float s[4] = {};  // in the same order as in a group, so that equal columns have equal products
      for (size_t k = 0; k < K; k += 4)
        for (size_t j = 0; j < 4; ++j) s[j] += b_[(k + j) * stride_ + n] * x[k + j];
      take((s[0] + s[1]) + (s[2] + s[3]), n);
    }
    return place;
  }

 private:
  static constexpr size_t GROUPS = N / 16, DEPTH = K / 4, TOGETHER = 8, LEFT = GROUPS / 2, MOST = GROUPS - LEFT;
  static_assert(K % 4 == 0 && K <= 65536 && N >= 16, "sums of products of 8 bits fit into 32");
  static constexpr float ROUNDING = static_cast<float>(K + 64) * 2.4e-7f, TINY = 1e-36f;

  struct Row {
    uint32_t high[DEPTH], low[DEPTH];
    float unit, size, error, rest;  // the lengths of the row, and of what is left with and without the low integers
  };

  // The columns of some groups: high and low integers, four rows in 32 bits; the lengths of the columns, and of what is left without and
  // with the low integers; the bounds of their products; and the groups that may have the largest one.
  struct Half {
    bool read;
    size_t count, several, some[MOST];
    alignas(64) int32_t high[MOST * DEPTH * 16], low[MOST * DEPTH * 16], total[MOST * 16], little[MOST * 16];
    alignas(64) float unit[MOST * 16], size[MOST * 16], error[MOST * 16], rest[MOST * 16];
    alignas(64) float near[MOST * 16], upper[MOST * 16], lower[16];
  };

  static void second(void* data) {
    BestColumn& own = *static_cast<BestColumn*>(data);
    own.bounds(own.right_, LEFT, own.row_);
  }

  // f(half, group, first column) for all groups that may have the largest element.
  template <class F>
  static void each_group(Half* const (&halves)[2], float least, F f) {
    for (size_t i = 0; i < 2; ++i)
      for (size_t k = 0; k < halves[i]->several; ++k)
        if (const size_t g = halves[i]->some[k]; may_be(*halves[i], g, least)) f(*halves[i], g, (i * LEFT + g) * 16);
  }

  // The place of a group's first integers, and how far apart its next ones are: groups that are read together lie row by row, because
  // caches have few places for what lies a page apart.
  static size_t place_of(const Half& half, size_t g) {
    return together(half, g) ? (g / TOGETHER * TOGETHER * DEPTH + g % TOGETHER) * 16 : g * DEPTH * 16;
  }
  static size_t apart(const Half& half, size_t g) { return together(half, g) ? TOGETHER * 16 : 16; }
  static bool together(const Half& half, size_t g) { return g < half.count / TOGETHER * TOGETHER; }

  static float largest(const Half& own) { return *std::max_element(own.lower, own.lower + 16); }

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

  // The integers of COUNT groups, row by row, as they lie in memory.
  template <size_t COUNT>
  void read(Half& half, size_t g, const float* b) const {
    constexpr size_t C = COUNT * 16;
    alignas(64) float most[C] = {}, inverse[C], own[C] = {}, left[C] = {}, rest[C] = {};
    alignas(64) int32_t total[C] = {}, little[C] = {}, high[C], low[C];
    float* unit = half.unit + g * 16;
    for (size_t k = 0; k < K; ++k)
#pragma omp simd
      for (size_t c = 0; c < C; ++c) most[c] = maximum(most[c], std::fabs(b[k * stride_ + c]));
    for (size_t c = 0; c < C; ++c) unit[c] = most[c] / 127.0f, inverse[c] = most[c] > SMALL ? 127.0f / most[c] : 0.0f;
    for (size_t k = 0; k < K; k += 4) {
#pragma omp simd
      for (size_t c = 0; c < C; ++c) {
        uint32_t highs = 0, lows = 0;
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; ++j) {
          const float value = b[(k + j) * stride_ + c];
          const int32_t h = nearest(value * inverse[c]);
          const float d = value - unit[c] * static_cast<float>(h);
          const int32_t l = nearest(d * inverse[c] * 254.0f);
          const float e = d - unit[c] * static_cast<float>(l) / 254.0f;
          highs |= (static_cast<uint32_t>(h) & 255u) << (8 * j), lows |= (static_cast<uint32_t>(l) & 255u) << (8 * j);
          total[c] += h, little[c] += l;
          own[c] += value * value, left[c] += d * d, rest[c] += e * e;
        }
        high[c] = static_cast<int32_t>(highs), low[c] = static_cast<int32_t>(lows);
      }
      for (size_t i = 0; i < COUNT; ++i) {
        const size_t at = place_of(half, g + i) + k / 4 * apart(half, g + i);
        std::memcpy(half.high + at, high + i * 16, 64), std::memcpy(half.low + at, low + i * 16, 64);
      }
    }
    for (size_t c = 0; c < C; ++c) {
      const size_t n = g * 16 + c;
      half.total[n] = 128 * total[c], half.little[n] = 128 * little[c];
      half.size[n] = length(own[c], most[c]) + length(left[c], most[c]);
      half.error[n] = length(left[c], most[c]), half.rest[n] = length(rest[c], most[c]);
    }
  }

  // Whether a group may have the largest element.
  static bool may_be(const Half& half, size_t g, float least) {
    int32_t found = 0;
#pragma omp simd reduction(| : found)
    for (size_t c = 0; c < 16; ++c) found |= !(half.upper[g * 16 + c] < least);
    return found != 0;
  }

  // The products of integers of 8 bits with those of COUNT groups, `q`, which are not 128 more.
  template <size_t COUNT>
  static void sums(const int32_t* q, size_t apart, const uint32_t* row, int32_t (*made)[16]) {
#if defined(__AVX512VNNI__)
    __m512i s[COUNT] = {};
    for (size_t k = 0; k < DEPTH; ++k) {
      const __m512i x = _mm512_set1_epi32(static_cast<int32_t>(row[k]));
#pragma GCC unroll 8
      for (size_t i = 0; i < COUNT; ++i) s[i] = _mm512_dpbusd_epi32(s[i], x, _mm512_loadu_si512(q + k * apart + i * 16));
    }
    for (size_t i = 0; i < COUNT; ++i) _mm512_storeu_si512(made[i], s[i]);
#else
    for (size_t i = 0; i < COUNT; ++i) {
      int32_t s[16] = {};
      for (size_t k = 0; k < DEPTH; ++k)
        for (size_t j = 0; j < 4; ++j)
#pragma omp simd
          for (size_t c = 0; c < 16; ++c)
            s[c] += (q[k * apart + i * 16 + c] << (24 - 8 * j) >> 24) * static_cast<int32_t>(row[k] >> (8 * j) & 255u);
      std::memcpy(made[i], s, sizeof s);
    }
#endif
  }

  // The bounds of all columns of a half, by the high integers; its integers are made by the thread that reads them.
  void bounds(Half& half, size_t first, const Row& row) const {
    half.count = first == 0 ? LEFT : MOST;
    if (!half.read) {
      size_t g = 0;
      for (; g + TOGETHER <= half.count; g += TOGETHER) read<TOGETHER>(half, g, b_ + (first + g) * 16);
      for (; g < half.count; ++g) read<1>(half, g, b_ + (first + g) * 16);
      half.read = true;
    }
    for (float& each : half.lower) each = -INFINITY;
    size_t g = 0;
    for (; g + TOGETHER <= half.count; g += TOGETHER) first_bounds<TOGETHER>(half, g, row);
    for (; g < half.count; ++g) first_bounds<1>(half, g, row);
    const float least = largest(half);
    half.several = 0;
    for (g = 0; g < half.count; ++g)
      if (may_be(half, g, least)) half.some[half.several++] = g;
  }

  // The bounds of COUNT groups, by the high integers.
  template <size_t COUNT>
  static void first_bounds(Half& half, size_t g, const Row& row) {
    int32_t found[COUNT][16];
    sums<COUNT>(half.high + place_of(half, g), COUNT * 16, row.high, found);
    for (size_t i = 0; i < COUNT; ++i)
#pragma omp simd
      for (size_t c = 0; c < 16; ++c) half.near[(g + i) * 16 + c] = static_cast<float>(found[i][c] - half.total[(g + i) * 16 + c]);
    for (size_t i = 0; i < COUNT; ++i) bounded(half, g + i, row.unit, row.size, row.error, half.error);
  }

  // The same of one group, with the low integers.
  static void closer(Half& half, size_t g, const Row& row) {
    const size_t at = place_of(half, g), step = apart(half, g);
    int32_t found[3][1][16];
    sums<1>(half.high + at, step, row.low, found[0]);
    sums<1>(half.low + at, step, row.high, found[1]);
    sums<1>(half.low + at, step, row.low, found[2]);
#pragma omp simd
    for (size_t c = 0; c < 16; ++c) {
      const size_t n = g * 16 + c;
      const float one = static_cast<float>(found[0][0][c] - half.total[n]) + static_cast<float>(found[1][0][c] - half.little[n]);
      half.near[n] += (one + static_cast<float>(found[2][0][c] - half.little[n]) / 254.0f) / 254.0f;
    }
    bounded(half, g, row.unit, row.size, row.rest, half.rest);
  }

  // The bounds by what is near the products; `lower` has the largest lower one of each column of a group.
  static void bounded(Half& half, size_t g, float unit, float size, float error, const float* errors) {
#pragma omp simd
    for (size_t c = 0; c < 16; ++c) {
      const size_t n = g * 16 + c;
      const float near = unit * half.unit[n] * half.near[n], bound = size * errors[n] + error * half.size[n] + TINY;
      half.upper[n] = near + bound;
      half.lower[c] = near - bound > half.lower[c] ? near - bound : half.lower[c];
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

  Team* team_;
  const float* b_;
  size_t stride_;
  Half left_, right_, spare_;
  Row row_;
};

}  // namespace
