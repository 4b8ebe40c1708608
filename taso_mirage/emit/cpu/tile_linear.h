// A product of many rows in single precision on a processor's matrix unit (AMX), which multiplies numbers of bfloat16 and sums in single precision. A
// number is three parts of bfloat16, each the rest of those before, rounded: they hold its 24 bits. Of the nine products of parts, six are larger than
// the rounding of single precision; the others are left out. `digits` makes the parts of a row of x, once a run. Weights that are numbers of bfloat16 or half
// precision have one part or two.
//
// Parts of small numbers are subnormal, which the unit takes for zero, and those of the largest are infinite. So a row of x whose largest number is not
// between LEAST and MOST is multiplied by vectors, with weights that are summed up again; other weights, and those of a processor
// or a system without the unit, lie as those of `Linear`.
//
// The parts of a tile of rows lie step by step, of DEPTH elements: [steps][parts][rows][DEPTH]; weights [strips][pairs of tiles][steps][parts][2][DEPTH / 2][16][2].

#if defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)
#define HAS_TILES 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#define HAS_TILES 0
#endif

namespace {

// Whether the system lets this process use the unit.
inline bool has_tiles() {
#if HAS_TILES
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;
  static const bool made = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  return made;
#else
  return false;
#endif
}

template <size_t M, size_t K, size_t N, size_t COLUMNS, size_t ROWS, size_t PARTS, bool BIAS, bool SUM, bool FREE>
struct TileLinear {
  using Floats = Linear<M, K, N, COLUMNS, ROWS, PARTS, BIAS, SUM, FREE>;
  static constexpr size_t BLOCKS = Floats::BLOCKS, STRIPS = Floats::STRIPS, HEAD = Floats::HEAD, MOST_PARTS = 3, SUB_ROWS = 6;
  static constexpr size_t DEPTH = 32, STEPS = (K + DEPTH - 1) / DEPTH, LINE = DEPTH * 2, TILE = 16 * LINE, PAIR = 2 * TILE, PAIRS = COLUMNS / 32;
  static constexpr size_t ROW = MOST_PARTS * STEPS * LINE, CHUNKS = (STEPS + 23) / 24, CHUNK = (STEPS + CHUNKS - 1) / CHUNKS;
  static constexpr size_t PREPARED = HAS_TILES ? HEAD + STRIPS * PAIRS * STEPS * MOST_PARTS * PAIR : Floats::PREPARED;
  static constexpr uint32_t LEAST = (127u - 60) << 23, MOST = 254u << 23;
  static_assert(COLUMNS % 32 == 0 && ROWS == 32, "two tiles by two");

  // Two parts beside each other are one number of 32 bits.
  static uint32_t part_of(float& rest) {
    const uint32_t bits = as<uint32_t>(rest), made = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    rest -= as<float>(made << 16);
    return made;
  }
  // How many parts the weights need; 0: they lie as they are.
  static size_t parts_of(const uint32_t* w) {
    uint32_t most = 0;
    size_t made = 1;
    for (size_t i = 0; i < K * N; ++i) {
      const uint32_t magnitude = w[i] & 0x7fffffff;
      most = magnitude > most ? magnitude : most;
      float rest = as<float>(w[i]);
      for (size_t part = 0; part < MOST_PARTS; ++part)
        if (part_of(rest) << 1 != 0 && part >= made) made = part + 1;
    }
    return LEAST <= most && most < MOST ? made : 0;
  }
  static void prepare(const void* weights, void* prepared) {
    const uint32_t* w = static_cast<const uint32_t*>(weights);
    const size_t parts = has_tiles() ? parts_of(w) : 0;
    *static_cast<char*>(prepared) = static_cast<char>(parts);
    void* strips = static_cast<char*>(prepared) + HEAD;
    if (parts == 0) return Floats::template arrange<Single>(w, strips);
    uint16_t* made = static_cast<uint16_t*>(strips);
    for (size_t pair = 0; pair < STRIPS * PAIRS; ++pair)
      for (size_t step = 0; step < STEPS; ++step, made += parts * PAIR / 2)
        for (size_t i = 0; i < PAIR / 2; ++i) {
          const size_t column = pair * 32 + i / (TILE / 2) * 16 + i / 2 % 16, k = step * DEPTH + i % (TILE / 2) / 32 * 2 + i % 2;
          float rest = k < K && column < N ? as<float>(w[k * N + column]) : 0.0f;
          for (size_t part = 0; part < parts; ++part) made[part * PAIR / 2 + i] = static_cast<uint16_t>(part_of(rest));
        }
  }

  struct Tile { size_t row, count; };
  // The first tiles have one row more than the others.
  struct Tiles {
    size_t rows, count = (rows + ROWS - 1) / ROWS, low = rows / count, longer = rows % count;
    Tile operator[](size_t i) const { return {i * low + (i < longer ? i : longer), i < longer ? low + 1 : low}; }
    size_t of(size_t row) const { return row < longer * (low + 1) ? row / (low + 1) : (row - longer) / low; }
  };
  static size_t rows_of(void** tensors) { return FREE ? *static_cast<const size_t*>(tensors[5]) : M; }
  static bool* flags(void** tensors) { return reinterpret_cast<bool*>(static_cast<char*>(tensors[6]) + rows_of(tensors) * ROW); }

