// A convolution by Winograd's minimal filtering, with stride 1 (Lavin and Gray, CVPR'16, algorithm 1), for one block of tiles and one part of the
// output channels: tiles of AH x AW elements are transformed, multiplied by the transformed weights, channel by channel, and transformed to
// RH x RW results. op_specs/winograd.py has the same computation as a definition.
//
// Tiles lie along vectors, T of them in a block. `prepare` transforms the weights, once; they lie as the products read them: [K / KK][AH * AW][C][KK].

#include <utility>

namespace {

inline void alternate(lanes_t a, lanes_t b, lanes_t* made) {
#if defined(__clang__)
  for (size_t i = 0; i < LANES; ++i) made[i / (LANES / 2)][i * 2 % LANES] = a[i], made[i / (LANES / 2)][i * 2 % LANES + 1] = b[i];
#else
  typedef int places_t __attribute__((vector_size(LANES * 4)));
  places_t low, high;
  for (size_t i = 0; i < LANES; ++i) low[i] = static_cast<int>(i / 2 + i % 2 * LANES), high[i] = low[i] + static_cast<int>(LANES / 2);
  made[0] = __builtin_shuffle(a, b, low), made[1] = __builtin_shuffle(a, b, high);
#endif
}

// The elements of the first half and of the second half in turn: the highest bit of an element's place becomes the lowest.
template <size_t COUNT>
inline void alternate(lanes_t* v) {
  lanes_t made[COUNT];
  for (size_t i = 0; i < COUNT / 2; ++i) alternate(v[i], v[i + COUNT / 2], made + 2 * i);
  for (size_t i = 0; i < COUNT; ++i) v[i] = made[i];
}

// The transforms of A elements at the points 0, P, -P, Q, -Q, ... and infinity; of one, none.
constexpr double POINTS[][4] = {{}, {1}, {2.0 / 3, 3.0 / 2}, {}, {2.0 / 5, 4.0 / 5, 5.0 / 4, 5.0 / 2}};

template <size_t A>
struct Points {
  static constexpr size_t PAIRS = A > 1 ? (A - 2) / 2 : 0;
  using Pairs = std::make_index_sequence<PAIRS>;

  // Of the product of all (x^2 - P^2) but that of pair `i`, or of all: what the m-th power of x^2 is multiplied by.
  static constexpr double coefficient(size_t i, size_t m) {
    double found[PAIRS + 2] = {1};
    for (size_t k = 0; k < PAIRS; ++k)
      for (size_t n = PAIRS + 1; k != i && n-- > 0;) found[n] = (n > 0 ? found[n - 1] : 0) - POINTS[PAIRS][k] * POINTS[PAIRS][k] * found[n];
    return found[m];
  }
  static constexpr double power(double p, size_t k) { return k == 0 ? 1 : p * power(p, k - 1); }

  template <size_t I, size_t M, class V>
  static V polynomial(const V* d) {
    constexpr float by = static_cast<float>(coefficient(I, M));
    if constexpr (M == 0) return by * d[0];
    else return polynomial<I, M - 1>(d) + by * d[2 * M];
  }
  template <class V, size_t... I>
  static void data(const V* d, V* o, std::index_sequence<I...>) {
    const V even[] = {polynomial<I, PAIRS - 1>(d + 2)...}, odd[] = {static_cast<float>(POINTS[PAIRS][I]) * polynomial<I, PAIRS - 1>(d + 1)...};
    ((o[2 * I + 1] = even[I] + odd[I], o[2 * I + 2] = even[I] - odd[I]), ...);
  }
  template <class V>
  static void data(const V* d, V* o) {
    o[0] = polynomial<PAIRS, PAIRS>(d);
    if constexpr (A > 1) data(d, o, Pairs()), o[A - 1] = polynomial<PAIRS, PAIRS>(d + 1);
  }

