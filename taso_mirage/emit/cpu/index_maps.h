// Integers of index maps: a row that is read, negative from the end and clamped, and a quotient that is rounded down.
namespace {

[[maybe_unused]] inline size_t row_of(int64_t row, size_t count) {
  const int64_t n = static_cast<int64_t>(count), at = row < 0 ? row + n : row;
  return static_cast<size_t>(at < 0 ? 0 : at < n ? at : n - 1);
}

[[maybe_unused]] inline ptrdiff_t floor_of(ptrdiff_t a, size_t count) {
  const ptrdiff_t b = static_cast<ptrdiff_t>(count);
  return a < 0 ? -((b - 1 - a) / b) : a / b;
}

}  // namespace
