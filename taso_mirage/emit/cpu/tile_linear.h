// A product of many rows in single precision on a processor's matrix unit, by parts of numbers. `digits` makes the parts of a row of x, once a run.
// Weights lie as those of `Linear`, and a block makes the parts of its strip, of CHUNK steps at a time, in the second cache: from memory they take
// longer than that. Weights that are numbers of bfloat16 or half precision have one part or two. Rows of x with numbers that parts do not hold are
// multiplied by vectors, and so are all rows with such weights, or where a processor or a system has no unit.
//
// The parts of a tile of rows lie step by step, of DEPTH elements: [steps][parts][rows][DEPTH]; those of a strip [steps][parts][2][DEPTH / 2][16][2].

namespace {

template <size_t M, size_t K, size_t N, size_t COLUMNS, size_t ROWS, size_t PARTS, bool BIAS, bool SUM, bool FREE>
struct TileLinear {
  using Floats = Linear<M, K, N, COLUMNS, ROWS, PARTS, BIAS, SUM, FREE>;
  static constexpr size_t BLOCKS = Floats::BLOCKS, HEAD = Floats::HEAD, PREPARED = Floats::PREPARED, MOST_PARTS = 3;
  // Rows of which vectors hold the sums of a strip in registers, beside a row of weights.
  static constexpr size_t HELD = (REGISTERS - 2) / Floats::VECTORS - 1, SUB_ROWS = Floats::VECTORS > (REGISTERS - 2) / 2 ? 1 : HELD < 6 ? HELD : 6;
  static constexpr size_t DEPTH = 32, STEPS = (K + DEPTH - 1) / DEPTH, LINE = DEPTH * 2, TILE = 16 * LINE, PAIR = 2 * TILE;
  static constexpr size_t PAIRS = COLUMNS / 32, ROW = MOST_PARTS * STEPS * LINE, CHUNKS = (STEPS + 23) / 24, CHUNK = (STEPS + CHUNKS - 1) / CHUNKS;
  static_assert(COLUMNS % 32 == 0 && ROWS == 32, "two tiles by two");

