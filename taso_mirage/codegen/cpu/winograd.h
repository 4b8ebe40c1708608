// A convolution by Winograd's minimal filtering, 3 x 3 with stride 1 (Lavin and Gray, CVPR'16, algorithm 1), for one block of tiles and one part
// of the output channels: tiles of R + 2 by R + 2 elements are transformed, multiplied by the transformed weights, channel by channel, and
// transformed to R x R results. op_specs/winograd.py has the same computation as a definition.
//
// Tiles lie along vectors, T of them in a block. `prepare` transforms the weights, once; they lie as the products read them: [K / KK][A * A][C][KK].

namespace {

#if defined(__AVX512F__)
constexpr size_t LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr size_t LANES = 8, REGISTERS = 16;
#else
constexpr size_t LANES = 4, REGISTERS = 32;
#endif
typedef float lanes_t __attribute__((vector_size(LANES * 4)));

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

// The transforms at the points 0, P, -P, Q, -Q and infinity (R = 4), or 0, P, -P and infinity (R = 2).
template <size_t R>
struct Points;

template <>
struct Points<2> {
  static constexpr double P = 1;
  template <class V>
  static void data(const V* d, V* o) {
    o[0] = d[0] - d[2], o[1] = d[2] + d[1], o[2] = d[2] - d[1], o[3] = d[3] - d[1];
  }
  template <class V>
  static void result(const V* m, V* o) {
    o[0] = m[0] + (m[1] + m[2]), o[1] = (m[1] - m[2]) + m[3];
  }
  static void weights(const double* g, double* o) {
    o[0] = g[0], o[1] = (g[0] + g[1] + g[2]) / 2, o[2] = (g[0] - g[1] + g[2]) / 2, o[3] = g[2];
  }
};

template <>
struct Points<4> {
  static constexpr double P = 2.0 / 3, Q = 3.0 / 2, P2 = P * P, Q2 = Q * Q;
  template <class V>
  static void data(const V* d, V* o) {
    constexpr float p = P, q = Q, p2 = P2, q2 = Q2, s = P2 + Q2;
    const V a = d[4] - q2 * d[2], b = p * (d[3] - q2 * d[1]), c = d[4] - p2 * d[2], e = q * (d[3] - p2 * d[1]);
    o[0] = (d[0] + d[4]) - s * d[2], o[1] = a + b, o[2] = a - b, o[3] = c + e, o[4] = c - e, o[5] = (d[1] + d[5]) - s * d[3];
  }
  template <class V>
  static void result(const V* m, V* o) {
    constexpr float p = P, q = Q, p2 = P2, q2 = Q2, p3 = P2 * P, q3 = Q2 * Q;
    const V a = m[1] + m[2], b = m[1] - m[2], c = m[3] + m[4], e = m[3] - m[4];
    o[0] = m[0] + (a + c), o[1] = p * b + q * e, o[2] = p2 * a + q2 * c, o[3] = (p3 * b + q3 * e) + m[5];
  }
  static void weights(const double* g, double* o) {
    constexpr double at_p = 2 * P2 * (P2 - Q2), at_q = 2 * Q2 * (Q2 - P2);
    const double even_p = g[0] + P2 * g[2], even_q = g[0] + Q2 * g[2];
    o[0] = g[0] / (P2 * Q2), o[1] = (even_p + P * g[1]) / at_p, o[2] = (even_p - P * g[1]) / at_p;
    o[3] = (even_q + Q * g[1]) / at_q, o[4] = (even_q - Q * g[1]) / at_q, o[5] = g[2];
  }
};

// N images of C channels, H x W elements, with TOP and LEFT zeros before them; K channels of OH x OW results; T tiles a block, and the channels
// in PARTS. The tensors of a block: data, prepared weights, bias (where BIAS), what is added (where SUM), results.
template <size_t N, size_t C, size_t H, size_t W, size_t K, size_t OH, size_t OW, size_t TOP, size_t LEFT, size_t R, size_t T, size_t PARTS, bool BIAS, bool SUM, bool RELU>
struct Winograd {
  static constexpr size_t A = R + 2, ROWS = (OH + R - 1) / R, COLUMNS = (OW + R - 1) / R, TILES = N * ROWS * COLUMNS;
  static constexpr size_t VECTORS = T / LANES, KK = REGISTERS / 2 / VECTORS > 1 ? REGISTERS / 2 / VECTORS : 1;
  typedef float row_t __attribute__((vector_size(R * 4)));
  static constexpr size_t GROUP = 16, E = R == 4 ? 8 : 4, EACH = GROUP / LANES;
  static constexpr size_t STRIPS = (K + KK - 1) / KK, SHARE = (STRIPS + PARTS - 1) / PARTS;
  static constexpr size_t BLOCKS = (TILES + T - 1) / T * PARTS, PREPARED = STRIPS * KK * A * A * C * sizeof(float);

