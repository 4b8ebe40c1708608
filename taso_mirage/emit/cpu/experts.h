// The sum of the results of the experts that each token chose, by their shares. The rows of an expert are those tokens whose share of
// it is not zero, so a run tells how many there are. `digits` computes a strip of COLUMNS of the hidden numbers of all of them, `block` a
// strip of the results. Each finds the rows by itself, expert by expert, in the order of the tokens: so a pair of an expert and a token has
// one number in both. The hidden numbers lie strip by strip, [strips][pairs][COLUMNS], the weights as they are read, strip by strip,
// [strips][E][products][1 + depth][COLUMNS], the bias first.

namespace {

// WIDTH, START, STEP: the columns of the weights of the first products, and which of them are read. TURNED: weights have rows for columns.
template <size_t T, size_t E, size_t K, size_t F, size_t N, size_t WIDTH_A, size_t START_A, size_t STEP_A, size_t WIDTH_B, size_t START_B, size_t STEP_B,
          size_t COLUMNS, size_t ROWS, bool SHARES, bool GATED, bool BY_EXPERT, bool TURNED_A, bool TURNED_B, bool TURNED, bool BIAS_A, bool BIAS_B, bool BIAS, bool FREE, class Hidden>
struct Experts {
  static constexpr size_t VECTORS = COLUMNS / LANES, STRIPS = (F + COLUMNS - 1) / COLUMNS, BLOCKS = (N + COLUMNS - 1) / COLUMNS;
  static constexpr size_t PRODUCTS = GATED ? 2 : 1, BELOW = (K + 1) * COLUMNS, ABOVE = (F + 1) * COLUMNS, AHEAD = 1536;
  static constexpr size_t HIDDEN = STRIPS * E * PRODUCTS * BELOW, PREPARED = (HIDDEN + BLOCKS * E * ABOVE) * sizeof(float);
  static_assert(SHARES, "the shares say which rows an expert has");

  static void prepare(const void* a, const void* b, const void* last, const void* bias_a, const void* bias_b, const void* bias, void* prepared) {
    float* made = static_cast<float*>(prepared);
    for (size_t strip = 0; strip < STRIPS; ++strip)
      for (size_t e = 0; e < E; ++e) {
        made = arrange<K, F, WIDTH_A, START_A, STEP_A, TURNED_A, BIAS_A>(a, bias_a, e, strip, made);
        if constexpr (GATED) made = arrange<K, F, WIDTH_B, START_B, STEP_B, TURNED_B, BIAS_B>(b, bias_b, e, strip, made);
      }
    for (size_t strip = 0; strip < BLOCKS; ++strip)
      for (size_t e = 0; e < E; ++e) made = arrange<F, N, N, 0, 1, TURNED, BIAS>(last, bias, e, strip, made);
  }
  template <size_t DEPTH, size_t COUNT, size_t WIDTH, size_t START, size_t STEP, bool TRANSPOSED, bool BIASED>
  static float* arrange(const void* weights, const void* bias, size_t e, size_t strip, float* made) {
    const float* b = static_cast<const float*>(bias) + (BIASED ? e * WIDTH + START : 0);
    const float* w = static_cast<const float*>(weights) + e * DEPTH * WIDTH + START * (TRANSPOSED ? DEPTH : 1);
    constexpr size_t DOWN = TRANSPOSED ? 1 : WIDTH, RIGHT = TRANSPOSED ? STEP * DEPTH : STEP;
    for (size_t n = strip * COLUMNS; n < (strip + 1) * COLUMNS; ++n) *made++ = BIASED && n < COUNT ? b[n * STEP] : 0.0f;
    for (size_t k = 0; k < DEPTH; ++k, w += DOWN)
      for (size_t n = strip * COLUMNS; n < (strip + 1) * COLUMNS; ++n) *made++ = n < COUNT ? w[n * RIGHT] : 0.0f;
    return made;
  }

  static size_t tokens(void** tensors) { return FREE ? *static_cast<const size_t*>(tensors[5]) : T; }
  static float share(void** tensors, size_t token, size_t e) {
    return static_cast<const float*>(tensors[2])[BY_EXPERT ? e * tokens(tensors) + token : token * E + e];
  }
  // f(constant<count>(), tokens) for the rows of an expert, a tile at a time.
  template <class Tile>
  static void each_tile(void** tensors, size_t e, Tile f) {
    const size_t count = tokens(tensors);
    size_t chosen = 0, token = 0;
    for (size_t t = 0; t < count; ++t) chosen += share(tensors, t, e) != 0.0f;
    const size_t tiles = (chosen + ROWS - 1) / ROWS;
    for (size_t i = 0; i < tiles; ++i)
      with_constant<ROWS>(chosen / tiles + (i < chosen % tiles), [&](auto rows) {
        size_t found[rows];
        for (size_t m = 0; m < rows; ++m) {
          while (share(tensors, token, e) == 0.0f) ++token;
          found[m] = token++;
        }
        f(rows, found);
      });
  }