  // How many parts the weights need; 0: they are multiplied by vectors.
  static size_t parts_of(const float* w) {
    bits_t largest = {}, second = {}, third = {};
    for (size_t i = 0; i < K * N; i += LANES) {
      lanes_t rest = Floats::some(w + i, K * N - i < LANES ? K * N - i : LANES);
      const bits_t magnitude = as<bits_t>(rest) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
      part_of(rest);
      second |= part_of(rest);
      third |= part_of(rest);
    }
    uint32_t most = 0, more = 0, all = 0;
    for (size_t i = 0; i < LANES; ++i) most = largest[i] > most ? largest[i] : most, more |= second[i], all |= third[i];
    if (most < LEAST || most >= MOST) return 0;
    return all << 1 != 0 ? 3 : more << 1 != 0 ? 2 : 1;
  }
  static void prepare(const void* weights, void* prepared) {
    *static_cast<char*>(prepared) = static_cast<char>(has_tiles() ? parts_of(static_cast<const float*>(weights)) : 0);
    Floats::template arrange<Single>(static_cast<const uint32_t*>(weights), static_cast<char*>(prepared) + HEAD);
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
        const halves_t stored = __builtin_convertvector(part_of(rest) >> 16, halves_t);
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
    const uint32_t* w = reinterpret_cast<const uint32_t*>(prepared + HEAD) + strip * Floats::STRIP;
#if HAS_TILES
    if (*prepared == 1) by_tiles<1>(w, strip, tiles, begin, end, tensors);
    if (*prepared == 2) by_tiles<2>(w, strip, tiles, begin, end, tensors);
    if (*prepared == 3) by_tiles<3>(w, strip, tiles, begin, end, tensors);
#endif
    for (size_t i = begin; i < end; ++i)
      if (*prepared == 0) by_vectors(w, strip, tiles[i].row, tiles[i].count, tensors);
      else
        for (size_t row = tiles[i].row; row < tiles[i].row + tiles[i].count; ++row)
          if (flags(tensors)[row]) by_vectors(w, strip, row, 1, tensors);
  }
  static void by_vectors(const uint32_t* w, size_t strip, size_t row, size_t rows, void** tensors) {
    for (size_t k = 0; k < K; k += Floats::CHUNK) {
      const size_t last = K - k < Floats::CHUNK ? K : k + Floats::CHUNK;
      for (size_t m = 0; m < rows; m += SUB_ROWS)
        with_constant<SUB_ROWS>(rows - m < SUB_ROWS ? rows - m : SUB_ROWS, [&](auto count) {
          Floats::template tile<Single, count>(w + k * COLUMNS, k, last, row + m, strip * COLUMNS, tensors, nullptr, 0);
        });
    }
  }

#if HAS_TILES
  template <size_t W>
  static void by_tiles(const uint32_t* w, size_t strip, const Tiles& tiles, size_t begin, size_t end, void** tensors) {
    if (begin == end) return;
    const char* x = static_cast<const char*>(tensors[6]);
    constexpr size_t STEP = DEPTH * COLUMNS * sizeof *w;
    const size_t bytes = (STEP / PAIRS + end - begin - 1) / (end - begin);
    alignas(64) char parts[PAIRS * CHUNK * W * PAIR];
    alignas(64) float made[2][ROWS * 32];
    for (size_t step = 0; step < STEPS; step += CHUNK) {
      const size_t count = STEPS - step < CHUNK ? STEPS - step : CHUNK;
      for (size_t pair = 0; pair < PAIRS; ++pair) split<W>(w + pair * 32, step, count, parts + pair * count * W * PAIR);
      // The results of two tiles by two are delivered behind the next ones' products: what the unit has just stored takes long to load.
      const auto finish = [&](size_t done) {
        deliver(made[done % 2], tiles[begin + done / PAIRS], strip * COLUMNS + done % PAIRS * 32, step > 0, step + count == STEPS, tensors);
      };
      size_t number = 0;
      for (size_t i = begin; i < end; ++i) {
        const Tile tile = tiles[i];
        const char* from = x + tile.row * ROW + step * MOST_PARTS * tile.count * LINE;
        const char* next = reinterpret_cast<const char*>(w) + (step + count) * STEP + (i - begin) * PAIRS * count * bytes;
        configure(tile.count);
        for (size_t pair = 0; pair < PAIRS; ++pair, ++number, next += count * bytes) {
          const char* own = parts + pair * count * W * PAIR;
          if (tile.count > 16) multiply<W, true>(from, own, tile.count, count, next, bytes, made[number % 2]);
          else multiply<W, false>(from, own, tile.count, count, next, bytes, made[number % 2]);
          if (number > 0) finish(number - 1);
        }
      }
      finish(number - 1);
    }
    _tile_release();
  }
  template <size_t W>
  static void split(const uint32_t* w, size_t step, size_t count, char* parts) {
    for (size_t i = 0; i < count; ++i, parts += W * PAIR)
      for (size_t row = 0; row < DEPTH; row += 2)
        for (size_t half = 0; half < 2; ++half) {
          const size_t k = (step + i) * DEPTH + row;
          const uint32_t* at = w + k * COLUMNS + half * 16;
          lanes_t even = k < K ? Single::load(at) : lanes_t{}, odd = k + 1 < K ? Single::load(at + COLUMNS) : lanes_t{};
          for (size_t part = 0; part < W; ++part) {
            const bits_t both = part_of(even) >> 16 | part_of(odd);
            std::memcpy(parts + part * PAIR + half * TILE + row / 2 * LINE, &both, sizeof both);
          }
        }
  }
  // Tiles 0 to 3 are sums of the upper and the lower half of the rows, 4 and 5 those of x, 6 and 7 weights.
  static void configure(size_t rows) {
    TileShapes made;
    const uint8_t upper = static_cast<uint8_t>(rows > 16 ? (rows + 1) / 2 : rows), lower = static_cast<uint8_t>(rows > 16 ? rows / 2 : 1);
    for (size_t i = 0; i < 8; ++i) made.rows[i] = i > 5 ? 16 : i < 2 || i == 4 ? upper : lower;
    made.load();
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
    asm volatile("" : : "r"(w) : "memory");
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
  static void deliver(const float* made, const Tile& tile, size_t first, bool more, bool last, void** tensors) {
    for (size_t m = 0; m < tile.count; ++m)
      for (size_t i = 0; i < 32 && first + i < N; i += LANES)
        Floats::deliver(Floats::some(made + m * 32 + i, LANES), more, last, tile.row + m, first + i, tensors);
  }
#endif
};

}  // namespace
