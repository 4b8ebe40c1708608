// A convolution with a kernel of one element, for one block of PIXELS of an image and one part of the output channels, on a processor's matrix unit:
// weights (O x K) times the image (K x P), whose channels are rows of P pixels, so no layout changes. A number is three parts of bfloat16. `prepare`
// makes those of the weights, once; a block makes those of its pixels, strip by strip of 32, as it reads them or as the prologue gives them, and
// multiplies tiles of 32 channels by 32 pixels. Bias, summand and relu are applied on the way to memory. A strip whose largest number parts do not hold
// is multiplied by vectors, and so are all strips with such weights, or where a processor or a system has no unit.
//
// The parts of the weights lie [O / 32][steps][parts][32 channels][DEPTH], those of a strip [steps][parts][2][DEPTH / 2][16 pixels][2].

namespace {

// N images of K channels, P pixels each; O channels of results; the channels are in PARTS. The tensors of a block: data, prepared weights, bias
// (where BIAS), what is added (where SUM), results. PROLOGUE: a class whose `of` writes a function of a row of the data; void: the data itself.
template <size_t N, size_t K, size_t P, size_t O, size_t PIXELS, size_t PARTS, bool BIAS, bool SUM, bool RELU, class PROLOGUE>
struct Pointwise {
  static constexpr size_t DEPTH = 32, STEPS = (K + DEPTH - 1) / DEPTH, PAIRS = (O + 31) / 32, EACH = PIXELS / 32, GROUPS = (P + PIXELS - 1) / PIXELS;
  static constexpr size_t BLOCKS = N * GROUPS * PARTS, LINE = DEPTH * 2, TILE = 16 * LINE, PAIR = 2 * TILE, STEP = 3 * PAIR, HEAD = 64, COUNT = P, CUT = PARTS;
  static constexpr size_t PREPARED = HEAD + PAIRS * STEPS * STEP, VECTORS = 32 / LANES, ROWS = REGISTERS / 2 / VECTORS > 1 ? REGISTERS / 2 / VECTORS : 1;
  // Numbers that a thread keeps: the parts of a block's pixels, and a strip of the data.
  static constexpr size_t ROOM = EACH * STEPS * STEP / sizeof(float) + K * 32;
  static_assert(PIXELS % 32 == 0, "strips of 32 pixels");

  static void prepare(const void* weights, void* prepared) {
    const float* w = static_cast<const float*>(weights);
    char* head = static_cast<char*>(prepared);
    uint32_t most = 0;
    for (size_t i = 0; i < O * K; ++i) most = magnitude(w[i]) > most ? magnitude(w[i]) : most;
    *head = has_tiles() && most >= LEAST && most < MOST;
    if (*head == 0) std::memcpy(head + HEAD, w, O * K * sizeof(float));
    for (size_t o = 0; o < PAIRS * 32 && *head != 0; ++o)
      for (size_t k = 0; k < STEPS * DEPTH; ++k) {
        float rest = o < O && k < K ? w[o * K + k] : 0.0f;
        for (size_t part = 0; part < 3; ++part) {
          const uint32_t made = (as<uint32_t>(rest) + 0x8000) & 0xffff0000;
          const uint16_t stored = static_cast<uint16_t>(made >> 16);
          rest -= as<float>(made);
          std::memcpy(head + HEAD + place(o, k, part), &stored, sizeof stored);
        }
      }
  }
  static uint32_t magnitude(float value) { return as<uint32_t>(value) & 0x7fffffff; }
  static constexpr size_t place(size_t o, size_t k, size_t part) {
    return (o / 32 * STEPS + k / DEPTH) * STEP + part * PAIR + o % 32 * LINE + k % DEPTH * 2;
  }
  // A weight, which may be the sum of its parts.
  template <bool SPLIT>
  static float weight(const char* w, size_t o, size_t k) {
    float made = 0.0f;
    if constexpr (!SPLIT) std::memcpy(&made, w + (o * K + k) * sizeof made, sizeof made);
    for (size_t part = SPLIT ? 3 : 0; part-- > 0;) {
      uint16_t stored;
      std::memcpy(&stored, w + place(o, k, part), sizeof stored);
      made += as<float>(static_cast<uint32_t>(stored) << 16);
    }
    return made;
  }

  // Some pixels of an image, and pairs of tiles of output channels.
  struct Part { size_t image, pixel, count, begin, end; };