  template <size_t POWER, size_t I, class V>
  static V combined(const V* m) {
    constexpr float by = static_cast<float>(power(POINTS[PAIRS][I], POWER));
    if constexpr (I == 0) return by * m[0];
    else return combined<POWER, I - 1>(m) + by * m[I];
  }
  template <class V, size_t... I, size_t... POWER>
  static void result(const V* m, V* o, std::index_sequence<I...>, std::index_sequence<POWER...>) {
    const V both[][PAIRS] = {{m[2 * I + 1] + m[2 * I + 2]...}, {m[2 * I + 1] - m[2 * I + 2]...}};
    ((o[POWER] = combined<POWER, PAIRS - 1>(both[POWER % 2])), ...);
    o[0] += m[0], o[sizeof...(POWER) - 1] += m[A - 1];
  }
  template <size_t R, class V>
  static void result(const V* m, V* o) {
    if constexpr (A > 1) result(m, o, Pairs(), std::make_index_sequence<R>());
    else o[0] = m[0];
  }

  template <size_t K>
  static void weights(const double* g, double* o) {
    o[0] = g[0] / coefficient(PAIRS, 0);
    for (size_t i = 0; i < PAIRS; ++i) {
      const double p = POINTS[PAIRS][i];
      double even = 0, odd = 0, below = 0;
      for (size_t k = 0; k < K; ++k) (k % 2 ? odd : even) += power(p, k) * g[k];
      for (size_t m = 0; m < PAIRS; ++m) below += coefficient(i, m) * power(p, 2 * m + 2);
      o[2 * i + 1] = (even + odd) / (2 * below), o[2 * i + 2] = (even - odd) / (2 * below);
    }
    o[A - 1] = g[K - 1];
  }
};

constexpr size_t power_of_two(size_t least) {
  size_t found = 1;
  while (found < least) found *= 2;
  return found;
}

// N images of GROUPS * C channels, H x W elements, with TOP and LEFT zeros before them; GROUPS * K channels of OH x OW results; kernels of KH x KW;
// tiles of RH x RW results, T of them in a block, all of one image, and the channels in PARTS. The tensors of a block: data, prepared weights, bias
// (where BIAS), what is added (where SUM), results.
template <size_t N, size_t GROUPS, size_t C, size_t H, size_t W, size_t K, size_t KH, size_t KW, size_t OH, size_t OW, size_t TOP, size_t LEFT, size_t RH, size_t RW, size_t T, size_t PARTS, bool BIAS, bool SUM, bool RELU>
struct Winograd {
  static constexpr size_t AH = RH + KH - 1, AW = RW + KW - 1, A = AH * AW;
  static constexpr size_t ROWS = (OH + RH - 1) / RH, COLUMNS = (OW + RW - 1) / RW, TILES = ROWS * COLUMNS, EACH_IMAGE = (TILES + T - 1) / T;
  static constexpr size_t VECTORS = T / LANES, MOST = REGISTERS / 2 / VECTORS > 1 ? REGISTERS / 2 / VECTORS : 1, KK = K < MOST ? K : MOST;
  static constexpr size_t GROUP = 16, E = power_of_two(AW), EACH = GROUP / LANES;
  static constexpr size_t STRIPS = (K + KK - 1) / KK, SHARE = (GROUPS * STRIPS + PARTS - 1) / PARTS;
  static constexpr size_t BLOCKS = N * EACH_IMAGE * PARTS, STRIP = KK * A * C, PREPARED = GROUPS * STRIPS * STRIP * sizeof(float);
  // The rows of the image that the tiles of a block read, with the zeros around it.
  static constexpr size_t WIDTH = COLUMNS * RW + KW - 1, SPAN = (T + COLUMNS - 2) / COLUMNS + 1, HEIGHT = (SPAN < ROWS ? SPAN : ROWS) * RH + KH - 1;
  typedef float row_t __attribute__((vector_size(RW * 4)));

  static void prepare(const void* weights, void* prepared) {
    const float* w = static_cast<const float*>(weights);
    float* u = static_cast<float*>(prepared);
    for (size_t strip = 0; strip < GROUPS * STRIPS; ++strip)
      for (size_t n = 0; n < KK * C; ++n) {
        const size_t c = n % C, k = n / C, row = strip % STRIPS * KK + k;  // the last strip of a group may have rows of zeros
        const float* given = w + ((strip / STRIPS * K + row) * C + c) * KH * KW;
        double half[AH][KW] = {}, whole[AH][AW] = {};
        for (size_t j = 0; j < KW && row < K; ++j) {
          double column[KH], made[AH];
          for (size_t i = 0; i < KH; ++i) column[i] = given[i * KW + j];
          Points<AH>::template weights<KH>(column, made);
          for (size_t i = 0; i < AH; ++i) half[i][j] = made[i];
        }
        for (size_t i = 0; i < AH; ++i) Points<AW>::template weights<KW>(half[i], whole[i]);
        for (size_t i = 0; i < A; ++i) u[strip * STRIP + (i * C + c) * KK + k] = static_cast<float>(whole[i / AW][i % AW]);
      }
  }