  static void digits(void* data, size_t strip) {
    void** tensors = static_cast<void**>(data);
    const float* x = static_cast<const float*>(tensors[0]);
    const float* w = static_cast<const float*>(tensors[1]) + strip * E * PRODUCTS * BELOW;
    float* hidden = static_cast<float*>(tensors[6]) + strip * E * tokens(tensors) * COLUMNS;
    for (size_t e = 0; e < E; ++e, w += PRODUCTS * BELOW)
      each_tile(tensors, e, [&](auto rows, const size_t* found) {
        alignas(64) float made[PRODUCTS][rows * COLUMNS];
        const float* from[rows];
        for (size_t m = 0; m < rows; ++m) from[m] = x + found[m] * K;
        for (size_t i = 0; i < PRODUCTS; ++i) {
          lanes_t sums[rows][VECTORS];
          begin<rows>(w + i * BELOW, sums);
          multiply<rows>(w + i * BELOW + COLUMNS, K, from, sums);
          std::memcpy(made[i], sums, sizeof sums);
        }
        void* given[] = {made[0], made[PRODUCTS - 1], hidden};
        for (size_t m = 0; m < rows; ++m) Hidden::of(given, m, 0, COLUMNS);
        hidden += rows * COLUMNS;
      });
  }

  static void block(void* data, size_t strip) {
    void** tensors = static_cast<void**>(data);
    const size_t count = tokens(tensors), first = strip * COLUMNS, width = N - first < COLUMNS ? N - first : COLUMNS;
    const float* w = static_cast<const float*>(tensors[1]) + HIDDEN + strip * E * ABOVE;
    const float* hidden = static_cast<const float*>(tensors[6]);
    float* y = static_cast<float*>(tensors[4]) + first;
    for (size_t t = 0; t < count; ++t) std::memset(y + t * N, 0, width * sizeof *y);
    for (size_t e = 0; e < E; ++e, w += ABOVE)
      each_tile(tensors, e, [&](auto rows, const size_t* found) {
        lanes_t sums[rows][VECTORS];
        begin<rows>(w, sums);
        for (size_t part = 0; part < STRIPS; ++part) {
          const float* from[rows];
          for (size_t m = 0; m < rows; ++m) from[m] = hidden + (part * E * count + m) * COLUMNS;
          multiply<rows>(w + (1 + part * COLUMNS) * COLUMNS, F - part * COLUMNS < COLUMNS ? F - part * COLUMNS : COLUMNS, from, sums);
        }
        for (size_t m = 0; m < rows; ++m) {
          const float part = share(tensors, found[m], e);
          float each[COLUMNS];
          std::memcpy(each, sums[m], sizeof each);
          for (size_t i = 0; i < width; ++i) y[found[m] * N + i] += part * each[i];
        }
        hidden += rows * COLUMNS;
      });
  }

  // Sums that begin with the bias of a strip.
  template <size_t R>
  static void begin(const float* bias, lanes_t (&sums)[R][VECTORS]) {
    for (size_t m = 0; m < R; ++m)
      for (size_t i = 0; i < VECTORS; ++i) sums[m][i] = vector_at(bias + i * LANES);
  }
  static lanes_t vector_at(const float* from) {
    lanes_t made;
    std::memcpy(&made, from, sizeof made);
    return made;
  }
  // sums[m] += sum over k of from[m][k] * w[k], with all of them in registers.
  template <size_t R>
  static void multiply(const float* w, size_t depth, const float* const* from, lanes_t (&sums)[R][VECTORS]) {
    lanes_t made[R][VECTORS];
    for (size_t m = 0; m < R; ++m)
      for (size_t i = 0; i < VECTORS; ++i) made[m][i] = sums[m][i];
    for (size_t k = 0; k < depth; ++k, w += COLUMNS) {
      for (size_t i = 0; i < COLUMNS * sizeof *w; i += 64) __builtin_prefetch(reinterpret_cast<const char*>(w) + AHEAD + i);
      lanes_t those[VECTORS];
      for (size_t i = 0; i < VECTORS; ++i) those[i] = vector_at(w + i * LANES);
      for (size_t m = 0; m < R; ++m)
        for (size_t i = 0; i < VECTORS; ++i) made[m][i] += from[m][k] * those[i];
    }
    for (size_t m = 0; m < R; ++m)
      for (size_t i = 0; i < VECTORS; ++i) sums[m][i] = made[m][i];
  }
};

}  // namespace