  static void block(void* data, size_t number) {
    void** tensors = static_cast<void**>(data);
    const size_t first = number / PARTS % GROUPS * PIXELS, last = first + PIXELS < P ? first + PIXELS : P, part = number % PARTS;
    const Part whole{number / PARTS / GROUPS, first, last - first, part * PAIRS / PARTS, (part + 1) * PAIRS / PARTS};
    if (whole.begin == whole.end) return;
#if HAS_TILES
    if (*static_cast<const char*>(tensors[1]) != 0) return by_tiles(whole, tensors);
#endif
    for (size_t pixel = first; pixel < last; pixel += 32) by_vectors<false>(strip(whole, pixel), tensors);
  }
  static Part strip(const Part& whole, size_t pixel) {
    const size_t left = whole.pixel + whole.count - pixel;
    return {whole.image, pixel, left < 32 ? left : 32, whole.begin, whole.end};
  }

  // The pixels of a channel of the data, and zeros behind them.
  static void row(const Part& strip, size_t k, void** tensors, float* made) {
    for (size_t i = strip.count; i < 32; ++i) made[i] = 0.0f;
    if constexpr (std::is_void_v<PROLOGUE>) std::memcpy(made, data(strip, k, tensors), strip.count * sizeof *made);
    else if (strip.count == 32) PROLOGUE::of(tensors, strip.image * K + k, strip.pixel, 32, made);
    else PROLOGUE::of(tensors, strip.image * K + k, strip.pixel, strip.count, made);
  }
  static const float* data(const Part& strip, size_t k, void** tensors) {
    return static_cast<const float*>(tensors[0]) + (strip.image * K + k) * P + strip.pixel;
  }