  // Of a row of x.
  static void digits(void* data, size_t row) {
    void** tensors = static_cast<void**>(data);
    if (*static_cast<const char*>(tensors[1]) == 0) return;
    const Tiles tiles{rows_of(tensors)};
    const Tile tile = tiles[tiles.of(row)];
    const float* x = static_cast<const float*>(tensors[0]) + row * K;
    char* made = static_cast<char*>(tensors[6]) + tile.row * ROW + (row - tile.row) * LINE;
    bits_t largest = {};
    for (size_t k = 0; k < STEPS * DEPTH; k += LANES) {
      lanes_t rest = k < K ? Floats::some(x + k, K - k < LANES ? K - k : LANES) : lanes_t{};
      const bits_t magnitude = as<bits_t>(rest) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
      char* at = made + k / DEPTH * MOST_PARTS * tile.count * LINE + k % DEPTH * 2;
      for (size_t part = 0; part < MOST_PARTS; ++part, at += tile.count * LINE) {
        const bits_t bits = as<bits_t>(rest), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        rest -= as<lanes_t>(rounded << 16);
        const halves_t stored = __builtin_convertvector(rounded, halves_t);
        std::memcpy(at, &stored, sizeof stored);
      }
    }
    uint32_t most = 0;
    for (size_t i = 0; i < LANES; ++i) most = largest[i] > most ? largest[i] : most;
    flags(tensors)[row] = most != 0 && (most < LEAST || most >= MOST);
  }