  // The transformed tiles of a group's channels: v[AH * AW][C][T]. Tiles behind the last one are those of other places, which nobody reads.
  static void transform(const float* x, size_t begin, float* v) {
    static thread_local float image[HEIGHT][WIDTH];
    alignas(64) float d[AH][GROUP][E] = {};
    const size_t top = begin / COLUMNS * RH;
    std::memset(image, 0, sizeof image);
    for (size_t c = 0; c < C; ++c) {
      for (size_t i = 0; i < HEIGHT; ++i)
        if (top + i >= TOP && top + i < H + TOP) std::memcpy(image[i] + LEFT, x + (c * H + top + i - TOP) * W, W * sizeof(float));
      for (size_t first = 0; first < T; first += GROUP) {
        for (size_t t = 0; t < GROUP; ++t) {
          const size_t tile = begin + first + t < TILES ? begin + first + t : TILES - 1;
          const float* from = &image[tile / COLUMNS * RH - top][tile % COLUMNS * RW];
          for (size_t i = 0; i < AH; ++i) std::memcpy(d[i][t], from + i * WIDTH, AW * sizeof(float));
        }
        lanes_t half[AH][E * EACH], in[AH > AW ? AH : AW], out[AH > AW ? AH : AW];
        for (size_t n = 0; n < E * EACH; ++n) {
          for (size_t i = 0; i < AH; ++i) in[i] = reinterpret_cast<const lanes_t*>(d[i])[n];
          Points<AH>::data(in, out);
          for (size_t i = 0; i < AH; ++i) half[i][n] = out[i];
        }
        for (size_t i = 0; i < AH; ++i) {
          if constexpr (E > 1)
            for (size_t n = 1; n < GROUP; n *= 2) alternate<E * EACH>(half[i]);
          for (size_t g = 0; g < EACH; ++g) {
            for (size_t j = 0; j < AW; ++j) in[j] = half[i][j * EACH + g];
            Points<AW>::data(in, out);
            for (size_t j = 0; j < AW; ++j) *reinterpret_cast<lanes_t*>(v + ((i * AW + j) * C + c) * T + first + g * LANES) = out[j];
          }
        }
      }
    }
  }

  // m = u v for KK channels of results.
  static void multiply(const float* u, const float* v, float (&m)[A][KK][T]) {
    for (size_t e = 0; e < A; ++e) {
      lanes_t sums[KK][VECTORS] = {};
      for (size_t c = 0; c < C; ++c, u += KK, v += T) {
        lanes_t row[VECTORS];
        for (size_t i = 0; i < VECTORS; ++i) row[i] = *reinterpret_cast<const lanes_t*>(v + i * LANES);
        for (size_t k = 0; k < KK; ++k)
          for (size_t i = 0; i < VECTORS; ++i) sums[k][i] += u[k] * row[i];
      }
      for (size_t k = 0; k < KK; ++k)
        for (size_t i = 0; i < VECTORS; ++i) *reinterpret_cast<lanes_t*>(&m[e][k][i * LANES]) = sums[k][i];
    }
  }

