// A convolution by Winograd's minimal filtering, 3 x 3 with stride 1 (Lavin and Gray, CVPR'16, algorithm 1), for one block of tiles and one part
// of the output channels: tiles of R + 2 by R + 2 elements are transformed, multiplied by the transformed weights, channel by channel, and
// transformed to R x R results. op_specs/winograd.py has the same computation as a definition.
//
// Tiles lie along vectors, T of them in a block. `prepare` transforms the weights, once; they lie as the products read them: [K / KK][A * A][C][KK].

#include <cstdlib>

// Memory of a thread, one for all convolutions of a library: it grows to what the largest needs.
struct taso_mirage_room_t {
  void* memory = nullptr;
  std::size_t count = 0;
  float* of(std::size_t wanted) {
    if (wanted > count) {
      std::free(memory);
      memory = std::aligned_alloc(64, (wanted * sizeof(float) + 63) / 64 * 64);
      count = wanted;
      if (memory == nullptr) std::abort();
    }
    return static_cast<float*>(memory);
  }
  ~taso_mirage_room_t() { std::free(memory); }
};
inline thread_local taso_mirage_room_t taso_mirage_room;

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

// N images of GROUPS * C channels, H x W elements, with TOP and LEFT zeros before them; GROUPS * K channels of OH x OW results; T tiles a block,
// all of one image, and the channels in PARTS. The tensors of a block: data, prepared weights, bias (where BIAS), what is added (where SUM), results.
template <size_t N, size_t GROUPS, size_t C, size_t H, size_t W, size_t K, size_t OH, size_t OW, size_t TOP, size_t LEFT, size_t R, size_t T, size_t PARTS, bool BIAS, bool SUM, bool RELU>
struct Winograd {
  static constexpr size_t A = R + 2, ROWS = (OH + R - 1) / R, COLUMNS = (OW + R - 1) / R, TILES = ROWS * COLUMNS, EACH_IMAGE = (TILES + T - 1) / T;
  static constexpr size_t VECTORS = T / LANES, MOST = REGISTERS / 2 / VECTORS > 1 ? REGISTERS / 2 / VECTORS : 1, KK = K < MOST ? K : MOST;
  static constexpr size_t GROUP = 16, E = R == 4 ? 8 : 4, EACH = GROUP / LANES;
  static constexpr size_t STRIPS = (K + KK - 1) / KK, SHARE = (GROUPS * STRIPS + PARTS - 1) / PARTS;
  static constexpr size_t BLOCKS = N * EACH_IMAGE * PARTS, STRIP = KK * A * A * C, PREPARED = GROUPS * STRIPS * STRIP * sizeof(float);
  // The rows of the image that the tiles of a block read, with the zeros around it.
  static constexpr size_t WIDTH = COLUMNS * R + 2, SPAN = (T + COLUMNS - 2) / COLUMNS + 1, HEIGHT = (SPAN < ROWS ? SPAN : ROWS) * R + 2;
  typedef float row_t __attribute__((vector_size(R * 4)));

  static void prepare(const void* weights, void* prepared) {
    const float* w = static_cast<const float*>(weights);
    float* u = static_cast<float*>(prepared);
    for (size_t strip = 0; strip < GROUPS * STRIPS; ++strip)
      for (size_t n = 0; n < KK * C; ++n) {
        const size_t c = n % C, k = n / C, row = strip % STRIPS * KK + k;  // the last strip of a group may have rows of zeros
        const float* given = w + ((strip / STRIPS * K + row) * C + c) * 9;
        double half[A][3] = {}, whole[A][A] = {};
        for (size_t j = 0; j < 3 && row < K; ++j) {
          const double column[3] = {given[j], given[3 + j], given[6 + j]};
          double made[A];
          Points<R>::weights(column, made);
          for (size_t i = 0; i < A; ++i) half[i][j] = made[i];
        }
        for (size_t i = 0; i < A; ++i) Points<R>::weights(half[i], whole[i]);
        for (size_t i = 0; i < A * A; ++i) u[strip * STRIP + (i * C + c) * KK + k] = static_cast<float>(whole[i / A][i % A]);
      }
  }

