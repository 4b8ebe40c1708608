// A processor's matrix unit (AMX), which multiplies numbers of bfloat16 and sums in single precision. A number in single precision is three parts of
// bfloat16, each the rest of those before, rounded: they hold its 24 bits. Of the nine products of parts, six are larger than the rounding of single
// precision; the others are left out.
//
// Parts of small numbers are subnormal, which the unit takes for zero, and those of the largest are infinite. So where the largest number of a sum's
// operand is not between LEAST and MOST, vectors multiply.

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

// A part is the upper half of what is left, rounded; the rest is exact.
inline bits_t part_of(lanes_t& rest) {
  const bits_t made = (as<bits_t>(rest) + 0x8000) & 0xffff0000;
  rest -= as<lanes_t>(made);
  return made;
}

// The largest of the numbers with these bits without a sign for which parts hold 24 bits, and the first one that is too large.
constexpr uint32_t LEAST = (127u - 60) << 23, MOST = 254u << 23;

#if HAS_TILES
// The unit's tiles: rows of 64 bytes.
struct TileShapes {
  uint8_t palette = 1, start = 0, none[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  void load() const {
    asm volatile("" : : "r"(this) : "memory");  // else g++ may leave out what it does not see read
    _tile_loadconfig(this);
  }
};
#endif

}  // namespace
