// Vectors as long as the machine's, for the kernels that are written by hand.

namespace {

#if defined(__AVX512F__)
constexpr size_t LANES = 16, REGISTERS = 32;
#elif defined(__AVX__)
constexpr size_t LANES = 8, REGISTERS = 16;
#else
constexpr size_t LANES = 4, REGISTERS = 32;
#endif
typedef float lanes_t __attribute__((vector_size(LANES * 4)));
typedef uint32_t bits_t __attribute__((vector_size(LANES * 4)));

template <class To, class From>
inline To as(const From& from) {
  To made;
  static_assert(sizeof made == sizeof from, "the same bits");
  std::memcpy(&made, &from, sizeof made);
  return made;
}

}  // namespace
