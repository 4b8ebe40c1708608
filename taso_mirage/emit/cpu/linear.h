// A product of M rows with weights of K x N, for one strip of COLUMNS of them and one part of the rows. The weights lie as they are read, strip by
// strip, [strips][K][COLUMNS], behind a head that says in which format. A product of few rows takes as long as its weights take to come from
// memory: weights that are all numbers of bfloat16, or all of half precision, as those of most checkpoints are, lie as such then: half the
// bytes for the same numbers. One of many rows multiplies tiles of ROWS x COLUMNS, with sums in registers, over CHUNK rows of
// the weights at a time, while the next ones come to the second cache, a part with each tile, and the results' lines to the first.

#include <type_traits>

namespace {

typedef uint16_t halves_t __attribute__((vector_size(LANES * 2)));

struct Single {
  typedef uint32_t stored;
  static bool has(uint32_t) { return true; }
  static stored of(uint32_t bits) { return bits; }
  static lanes_t load(const stored* from) {
    lanes_t made;
    std::memcpy(&made, from, sizeof made);
    return made;
  }
};

inline bits_t widened(const uint16_t* from) {
  halves_t made;
  std::memcpy(&made, from, sizeof made);
  return __builtin_convertvector(made, bits_t);
}

struct Bfloat {
  typedef uint16_t stored;
  static bool has(uint32_t bits) { return (bits & 0xffff) == 0; }
  static stored of(uint32_t bits) { return static_cast<stored>(bits >> 16); }
  static lanes_t load(const stored* from) { return as<lanes_t>(widened(from) << 16); }
};

// The exponents of half precision are those of single precision less 112. Its small numbers that have no leading one are m * 2^-24: by integers
// and a difference of normal numbers, as a thread may take what is subnormal for zero.
struct Half {
  typedef uint16_t stored;
  static bool has(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7fffffff, made = of(bits) & 0x7fffu;
    if (made >= 0x7c00) return false;
    return made < 0x400 ? as<float>(made + (126u << 23)) - 0.5f == as<float>(magnitude) && (magnitude == 0 || magnitude >> 23 > 0) : (made << 13) + (112u << 23) == magnitude;
  }
  static stored of(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    if (magnitude >= 0x47800000) return static_cast<stored>(sign | 0x7c00);
    if (magnitude >= 113u << 23) return static_cast<stored>(sign | (magnitude - (112u << 23)) >> 13);
    return static_cast<stored>(sign | (as<uint32_t>(as<float>(magnitude) + 0.5f) - (126u << 23)));
  }
  static lanes_t load(const stored* from) {
    const bits_t bits = widened(from), magnitude = bits & 0x7fff;
    const bits_t normal = (magnitude << 13) + (112u << 23), small = as<bits_t>(as<lanes_t>(magnitude + (126u << 23)) - 0.5f);
    return as<lanes_t>((magnitude < 0x400 ? small : normal) | (bits & 0x8000) << 16);
  }
};

// Where a run gives how many rows there are, M is how many a tile has: then `rows` reads them, and those of a tile are counted at run time.
template <size_t M, size_t K, size_t N, size_t COLUMNS, size_t ROWS, size_t PARTS, bool BIAS, bool SUM, bool FREE>
struct Linear {
  static constexpr size_t VECTORS = COLUMNS / LANES, STRIPS = (N + COLUMNS - 1) / COLUMNS, STRIP = K * COLUMNS, BLOCKS = STRIPS * PARTS;
  static constexpr size_t HEAD = 64, PREPARED = HEAD + STRIPS * STRIP * sizeof(float), AHEAD = 1536;
  // The first LONG tiles have one row more than the others.
  static constexpr size_t TILES = (M + ROWS - 1) / ROWS, SHORT = M / TILES, LONG = M % TILES;
  static constexpr bool NARROW = FREE ? ROWS == 8 : M <= 8;
  // Rows of a tile at most, where there are more of them than one has: its sums are in registers.
  static constexpr size_t MANY = NARROW ? 6 : ROWS;
  // Bytes of the next weights that a row of these brings along, so that all tiles together bring them all.
  static constexpr size_t fetched(size_t tiles) { return (COLUMNS * sizeof(float) * PARTS + tiles - 1) / tiles; }
  static constexpr size_t CHUNKS = (K + 767) / 768, CHUNK = (K + CHUNKS - 1) / CHUNKS;
  enum Format : char { SINGLE, BFLOAT, HALF };

  static void prepare(const void* weights, void* prepared) {
    const uint32_t* w = static_cast<const uint32_t*>(weights);
    bool bfloat = NARROW, half = NARROW;
    for (size_t i = 0; i < K * N && (bfloat || half); ++i) bfloat = bfloat && Bfloat::has(w[i]), half = half && Half::has(w[i]);
    *static_cast<Format*>(prepared) = bfloat ? BFLOAT : half ? HALF : SINGLE;
    void* strips = static_cast<char*>(prepared) + HEAD;
    if (bfloat) arrange<Bfloat>(w, strips);
    else if (half) arrange<Half>(w, strips);
    else arrange<Single>(w, strips);
  }
  template <class F>
  static void arrange(const uint32_t* w, void* strips) {
    typename F::stored* made = static_cast<typename F::stored*>(strips);
    for (size_t strip = 0; strip < STRIPS; ++strip)
      for (size_t k = 0; k < K; ++k)
        for (size_t n = strip * COLUMNS; n < (strip + 1) * COLUMNS; ++n) *made++ = n < N ? F::of(w[k * N + n]) : typename F::stored{};
  }

