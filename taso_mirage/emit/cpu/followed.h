// Elementwise functions of the results of a class that is written by hand. A block of the class
// writes its results; the function then changes them in place, row by row, while they are in a near
// cache. Functions of the data of a class run before its blocks, over parts of the data.

namespace {

// The results of a block of tiles of planes (`Winograd`): for each run of neighbours in a row,
// `f(plane, place of the first, count)`.
template <size_t GROUPS, size_t K, size_t OH, size_t OW, size_t RH, size_t RW, size_t T, size_t PARTS>
struct Planes {
  template <class Base, class F>
  static void each(size_t number, void**, F f) {
    const size_t image = number / PARTS / Base::EACH_IMAGE;
    const size_t first = number / PARTS % Base::EACH_IMAGE * T;
    const size_t last = first + T < Base::TILES ? first + T : Base::TILES;
    const size_t begin = number % PARTS * Base::SHARE, strips = GROUPS * Base::STRIPS;
    const size_t end = begin + Base::SHARE < strips ? begin + Base::SHARE : strips;
    for (size_t strip = begin; strip < end; ++strip) {
      const size_t channel = strip % Base::STRIPS * Base::KK;
      const size_t plane = (image * GROUPS + strip / Base::STRIPS) * K + channel;
      for (size_t k = 0; k < Base::KK && channel + k < K; ++k)
        for (size_t tile = first; tile < last;) tile = of_row(tile, last, Base::COLUMNS, plane + k, f);
    }
  }
  // The results of the tiles up to the end of a row of tiles; the tile after them.
  template <class F>
  static size_t of_row(size_t tile, size_t last, size_t columns, size_t plane, F f) {
    const size_t top = tile / columns * RH, left = tile % columns * RW;
    const size_t next = (tile / columns + 1) * columns < last ? (tile / columns + 1) * columns : last;
    const size_t right = left + (next - tile) * RW < OW ? left + (next - tile) * RW : OW;
    for (size_t i = 0; i < RH && top + i < OH; ++i) f(plane, (top + i) * OW + left, right - left);
    return next;
  }
};

// The results of a block of a strip of columns and of a part of the rows (`Linear`).
template <size_t M, size_t N, size_t COLUMNS, size_t ROWS, size_t MANY, size_t PARTS, bool FREE>
struct Strip {
  template <class Base, class F>
  static void each(size_t number, void** tensors, F f) {
    const size_t rows = FREE ? *static_cast<const size_t*>(tensors[5]) : M;
    if (rows == 0) return;
    const size_t tiles = rows <= ROWS ? 1 : (rows + MANY - 1) / MANY, low = rows / tiles, longer = rows % tiles;
    const size_t part = number % PARTS, first = number / PARTS * COLUMNS;
    const size_t begin = part * tiles / PARTS, end = (part + 1) * tiles / PARTS;
    const size_t count = N - first < COLUMNS ? N - first : COLUMNS;
    for (size_t row = begin * low + (begin < longer ? begin : longer); row < end * low + (end < longer ? end : longer); ++row)
      f(row, first, count);
  }
};

template <class Base, class Results, class Function>
struct Followed : Base {
  static void block(void* data, size_t number) {
    Base::block(data, number);
    void** tensors = static_cast<void**>(data);
    Results::template each<Base>(number, tensors, [&](size_t row, size_t column, size_t count) { Function::of(tensors, row, column, count); });
  }
};

}  // namespace