  // The results of one channel: its part of m is transformed, then bias, sum and relu. `plane` counts channels over all images.
  static void deliver(const float (&m)[A][KK][T], size_t k, size_t channel, size_t plane, size_t begin, void** tensors) {
    const float shift = BIAS ? static_cast<const float*>(tensors[2])[channel] : 0.0f;
    const size_t count = TILES - begin < T ? TILES - begin : T;
    for (size_t first = 0; first < count; first += GROUP) {
      alignas(64) float o[RH][GROUP][RW];
      lanes_t half[RH][AW][EACH], in[AH > AW ? AH : AW], out[RH > RW ? RH : RW], row[RW * EACH];
      for (size_t j = 0; j < AW; ++j)
        for (size_t g = 0; g < EACH; ++g) {
          for (size_t i = 0; i < AH; ++i) in[i] = *reinterpret_cast<const lanes_t*>(&m[i * AW + j][k][first + g * LANES]);
          Points<AH>::template result<RH>(in, out);
          for (size_t i = 0; i < RH; ++i) half[i][j][g] = out[i];
        }
      for (size_t i = 0; i < RH; ++i) {
        for (size_t g = 0; g < EACH; ++g) {
          for (size_t j = 0; j < AW; ++j) in[j] = half[i][j][g];
          Points<AW>::template result<RW>(in, out);
          for (size_t j = 0; j < RW; ++j) row[j * EACH + g] = out[j] + shift;
        }
        if constexpr (RW > 1)
          for (size_t n = 1; n < RW; n *= 2) alternate<RW * EACH>(row);
        for (size_t n = 0; n < RW * EACH; ++n) reinterpret_cast<lanes_t*>(o[i])[n] = row[n];
      }
      for (size_t t = 0; t < GROUP && first + t < count; ++t) put(&o[0][t][0], begin + first + t, plane, tensors);
    }
  }

  static void put(const float* o, size_t tile, size_t plane, void** tensors) {
    const size_t top = tile / COLUMNS * RH, left = tile % COLUMNS * RW, start = (plane * OH + top) * OW + left;
    const float* z = SUM ? static_cast<const float*>(tensors[3]) + start : nullptr;
    float* y = static_cast<float*>(tensors[4]) + start;
    if (top + RH <= OH && left + RW <= OW) {
      for (size_t i = 0; i < RH; ++i) {
        row_t row, more;
        std::memcpy(&row, o + i * GROUP * RW, sizeof row);
        if (SUM) std::memcpy(&more, z + i * OW, sizeof more), row += more;
        if (RELU) row = row < 0.0f ? row_t{} : row;
        std::memcpy(y + i * OW, &row, sizeof row);
      }
      return;
    }
    for (size_t i = 0; i < RH && top + i < OH; ++i)
      for (size_t j = 0; j < RW && left + j < OW; ++j) {
        const float value = SUM ? o[i * GROUP * RW + j] + z[i * OW + j] : o[i * GROUP * RW + j];
        y[i * OW + j] = RELU && value < 0.0f ? 0.0f : value;
      }
  }

  // The lines that the results of a block go to come to the first cache, in up to KK channels, so that what writes to them need not wait.
  static void fetch(const float* y, size_t channels, size_t first) {
    const size_t last = (first + T < TILES ? first + T : TILES) - 1, top = first / COLUMNS;
    const size_t begin = top * RH * OW, count = (last / COLUMNS - top + 1) * RH * OW;
    for (size_t k = 0; k < KK && k < channels; ++k)
      for (size_t i = 0; i < count; i += 16) __builtin_prefetch(y + k * OH * OW + begin + i, 1);
  }

  static void block(void* data, size_t number) {
    float* v = taso_mirage_room.of(A * C * T);
    alignas(64) float m[A][KK][T];
    void** tensors = static_cast<void**>(data);
    const size_t image = number / PARTS / EACH_IMAGE, first = number / PARTS % EACH_IMAGE * T;
    const size_t begin = number % PARTS * SHARE, end = begin + SHARE < GROUPS * STRIPS ? begin + SHARE : GROUPS * STRIPS;
    for (size_t strip = begin; strip < end; ++strip) {
      const size_t group = strip / STRIPS, row = strip % STRIPS * KK;
      if (strip == begin || row == 0) transform(static_cast<const float*>(tensors[0]) + (image * GROUPS + group) * C * H * W, first, v);
      const size_t channel = group * K + row, plane = image * GROUPS * K + channel;
      fetch(static_cast<const float*>(tensors[4]) + plane * OH * OW, K - row, first);
      multiply(static_cast<const float*>(tensors[1]) + strip * STRIP, v, m);
      for (size_t k = 0; k < KK && row + k < K; ++k) deliver(m, k, channel + k, plane + k, first, tensors);
    }
  }
};

}  // namespace