  template <bool SPLIT>
  static void by_vectors(const Part& strip, void** tensors) {
    const char* w = static_cast<const char*>(tensors[1]) + HEAD;
    float* x = taso_mirage_room.of(ROOM) + EACH * STEPS * STEP / sizeof(float);
    for (size_t k = 0; k < K; ++k) row(strip, k, tensors, x + k * 32);
    const size_t last = strip.end * 32 < O ? strip.end * 32 : O;
    for (size_t o = strip.begin * 32; o < last; o += ROWS)
      with_constant<ROWS>(last - o < ROWS ? last - o : ROWS, [&](auto rows) {
        alignas(64) lanes_t sums[rows()][VECTORS] = {};
        for (size_t k = 0; k < K; ++k)
          for (size_t r = 0; r < rows; ++r)
            for (size_t i = 0; i < VECTORS; ++i) sums[r][i] += weight<SPLIT>(w, o + r, k) * *reinterpret_cast<const lanes_t*>(x + k * 32 + i * LANES);
        for (size_t r = 0; r < rows; ++r) deliver(reinterpret_cast<const float*>(sums[r]), strip, o + r, tensors);
      });
  }
  static void deliver(const float* made, const Part& strip, size_t o, void** tensors) {
    const float shift = BIAS ? static_cast<const float*>(tensors[2])[o] : 0.0f;
    const size_t at = (strip.image * O + o) * P + strip.pixel;
    const float* z = SUM ? static_cast<const float*>(tensors[3]) + at : nullptr;
    float* y = static_cast<float*>(tensors[4]) + at;
    if (strip.count == 32) deliver_all<32>(made, shift, z, y, 32);
    else deliver_all<0>(made, shift, z, y, strip.count);
  }
  template <size_t COUNT>
  static void deliver_all(const float* made, float shift, const float* z, float* y, size_t count) {
    for (size_t i = 0; i < (COUNT > 0 ? COUNT : count); ++i) {
      float value = made[i] + shift;
      if (SUM) value += z[i];
      y[i] = RELU && value < 0.0f ? 0.0f : value;
    }
  }

#if HAS_TILES
  static void by_tiles(const Part& whole, void** tensors) {
    const char* w = static_cast<const char*>(tensors[1]) + HEAD;
    char* x = reinterpret_cast<char*>(taso_mirage_room.of(ROOM));
    alignas(64) float made[2][32 * 32];
    bool held[EACH] = {};
    Part strips[EACH], before{};
    size_t count = 0, done = 0, channel = 0;
    for (size_t pixel = whole.pixel; pixel < whole.pixel + whole.count; pixel += 32, ++count) {
      strips[count] = strip(whole, pixel);
      held[count] = split(strips[count], tensors, x + count * STEPS * STEP);
      if (!held[count]) by_vectors<true>(strips[count], tensors);
    }
    TileShapes().load();
    // The results of two tiles by two are delivered behind the next ones' products: what the unit has just stored takes long to load.
    const auto finish = [&] {
      for (size_t o = channel * 32; done > 0 && o < channel * 32 + 32 && o < O; ++o) deliver(made[(done - 1) % 2] + o % 32 * 32, before, o, tensors);
    };
    for (size_t pair = whole.begin; pair < whole.end; ++pair)
      for (size_t i = 0; i < count; ++i) {
        if (!held[i]) continue;
        fetch(strips[i], pair, tensors);
        if (strips[i].count > 16) multiply<true>(w + pair * STEPS * STEP, x + i * STEPS * STEP, made[done % 2]);
        else multiply<false>(w + pair * STEPS * STEP, x + i * STEPS * STEP, made[done % 2]);
        finish();
        before = strips[i], channel = pair, ++done;
      }
    finish();
    _tile_release();
  }
  // The lines that results go to come to the first cache, and those of what is added.
  static void fetch(const Part& strip, size_t pair, void** tensors) {
    for (size_t o = pair * 32; o < pair * 32 + 32 && o < O; ++o)
      for (size_t i = 0; i < strip.count; i += 16) {
        const size_t at = (strip.image * O + o) * P + strip.pixel + i;
        __builtin_prefetch(static_cast<float*>(tensors[4]) + at, 1);
        if (SUM) __builtin_prefetch(static_cast<const float*>(tensors[3]) + at);
      }
  }
  // The parts of a strip; whether they hold its numbers.
  static bool split(const Part& strip, void** tensors, char* made) {
    alignas(64) float both[2][32] = {};
    bits_t largest[2] = {};
    for (size_t k = 0; k < STEPS * DEPTH; k += 2) {
      for (size_t i = 0; i < 2; ++i)
        if (k + i < K) row(strip, k + i, tensors, both[i]);
        else std::memset(both[i], 0, sizeof both[i]);
      for (size_t half = 0; half < 2; ++half) {
        char* at = made + k / DEPTH * STEP + half * TILE + k % DEPTH / 2 * LINE;
        lanes_t even = *reinterpret_cast<const lanes_t*>(both[0] + half * 16), odd = *reinterpret_cast<const lanes_t*>(both[1] + half * 16);
        const bits_t one = as<bits_t>(even) & 0x7fffffff, other = as<bits_t>(odd) & 0x7fffffff, larger = one > other ? one : other;
        largest[half] = larger > largest[half] ? larger : largest[half];
        for (size_t part = 0; part < 3; ++part) {
          const bits_t stored = part_of(even) >> 16 | part_of(odd);
          std::memcpy(at + part * PAIR, &stored, sizeof stored);
        }
      }
    }
    bool held = true;
    for (size_t i = 0; i < 32; ++i) {
      const uint32_t most = largest[i / 16][i % 16];
      held = held && (most == 0 || (most >= LEAST && most < MOST));
    }
    return held;
  }
  // Tiles 0 to 3 are sums of the upper and the lower half of the channels, 4 and 5 weights, 6 and 7 pixels.
  static void load_weights(const char* w) {
    _tile_loadd(4, w, LINE);
    _tile_loadd(5, w + TILE, LINE);
  }
  template <bool BOTH>
  static void load_pixels(const char* x) {
    _tile_loadd(6, x, LINE);
    if constexpr (BOTH) _tile_loadd(7, x + TILE, LINE);
  }
  template <bool BOTH>
  static void add_products() {
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (BOTH) _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (BOTH) _tile_dpbf16ps(3, 5, 7);
  }
  template <bool BOTH>
  static void multiply(const char* w, const char* x, float* made) {
    asm volatile("" : : "r"(x) : "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t step = 0; step < STEPS; ++step, w += STEP, x += STEP) {
      load_pixels<BOTH>(x);
      load_weights(w + 2 * PAIR), add_products<BOTH>();
      load_weights(w + PAIR), add_products<BOTH>();
      load_weights(w), add_products<BOTH>();
      load_pixels<BOTH>(x + 2 * PAIR), add_products<BOTH>();
      load_pixels<BOTH>(x + PAIR), add_products<BOTH>();
      load_weights(w + PAIR), add_products<BOTH>();
    }
    _tile_stored(0, made, 32 * sizeof *made);
    if constexpr (BOTH) _tile_stored(1, made + 16, 32 * sizeof *made);
    _tile_stored(2, made + 16 * 32, 32 * sizeof *made);
    if constexpr (BOTH) _tile_stored(3, made + 16 * 32 + 16, 32 * sizeof *made);
  }
#endif
};

// The results of a block of pixels and of a part of the channels (`Pointwise`).
template <size_t O>
struct Pixels {
  template <class Base, class F>
  static void each(size_t number, void**, F f) {
    constexpr size_t WHOLE = Base::COUNT, PARTS = Base::CUT;
    const size_t first = number / PARTS % Base::GROUPS * Base::EACH * 32, count = WHOLE - first < Base::EACH * 32 ? WHOLE - first : Base::EACH * 32;
    const size_t image = number / PARTS / Base::GROUPS, part = number % PARTS;
    for (size_t o = part * Base::PAIRS / PARTS * 32; o < (part + 1) * Base::PAIRS / PARTS * 32 && o < O; ++o) f(image * O + o, first, count);
  }
};

}  // namespace
