// A product of M rows with weights q of 4 or 8 bits, blocks of SIZE along K with a scale and a zero each: (q - zero) * scale. They lie as they are
// read, [strips][blocks], each block with its COLUMNS scales, zeros and then numbers, those of 8 or 4 rows of one column in 4 bytes.
//
// Tiles of a power of two of rows multiply integers: a block of x is a scale times DIGITS digits of base 256, from -128 to 127: three hold 23 bits of
// its largest element, as single precision does, two hold 15. Sums over a block are exact; the zero that all weights have is in them from the beginning, others
// are taken off by the sum of the block of x. `digits` makes them of a row, once a run. Other tiles are those of `Linear`, of CHUNK rows of weights
// at a time, as floats in the second cache.

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace {

typedef int32_t ints_t __attribute__((vector_size(LANES * 4)));
typedef int16_t pairs_t __attribute__((vector_size(LANES * 4)));
typedef uint16_t positive_t __attribute__((vector_size(LANES * 4)));
typedef int8_t narrow_t __attribute__((vector_size(LANES)));
typedef uint8_t bytes_t __attribute__((vector_size(LANES)));

template <class Vector>
inline Vector loaded(const void* from) {
  Vector made;
  std::memcpy(&made, from, sizeof made);
  return made;
}

// The sum of the products of each two neighbours.
inline ints_t multiplied_pairs(pairs_t a, pairs_t b) {
#if defined(__AVX512BW__)
  return as<ints_t>(_mm512_madd_epi16(as<__m512i>(a), as<__m512i>(b)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return as<ints_t>(_mm256_madd_epi16(as<__m256i>(a), as<__m256i>(b)));
#elif defined(__SSE2__) && !defined(__AVX__)
  return as<ints_t>(_mm_madd_epi16(as<__m128i>(a), as<__m128i>(b)));
#else
  const ints_t both = as<ints_t>(a * b);  // below 2^15, by what they are made of
  return (both << 16 >> 16) + (both >> 16);
#endif
}

// What is added to `sums` in each lane: four numbers w from 0 to 255, or to 15, times four digits.
template <size_t BITS>
inline ints_t multiplied_digits(ints_t sums, ints_t w, int32_t digits) {
#if defined(__AVX512VNNI__)
  return as<ints_t>(_mm512_dpbusd_epi32(as<__m512i>(sums), as<__m512i>(w), _mm512_set1_epi32(digits)));
#else
  const ints_t all = ints_t{} + digits;
#if defined(__AVXVNNI__) && !defined(__AVX512F__)
  return as<ints_t>(_mm256_dpbusd_avx_epi32(as<__m256i>(sums), as<__m256i>(w), as<__m256i>(all)));
#elif defined(__AVX512BW__)
  if constexpr (BITS == 4) return sums + multiplied_pairs(as<pairs_t>(_mm512_maddubs_epi16(as<__m512i>(w), as<__m512i>(all))), pairs_t{} + 1);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (BITS == 4) return sums + multiplied_pairs(as<pairs_t>(_mm256_maddubs_epi16(as<__m256i>(w), as<__m256i>(all))), pairs_t{} + 1);
#endif
  const pairs_t even = as<pairs_t>(w) & 255, odd = as<pairs_t>(as<positive_t>(w) >> 8), x = as<pairs_t>(all);
  return sums + multiplied_pairs(even, x << 8 >> 8) + multiplied_pairs(odd, x >> 8);
#endif
}

enum Zeros : char { HALF_OF_ALL, WHOLE, FLOATING };

template <size_t M, size_t K, size_t N, size_t COLUMNS, size_t ROWS, size_t PARTS, size_t BITS, size_t SIZE, size_t DIGITS, Zeros ZEROS, bool BIAS, bool SUM, bool FREE>
struct BlockLinear {
  using Floats = Linear<M, K, N, COLUMNS, ROWS, PARTS, BIAS, SUM, FREE>;
  static constexpr size_t VECTORS = COLUMNS / LANES, BLOCKS = Floats::BLOCKS, DEPTH = (K + SIZE - 1) / SIZE, EACH = 32 / BITS;
  static constexpr size_t ZERO = ZEROS == WHOLE ? 1 : ZEROS == FLOATING ? 4 : 0, HEAD = COLUMNS * (4 + ZERO), PART = HEAD + COLUMNS * SIZE * BITS / 8;
  static constexpr size_t STRIP = DEPTH * PART, PREPARED = Floats::STRIPS * STRIP, AHEAD = 2048;
  static constexpr bool INTEGERS = (ROWS & (ROWS - 1)) == 0;
  // A block of a row of x: what the digits are multiplied by and the sum of its elements, what sums over them begin with, digits.
  static constexpr size_t RECORD = 32 + DIGITS * SIZE;
  static constexpr float LARGEST = DIGITS == 3 ? 127 * 65536 + 127 * 256 : 127 * 256 + 64;
  static constexpr size_t CHUNK = (256 + SIZE - 1) / SIZE * SIZE;

  static void prepare(const void* codes, const void* scales, const void* zeros, void* prepared) {
    char* made = static_cast<char*>(prepared);
    for (size_t strip = 0; strip < Floats::STRIPS; ++strip)
      for (size_t block = 0; block < DEPTH; ++block, made += PART)
        for (size_t i = 0; i < COLUMNS; ++i) arrange(codes, scales, zeros, strip * COLUMNS + i, block, i, made);
  }
  static void arrange(const void* codes, const void* scales, const void* zeros, size_t column, size_t block, size_t i, char* made) {
    const bool there = column < N;
    const size_t at = column * DEPTH + block;
    const float scale = there ? static_cast<const float*>(scales)[at] : 0;
    std::memcpy(made + 4 * i, &scale, 4);
    if constexpr (ZEROS == WHOLE) made[4 * COLUMNS + i] = there ? static_cast<char>(zero_of(zeros, column, block)) : 0;
    if constexpr (ZEROS == FLOATING) {
      const float zero = there ? static_cast<const float*>(zeros)[at] : 0;
      std::memcpy(made + 4 * COLUMNS + 4 * i, &zero, 4);
    }
    const uint8_t* from = static_cast<const uint8_t*>(codes) + at * (SIZE * BITS / 8);
    for (size_t group = 0; group < SIZE / EACH; ++group) {
      uint8_t four[4] = {}, packed[4] = {};
      if (there) std::memcpy(four, from + 4 * group, 4);
      for (size_t j = 0; j < 4; ++j)
        packed[j] = BITS == 8 ? four[j] : static_cast<uint8_t>((four[j / 2] >> 4 * (j % 2) & 15) | (four[2 + j / 2] >> 4 * (j % 2) & 15) << 4);
      std::memcpy(made + HEAD + 4 * (group * COLUMNS + i), packed, 4);
    }
  }
  static uint8_t zero_of(const void* zeros, size_t column, size_t block) {
    const uint8_t byte = static_cast<const uint8_t*>(zeros)[column * ((DEPTH * BITS + 7) / 8) + block * BITS / 8];
    return BITS == 8 ? byte : byte >> 4 * (block % 2) & 15;
  }

  // Of a row of x.
  static void digits(void* data, size_t row) {
    void** tensors = static_cast<void**>(data);
    const float* x = static_cast<const float*>(tensors[0]) + row * K;
    char* made = static_cast<char*>(tensors[6]) + row * DEPTH * RECORD;
    for (size_t block = 0; block < DEPTH; ++block, made += RECORD) {
      const size_t begin = block * SIZE, count = K - begin < SIZE ? K - begin : SIZE;
      float there[SIZE] = {};
      std::memcpy(there, x + begin, count * sizeof(float));
      digits_of(there, made);
    }
  }
  static void digits_of(const float* x, char* made) {
    ints_t most = {};
    for (size_t k = 0; k < SIZE; k += LANES) {
      const ints_t magnitude = loaded<ints_t>(x + k) & 0x7fffffff;
      most = magnitude > most ? magnitude : most;
    }
    int32_t bits = 0;
    for (size_t i = 0; i < LANES; ++i) bits = most[i] > bits ? most[i] : bits;
    float largest = as<float>(bits), lift = 1;
    const bool finite = bits < 0x7f800000;
    if (largest < 0x1p-64f) lift = 0x1p64f, largest *= lift;
    const float factor = finite && largest > 0 ? LARGEST / largest : 0;
    ints_t totals[DIGITS] = {}, all = {};
    for (size_t k = 0; k < SIZE; k += LANES) {
      lanes_t value = loaded<lanes_t>(x + k) * lift * factor;
      value += value < 0 ? lanes_t{} - 0.5f : lanes_t{} + 0.5f;
      ints_t left = finite ? __builtin_convertvector(value, ints_t) : ints_t{};
      all += left;
      for (size_t d = DIGITS; d-- > 0;) {
        const ints_t digit = left << 24 >> 24;
        left = (left - digit) >> 8;
        totals[d] += digit;
        const narrow_t stored = __builtin_convertvector(digit, narrow_t);
        std::memcpy(made + 32 + d * SIZE + k, &stored, sizeof stored);
      }
    }
    int64_t total = 0;
    int32_t begins[DIGITS] = {};
    for (size_t i = 0; i < LANES; ++i) {
      total += all[i];
      for (size_t d = 0; d < DIGITS; ++d) begins[d] -= totals[d][i] << (BITS - 1);
    }
    const float unit = finite ? largest / LARGEST / lift : as<float>(0x7fc00000);
    const float head[4] = {DIGITS == 3 ? unit * 65536 : unit * 256, DIGITS == 3 ? unit * 256 : unit, unit, unit * static_cast<float>(total)};
    std::memcpy(made, head, sizeof head);
    std::memcpy(made + sizeof head, begins, sizeof begins);
  }

  static void block(void* data, size_t number) {
    void** tensors = static_cast<void**>(data);
    const size_t strip = number / PARTS, part = number % PARTS, first = strip * COLUMNS;
    const char* w = static_cast<const char*>(tensors[1]) + strip * STRIP;
    const size_t rows = FREE ? *static_cast<const size_t*>(tensors[5]) : M, tiles = (rows + ROWS - 1) / ROWS;
    if constexpr (INTEGERS) each_tile(rows, tiles, part, [&](size_t row, auto count) { tile<count>(w, row, first, tensors); });
    else by_floats(w, rows, tiles, part, first, tensors);
  }
  // The first tiles have one row more than the others.
  template <class F>
  static void each_tile(size_t rows, size_t tiles, size_t part, F f) {
    if (rows == 0) return;
    const size_t low = rows / tiles, longer = rows % tiles;
    for (size_t i = part * tiles / PARTS; i < (part + 1) * tiles / PARTS; ++i) {
      const size_t row = i * low + (i < longer ? i : longer);
      if constexpr (FREE) with_constant<ROWS>(i < longer ? low + 1 : low, [&](auto count) { f(row, count); });
      else if (i < Floats::LONG) f(row, std::integral_constant<size_t, Floats::SHORT + (Floats::LONG > 0)>());
      else f(row, std::integral_constant<size_t, Floats::SHORT>());
    }
  }
  template <size_t R>
  static void tile(const char* w, size_t row, size_t first, void** tensors) {
    const char* x = static_cast<const char*>(tensors[6]) + row * DEPTH * RECORD;
    lanes_t sums[R][VECTORS] = {};
    for (size_t block = 0; block < DEPTH; ++block, w += PART, x += RECORD) {
      for (size_t i = 0; i < PART; i += 64) __builtin_prefetch(w + AHEAD + i);
      ints_t found[R][VECTORS][DIGITS];
      for (size_t m = 0; m < R; ++m)
        for (size_t i = 0; i < VECTORS; ++i)
          for (size_t d = 0; d < DIGITS; ++d) found[m][i][d] = ints_t{} + (ZEROS == HALF_OF_ALL ? number<int32_t>(x, m, 4 + d) : 0);
      for (size_t group = 0; group < SIZE / EACH; ++group)
        for (size_t i = 0; i < VECTORS; ++i) {
          const ints_t four = loaded<ints_t>(w + HEAD + 4 * (group * COLUMNS + i * LANES));
          const ints_t low = BITS == 8 ? four : four & 0x0f0f0f0f, high = four >> 4 & 0x0f0f0f0f;
          for (size_t m = 0; m < R; ++m)
            for (size_t d = 0; d < DIGITS; ++d) {
              const size_t at = 8 + (d * SIZE + group * EACH) / 4;
              found[m][i][d] = multiplied_digits<BITS>(found[m][i][d], low, number<int32_t>(x, m, at));
              if constexpr (BITS == 4) found[m][i][d] = multiplied_digits<BITS>(found[m][i][d], high, number<int32_t>(x, m, at + 1));
            }
        }
      for (size_t i = 0; i < VECTORS; ++i)
        for (size_t m = 0; m < R; ++m) {
          lanes_t made = __builtin_convertvector(found[m][i][0], lanes_t) * number<float>(x, m, 0);
          for (size_t d = 1; d < DIGITS; ++d) made += __builtin_convertvector(found[m][i][d], lanes_t) * number<float>(x, m, d);
          if constexpr (ZEROS != HALF_OF_ALL) made -= zeros_at(w, i) * number<float>(x, m, 3);
          sums[m][i] += made * loaded<lanes_t>(w + 4 * i * LANES);
        }
    }
    for (size_t m = 0; m < R; ++m)
      for (size_t i = 0; i < VECTORS && first + i * LANES < N; ++i) Floats::deliver(sums[m][i], false, true, row + m, first + i * LANES, tensors);
  }
  // Word `at` of the block of row m, whose row 0 has it at x.
  template <class T>
  static T number(const char* x, size_t m, size_t at) {
    return loaded<T>(x + m * DEPTH * RECORD + 4 * at);
  }
  static lanes_t zeros_at(const char* w, size_t i) {
    if constexpr (ZEROS == HALF_OF_ALL) return lanes_t{} + static_cast<float>(1 << (BITS - 1));
    else if constexpr (ZEROS == FLOATING) return loaded<lanes_t>(w + 4 * COLUMNS + 4 * i * LANES);
    else return __builtin_convertvector(loaded<bytes_t>(w + 4 * COLUMNS + i * LANES), lanes_t);
  }

  static void by_floats(const char* w, size_t rows, size_t tiles, size_t part, size_t first, void** tensors) {
    alignas(64) uint32_t floats[CHUNK * COLUMNS];
    for (size_t begin = 0; begin < K; begin += CHUNK) {
      const size_t end = K - begin < CHUNK ? K : begin + CHUNK;
      for (size_t k = begin; k < end; k += SIZE, w += PART) unpack(w, floats + (k - begin) * COLUMNS);
      each_tile(rows, tiles, part, [&](size_t row, auto count) { Floats::template tile<Single, count>(floats, begin, end, row, first, tensors, w, 0); });
    }
  }
  static void unpack(const char* w, uint32_t* floats) {
    for (size_t i = 0; i < VECTORS; ++i) {
      const lanes_t scale = loaded<lanes_t>(w + 4 * i * LANES), zero = zeros_at(w, i);
      for (size_t group = 0; group < SIZE / EACH; ++group) {
        const ints_t four = loaded<ints_t>(w + HEAD + 4 * (group * COLUMNS + i * LANES));
        for (size_t j = 0; j < EACH; ++j) {
          const ints_t q = four >> (j < 4 ? 8 * j : 8 * j - 28) & ((1 << BITS) - 1);
          const lanes_t made = (__builtin_convertvector(q, lanes_t) - zero) * scale;
          std::memcpy(floats + (group * EACH + j) * COLUMNS + i * LANES, &made, sizeof made);
        }
      }
    }
  }
};

}  // namespace