  static void block(void* data, size_t number) {
    void** tensors = static_cast<void**>(data);
    const size_t rows = rows_of(tensors);
    if (rows == 0) return;
    const Tiles tiles{rows};
    const size_t strip = number / PARTS, part = number % PARTS;
    const size_t begin = part * tiles.count / PARTS, end = (part + 1) * tiles.count / PARTS;
    const char* prepared = static_cast<const char*>(tensors[1]);
    if (*prepared == 0) return by_vectors(prepared + HEAD, strip, tiles, begin, end, tensors);
#if HAS_TILES
    if (*prepared == 1) by_tiles<1>(prepared + HEAD, strip, tiles, begin, end, tensors);
    if (*prepared == 2) by_tiles<2>(prepared + HEAD, strip, tiles, begin, end, tensors);
    if (*prepared == 3) by_tiles<3>(prepared + HEAD, strip, tiles, begin, end, tensors);
#endif
  }
  static void by_vectors(const void* strips, size_t strip, const Tiles& tiles, size_t begin, size_t end, void** tensors) {
    const uint32_t* w = static_cast<const uint32_t*>(strips) + strip * Floats::STRIP;
    for (size_t k = 0; k < K; k += Floats::CHUNK) {
      const size_t last = K - k < Floats::CHUNK ? K : k + Floats::CHUNK;
      for (size_t i = begin; i < end; ++i)
        for (size_t m = 0; m < tiles[i].count; m += SUB_ROWS)
          with_constant<SUB_ROWS>(tiles[i].count - m < SUB_ROWS ? tiles[i].count - m : SUB_ROWS, [&](auto count) {
            Floats::template tile<Single, count>(w + k * COLUMNS, k, last, tiles[i].row + m, strip * COLUMNS, tensors, nullptr, 0);
          });
    }
  }

#if HAS_TILES
  struct Shapes {
    uint8_t palette = 1, start = 0, none[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  };
  template <size_t W>
  static void by_tiles(const char* strips, size_t strip, const Tiles& tiles, size_t begin, size_t end, void** tensors) {
    constexpr size_t STEP = W * PAIR, STRIP = PAIRS * STEPS * STEP;
    const char *w = strips + strip * STRIP, *x = static_cast<const char*>(tensors[6]);
    const size_t bytes = begin < end ? (STEP + end - begin - 1) / (end - begin) : 0;
    // The results of a tile are delivered behind the next tile's products: what the unit has just stored takes long to load.
    alignas(64) float made[2][ROWS * 32];
    size_t number = 0;
    const auto finish = [&](size_t done) {
      const size_t pair = done % PAIRS, i = begin + done / PAIRS % (end - begin), step = done / PAIRS / (end - begin) * CHUNK;
      deliver(made[done % 2], tiles[i], strip * COLUMNS + pair * 32, step > 0, step + CHUNK >= STEPS, tensors);
    };
    for (size_t step = 0; step < STEPS; step += CHUNK) {
      const size_t count = STEPS - step < CHUNK ? STEPS - step : CHUNK;
      for (size_t i = begin; i < end; ++i) {
        const Tile tile = tiles[i];
        configure(tile.count);
        for (size_t pair = 0; pair < PAIRS; ++pair, ++number) {
          const char* own = w + (pair * STEPS + step) * STEP;
          const char* next = (step + count < STEPS ? own + count * STEP : w + STRIP + pair * STEPS * STEP) + (i - begin) * count * bytes;
          const char* from = x + tile.row * ROW + step * MOST_PARTS * tile.count * LINE;
          if (tile.count > 16) multiply<W, true>(from, own, tile.count, count, next, bytes, made[number % 2]);
          else multiply<W, false>(from, own, tile.count, count, next, bytes, made[number % 2]);
          if (number > 0) finish(number - 1);
        }
      }
    }
    if (number > 0) finish(number - 1);
    _tile_release();
    for (size_t i = begin; i < end; ++i)
      for (size_t row = tiles[i].row; row < tiles[i].row + tiles[i].count; ++row)
        if (flags(tensors)[row])
          for (size_t pair = 0; pair < PAIRS; ++pair) summed_row<W>(w + pair * STEPS * STEP, row, strip * COLUMNS + pair * 32, tensors);
  }
  // Tiles 0 to 3 are sums of the upper and the lower half of the rows, 4 and 5 those of x, 6 and 7 weights.
  static void configure(size_t rows) {
    Shapes made;
    const uint8_t upper = static_cast<uint8_t>(rows > 16 ? (rows + 1) / 2 : rows), lower = static_cast<uint8_t>(rows > 16 ? rows / 2 : 1);
    for (size_t i = 0; i < 8; ++i) made.bytes[i] = LINE, made.rows[i] = i > 5 ? 16 : i < 2 || i == 4 ? upper : lower;
    asm volatile("" : : "r"(&made) : "memory");  // g++ takes the next line for a reader of the first bytes only
    _tile_loadconfig(&made);
  }
  template <bool BOTH>
  static void load_rows(const char* x, size_t rows) {
    _tile_loadd(4, x, LINE);
    if constexpr (BOTH) _tile_loadd(5, x + (rows + 1) / 2 * LINE, LINE);
  }
  static void load_weights(const char* w) {
    _tile_loadd(6, w, LINE);
    _tile_loadd(7, w + TILE, LINE);
  }
  template <bool BOTH>
  static void add_products() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (BOTH) {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  template <size_t W, bool BOTH>
  static void multiply(const char* x, const char* w, size_t rows, size_t steps, const char* next, size_t bytes, float* made) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t step = 0; step < steps; ++step, x += MOST_PARTS * rows * LINE, w += W * PAIR, next += bytes) {
      for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(next + i, _MM_HINT_T1);
      load_rows<BOTH>(x, rows);
      if constexpr (W > 2) load_weights(w + 2 * PAIR), add_products<BOTH>();
      if constexpr (W > 1) load_weights(w + PAIR), add_products<BOTH>();
      load_weights(w), add_products<BOTH>();
      load_rows<BOTH>(x + 2 * rows * LINE, rows), add_products<BOTH>();
      load_rows<BOTH>(x + rows * LINE, rows), add_products<BOTH>();
      if constexpr (W > 1) load_weights(w + PAIR), add_products<BOTH>();
    }
    _tile_stored(0, made, 32 * sizeof *made);
    _tile_stored(1, made + 16, 32 * sizeof *made);
    if constexpr (BOTH) {
      _tile_stored(2, made + (rows + 1) / 2 * 32, 32 * sizeof *made);
      _tile_stored(3, made + (rows + 1) / 2 * 32 + 16, 32 * sizeof *made);
    }
  }
  static void deliver(const float* made, const Tile& tile, size_t column, bool more, bool last, void** tensors) {
    for (size_t m = 0; m < tile.count; ++m)
      for (size_t i = 0; i < 32 && column + i < N; i += LANES)
        Floats::deliver(Floats::some(made + m * 32 + i, LANES), more, last, tile.row + m, column + i, tensors);
  }
  // A row of 32 results, from weights that are the sums of their parts.
  template <size_t W>
  static void summed_row(const char* w, size_t row, size_t column, void** tensors) {
    const float* x = static_cast<const float*>(tensors[0]) + row * K;
    lanes_t sums[2] = {};
    for (size_t k = 0; k < K; ++k)
      for (size_t i = 0; i < 2; ++i) {
        const char* at = w + k / DEPTH * W * PAIR + i * TILE + k % DEPTH / 2 * LINE;
        lanes_t weights = {};
        for (size_t part = W; part-- > 0;) {
          bits_t both;
          std::memcpy(&both, at + part * PAIR, sizeof both);
          weights += as<lanes_t>(k % 2 ? both & 0xffff0000 : both << 16);
        }
        sums[i] += x[k] * weights;
      }
    for (size_t i = 0; i < 2 && column + i * 16 < N; ++i) Floats::deliver(sums[i], false, true, row, column + i * 16, tensors);
  }
#endif
};

}  // namespace