  static void block(void* data, size_t number) {
    void** tensors = static_cast<void**>(data);
    const char* prepared = static_cast<const char*>(tensors[1]);
    const Format format = *reinterpret_cast<const Format*>(prepared);
    if constexpr (NARROW) {
      if (format == BFLOAT) return multiply<Bfloat>(prepared + HEAD, tensors, number);
      if (format == HALF) return multiply<Half>(prepared + HEAD, tensors, number);
    }
    multiply<Single>(prepared + HEAD, tensors, number);
  }
  template <class F>
  static void multiply(const void* strips, void** tensors, size_t number) {
    const size_t strip = number / PARTS, part = number % PARTS, first = strip * COLUMNS;
    const typename F::stored* w = static_cast<const typename F::stored*>(strips) + strip * STRIP;
    if constexpr (FREE) return multiply_free<F>(w, *static_cast<const size_t*>(tensors[5]), part, first, tensors);
    constexpr size_t FETCHED = fetched(TILES);
    for (size_t begin = 0; begin < K; begin += CHUNK) {
      const size_t end = K - begin < CHUNK ? K : begin + CHUNK;
      for (size_t i = part * TILES / PARTS; i < (part + 1) * TILES / PARTS; ++i) {
        const size_t row = i * SHORT + (i < LONG ? i : LONG);
        const char* next = reinterpret_cast<const char*>(w + end * COLUMNS) + (i - part * TILES / PARTS) * (end - begin) * FETCHED;
        if (i < LONG) tile<F, SHORT + 1>(w + begin * COLUMNS, begin, end, row, first, tensors, next, FETCHED);
        else tile<F, SHORT>(w + begin * COLUMNS, begin, end, row, first, tensors, next, FETCHED);
      }
    }
  }
  template <class F>
  static void multiply_free(const typename F::stored* w, size_t rows, size_t part, size_t first, void** tensors) {
    if (rows == 0) return;
    const size_t tiles = rows <= ROWS ? 1 : (rows + MANY - 1) / MANY, low = rows / tiles, longer = rows % tiles, bytes = fetched(tiles);
    for (size_t begin = 0; begin < K; begin += CHUNK) {
      const size_t end = K - begin < CHUNK ? K : begin + CHUNK;
      for (size_t i = part * tiles / PARTS; i < (part + 1) * tiles / PARTS; ++i) {
        const size_t row = i * low + (i < longer ? i : longer);
        const char* next = reinterpret_cast<const char*>(w + end * COLUMNS) + (i - part * tiles / PARTS) * (end - begin) * bytes;
        with_constant<ROWS>(i < longer ? low + 1 : low, [&](auto count) { tile<F, count>(w + begin * COLUMNS, begin, end, row, first, tensors, next, bytes); });
      }
    }
  }
  template <class F, size_t R>
  static void tile(const typename F::stored* w, size_t begin, size_t end, size_t row, size_t first, void** tensors, const char* next, size_t bytes) {
    const float* x = static_cast<const float*>(tensors[0]) + row * K;
    lanes_t sums[R][VECTORS] = {};
    for (size_t m = 0; m < R; ++m)
      for (size_t i = 0; i < COLUMNS && first + i < N; i += 16) {
        __builtin_prefetch(static_cast<float*>(tensors[4]) + (row + m) * N + first + i, 1);
        if (SUM && end == K) __builtin_prefetch(static_cast<const float*>(tensors[3]) + (row + m) * N + first + i);
      }
    for (size_t k = begin; k < end; ++k, w += COLUMNS) {
      if constexpr (NARROW)
        for (size_t i = 0; i < COLUMNS * sizeof *w; i += 64) __builtin_prefetch(reinterpret_cast<const char*>(w) + AHEAD + i);
      else
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + (k - begin) * bytes + i, 0, 2);
      lanes_t those[VECTORS];
      for (size_t i = 0; i < VECTORS; ++i) those[i] = F::load(w + i * LANES);
      for (size_t m = 0; m < R; ++m)
        for (size_t i = 0; i < VECTORS; ++i) sums[m][i] += x[m * K + k] * those[i];
    }
    for (size_t m = 0; m < R; ++m)
      for (size_t i = 0; i < VECTORS && first + i * LANES < N; ++i) deliver(sums[m][i], begin > 0, end == K, row + m, first + i * LANES, tensors);
  }
  static void deliver(lanes_t made, bool more, bool last, size_t row, size_t column, void** tensors) {
    const size_t count = N - column < LANES ? N - column : LANES, at = row * N + column;
    float* y = static_cast<float*>(tensors[4]) + at;
    if (more) made += some(y, count);
    if (BIAS && last) made += some(static_cast<const float*>(tensors[2]) + column, count);
    if (SUM && last) made += some(static_cast<const float*>(tensors[3]) + at, count);
    if (count == LANES) std::memcpy(y, &made, sizeof made);
    else std::memcpy(y, &made, count * sizeof(float));
  }
  static lanes_t some(const float* from, size_t count) {
    lanes_t made = {};
    if (count == LANES) std::memcpy(&made, from, sizeof made);
    else std::memcpy(&made, from, count * sizeof(float));
    return made;
  }
};

}  // namespace