  // The transformed tiles of a group's channels: v[A * A][C][T]. Tiles behind the last one are those of other places, which nobody reads.
  static void transform(const float* x, size_t begin, float* v) {
    static thread_local float image[HEIGHT][WIDTH];
    alignas(64) float d[A][GROUP][E] = {};
    const size_t top = begin / COLUMNS * R;
    std::memset(image, 0, sizeof image);
    for (size_t c = 0; c < C; ++c) {
      for (size_t i = 0; i < HEIGHT; ++i)
        if (top + i >= TOP && top + i < H + TOP) std::memcpy(image[i] + LEFT, x + (c * H + top + i - TOP) * W, W * sizeof(float));
      for (size_t first = 0; first < T; first += GROUP) {
        for (size_t t = 0; t < GROUP; ++t) {
          const size_t tile = begin + first + t < TILES ? begin + first + t : TILES - 1;
          const float* from = &image[tile / COLUMNS * R - top][tile % COLUMNS * R];
          for (size_t i = 0; i < A; ++i) std::memcpy(d[i][t], from + i * WIDTH, A * sizeof(float));
        }
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

  // The results of one channel: its part of m is transformed, then bias, sum and relu. `plane` counts channels over all images.
  static void deliver(const float (&m)[A * A][KK][T], size_t k, size_t channel, size_t plane, size_t begin, void** tensors) {
    const float shift = BIAS ? static_cast<const float*>(tensors[2])[channel] : 0.0f;
    const size_t count = TILES - begin < T ? TILES - begin : T;
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
      for (size_t t = 0; t < GROUP && first + t < count; ++t) put(&o[0][t][0], begin + first + t, plane, tensors);
    }
  }

  static void put(const float* o, size_t tile, size_t plane, void** tensors) {
    const size_t top = tile / COLUMNS * R, left = tile % COLUMNS * R, start = (plane * OH + top) * OW + left;
    const float* z = SUM ? static_cast<const float*>(tensors[3]) + start : nullptr;
    float* y = static_cast<float*>(tensors[4]) + start;
    if (top + R <= OH && left + R <= OW) {
      for (size_t i = 0; i < R; ++i) {
        row_t row, more;
        std::memcpy(&row, o + i * GROUP * R, sizeof row);
        if (SUM) std::memcpy(&more, z + i * OW, sizeof more), row += more;
        if (RELU) row = row < 0.0f ? row_t{} : row;
        std::memcpy(y + i * OW, &row, sizeof row);
      }
      return;
    }
    for (size_t i = 0; i < R && top + i < OH; ++i)
      for (size_t j = 0; j < R && left + j < OW; ++j) {
        const float value = SUM ? o[i * GROUP * R + j] + z[i * OW + j] : o[i * GROUP * R + j];
        y[i * OW + j] = RELU && value < 0.0f ? 0.0f : value;
      }
  }

  static void block(void* data, size_t number) {
    float* v = taso_mirage_room.of(A * A * C * T);
    alignas(64) float m[A * A][KK][T];
    void** tensors = static_cast<void**>(data);
    const size_t image = number / PARTS / EACH_IMAGE, first = number / PARTS % EACH_IMAGE * T;
    const size_t begin = number % PARTS * SHARE, end = begin + SHARE < GROUPS * STRIPS ? begin + SHARE : GROUPS * STRIPS;
    for (size_t strip = begin; strip < end; ++strip) {
      const size_t group = strip / STRIPS, row = strip % STRIPS * KK;
      if (strip == begin || row == 0) transform(static_cast<const float*>(tensors[0]) + (image * GROUPS + group) * C * H * W, first, v);
      multiply(static_cast<const float*>(tensors[1]) + strip * STRIP, v, m);
      for (size_t k = 0; k < KK && row + k < K; ++k) {
        const size_t channel = group * K + row + k;
        deliver(m, k, channel, image * GROUPS * K + channel, first, tensors);
      }
    }
  }
};

}  // namespace