  static void prepare(const void* given, void* prepared) {
    const float* w = static_cast<const float*>(given);
    float* u = static_cast<float*>(prepared);
    for (size_t k = 0; k < STRIPS * KK; ++k)
      for (size_t c = 0; c < C; ++c) {
        double half[A][3] = {}, whole[A][A] = {};
        for (size_t j = 0; j < 3 && k < K; ++j) {
          const double column[3] = {w[(k * C + c) * 9 + j], w[(k * C + c) * 9 + 3 + j], w[(k * C + c) * 9 + 6 + j]};
          double made[A];
          Points<R>::weights(column, made);
          for (size_t i = 0; i < A; ++i) half[i][j] = made[i];
        }
        for (size_t i = 0; i < A; ++i) Points<R>::weights(half[i], whole[i]);
        for (size_t i = 0; i < A * A; ++i) u[((k / KK * A * A + i) * C + c) * KK + k % KK] = static_cast<float>(whole[i / A][i % A]);
      }
  }

  // Where a tile lies: its image, its first result, and which of its elements are in the image.
  struct Tile {
    size_t image, y, x, low_y, high_y, low_x, high_x;
    ptrdiff_t start;
    bool inside;
  };

  static Tile tile(size_t number) {
    const size_t t = number < TILES ? number : TILES - 1, y = t / COLUMNS % ROWS * R, x = t % COLUMNS * R;
    Tile found = {t / COLUMNS / ROWS, y, x, y < TOP ? TOP - y : 0, y + A > H + TOP ? H + TOP - y : A, x < LEFT ? LEFT - x : 0, x + A > W + LEFT ? W + LEFT - x : A, 0, false};
    if (y > H + TOP) found.high_y = 0;
    if (x > W + LEFT) found.high_x = 0;
    found.inside = found.low_y == 0 && found.low_x == 0 && found.high_y == A && found.high_x == A;
    found.start = static_cast<ptrdiff_t>(y * W + x) - static_cast<ptrdiff_t>(TOP * W + LEFT);
    return found;
  }

  // The rows of a tile, one behind the other from d on, GROUP * E elements apart; zeros where it is outside of the image.
  static void gather(const float* plane, const Tile& tile, float* d) {
    const float* from = plane + tile.start;
    if (tile.inside) {
      for (size_t i = 0; i < A; ++i) std::memcpy(d + i * GROUP * E, from + i * W, A * sizeof(float));
      return;
    }
    for (size_t i = 0; i < A; ++i)
      for (size_t j = 0; j < A; ++j) {
        const bool inside = i >= tile.low_y && i < tile.high_y && j >= tile.low_x && j < tile.high_x;
        d[i * GROUP * E + j] = inside ? from[i * W + j] : 0.0f;
      }
  }

  // The transformed tiles of all channels: v[A * A][C][T].
  static void transform(const float* x, const Tile (&tiles)[T], float* v) {
    alignas(64) float d[A][GROUP][E] = {};
    for (size_t c = 0; c < C; ++c)
      for (size_t first = 0; first < T; first += GROUP) {
        for (size_t t = 0; t < GROUP; ++t) gather(x + (tiles[first + t].image * C + c) * H * W, tiles[first + t], &d[0][t][0]);
        lanes_t half[A][E * EACH], in[A], out[A];
        for (size_t n = 0; n < E * EACH; ++n) {
          for (size_t i = 0; i < A; ++i) in[i] = reinterpret_cast<const lanes_t*>(d[i])[n];
          Points<R>::data(in, out);
          for (size_t i = 0; i < A; ++i) half[i][n] = out[i];
        }
        for (size_t i = 0; i < A; ++i) {
          for (size_t n = 1; n < GROUP; n *= 2) alternate<E * EACH>(half[i]);
          for (size_t g = 0; g < EACH; ++g) {
            for (size_t j = 0; j < A; ++j) in[j] = half[i][j * EACH + g];
            Points<R>::data(in, out);
            for (size_t j = 0; j < A; ++j) *reinterpret_cast<lanes_t*>(v + ((i * A + j) * C + c) * T + first + g * LANES) = out[j];
          }
        }
      }
  }

  // m = u v for KK channels of results.
  static void multiply(const float* u, const float* v, float (&m)[A * A][KK][T]) {
    for (size_t e = 0; e < A * A; ++e) {
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

  // The results of one channel: its part of m is transformed, then bias, sum and relu.
  static void deliver(const float (&m)[A * A][KK][T], size_t strip, size_t k, const Tile (&tiles)[T], size_t count, void** tensors) {
    const size_t channel = strip * KK + k;
    const float shift = BIAS ? static_cast<const float*>(tensors[2])[channel] : 0.0f;
    for (size_t first = 0; first < count; first += GROUP) {
      alignas(64) float o[R][GROUP][R];
      lanes_t half[R][A][EACH], in[A], out[R], row[R * EACH];
      for (size_t j = 0; j < A; ++j)
        for (size_t g = 0; g < EACH; ++g) {
          for (size_t i = 0; i < A; ++i) in[i] = *reinterpret_cast<const lanes_t*>(&m[i * A + j][k][first + g * LANES]);
          Points<R>::result(in, out);
          for (size_t i = 0; i < R; ++i) half[i][j][g] = out[i];
        }
      for (size_t i = 0; i < R; ++i) {
        for (size_t g = 0; g < EACH; ++g) {
          for (size_t j = 0; j < A; ++j) in[j] = half[i][j][g];
          Points<R>::result(in, out);
          for (size_t j = 0; j < R; ++j) row[j * EACH + g] = out[j] + shift;
        }
        for (size_t n = 1; n < R; n *= 2) alternate<R * EACH>(row);
        for (size_t n = 0; n < R * EACH; ++n) reinterpret_cast<lanes_t*>(o[i])[n] = row[n];
      }
      for (size_t t = 0; t < GROUP && first + t < count; ++t) put(&o[0][t][0], tiles[first + t], channel, tensors);
    }
  }

  static void put(const float* o, const Tile& tile, size_t channel, void** tensors) {
    const size_t start = ((tile.image * K + channel) * OH + tile.y) * OW + tile.x;
    const float* z = SUM ? static_cast<const float*>(tensors[3]) + start : nullptr;
    float* y = static_cast<float*>(tensors[4]) + start;
    if (tile.y + R <= OH && tile.x + R <= OW) {
      for (size_t i = 0; i < R; ++i) {
        row_t row, more;
        std::memcpy(&row, o + i * GROUP * R, sizeof row);
        if (SUM) std::memcpy(&more, z + i * OW, sizeof more), row += more;
        if (RELU) row = row < 0.0f ? row_t{} : row;
        std::memcpy(y + i * OW, &row, sizeof row);
      }
      return;
    }
    for (size_t i = 0; i < R && tile.y + i < OH; ++i)
      for (size_t j = 0; j < R && tile.x + j < OW; ++j) {
        const float value = SUM ? o[i * GROUP * R + j] + z[i * OW + j] : o[i * GROUP * R + j];
        y[i * OW + j] = RELU && value < 0.0f ? 0.0f : value;
      }
  }

  static void block(void* data, size_t number) {
    alignas(64) static thread_local float v[A * A * C * T];
    alignas(64) float m[A * A][KK][T];
    void** tensors = static_cast<void**>(data);
    const size_t first = number / PARTS * T, count = TILES - first < T ? TILES - first : T;
    Tile tiles[T];
    for (size_t t = 0; t < T; ++t) tiles[t] = tile(first + t);
    transform(static_cast<const float*>(tensors[0]), tiles, v);
    const size_t begin = number % PARTS * SHARE, end = begin + SHARE < STRIPS ? begin + SHARE : STRIPS;
    for (size_t strip = begin; strip < end; ++strip) {
      multiply(static_cast<const float*>(tensors[1]) + strip * KK * A * A * C, v, m);
      for (size_t k = 0; k < KK && strip * KK + k < K; ++k) deliver(m, strip, k, tiles, count, tensors);
    }
  }
};

}  // namespace
