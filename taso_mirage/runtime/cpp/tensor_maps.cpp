#include "tensor_maps.h"

#include <array>

#include "driver.h"

namespace plan {
namespace {

constexpr int64_t ALIGNED = 16;  // bytes that all but the innermost stride are a multiple of, and the innermost dim of a box

using std::to_string;

}  // namespace

Region TensorMap::at(const Type& type, const Sizes& sizes) const {
  const std::string who = "the tensor map of argument " + to_string(argument) + " ";
  Region found;
  int64_t last = 0;  // element of the tensor
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t n = found.dims[i] = dims[i].value(sizes), stride = found.strides[i] = strides[i].value(sizes);
    const bool inner = i + 1 == dims.size();
    if (n < 1 || n > INT32_MAX) throw Problem(who + "has the dim " + to_string(n) + "; 1 to " + to_string(INT32_MAX) + " are possible");
    if (inner ? stride != 1 : stride < 1 || stride > MOST_STRIDE || stride * type.item % ALIGNED != 0)
      throw Problem(who + "has the stride " + to_string(stride) + " of elements of " + to_string(type.item) + " bytes; " +
                    (inner ? "the innermost one is 1" : "the others are multiples of 16 bytes, below " + to_string(MOST_STRIDE)));
    int64_t reach = 0;
    if (__builtin_mul_overflow(n - 1, stride, &reach) || __builtin_add_overflow(last, reach, &last)) throw Problem(who + "is larger than any memory");
  }
  if (const int64_t bytes = type.bytes(sizes); last >= bytes / type.item)
    throw Problem(who + "reaches element " + to_string(last) + " of a tensor of " + to_string(bytes / type.item));
  if (const int64_t line = box.back() * type.item; line % ALIGNED != 0 || (swizzle != 0 && line > swizzle))
    throw Problem(who + "has boxes of " + to_string(line) + " bytes along the innermost dim; a multiple of 16 up to the " + to_string(swizzle) + " that are swizzled");
  return found;
}

}  // namespace plan

namespace cuda {
namespace {

using plan::Problem;

constexpr size_t KEPT = 256;  // maps, at most: where every call has other addresses, none is worth it
constexpr int INTERLEAVED = 0, ONCE = 1;
constexpr int FETCHED = 2;  // lines of 128 bytes to the L2 cache, as Triton has it

// The driver's number of a dtype.
int element(const plan::Type& type) {
  static const std::map<std::string, int, std::less<>> numbers = {{"uint8", 0},   {"uint16", 1},  {"uint32", 2},  {"int32", 3},   {"uint64", 4},
                                                                  {"int64", 5},   {"float16", 6}, {"float32", 7}, {"float64", 8}, {"bfloat16", 9},
                                                                  {"float8_e4m3fn", 0}, {"float8_e5m2", 0}, {"int8", 0}, {"bool", 0}, {"int16", 1}};
  return numbers.find(type.dtype)->second;
}

std::string shown(const std::array<int64_t, plan::MAP_RANK>& numbers, size_t rank) {
  std::string found;
  for (size_t i = 0; i < rank; ++i) found += (i == 0 ? "" : " x ") + std::to_string(numbers[i]);
  return found;
}

// The driver counts dims from the innermost, and has strides in bytes, without that of the innermost.
EncodedMap encoded(const plan::TensorMap& map, const plan::Type& type, const void* address, const plan::Region& region, const std::string& who) {
  const size_t rank = map.dims.size();
  uint64_t dims[plan::MAP_RANK]{}, strides[plan::MAP_RANK]{};
  uint32_t box[plan::MAP_RANK]{}, steps[plan::MAP_RANK]{};
  for (size_t i = 0; i < rank; ++i) {
    const size_t from = rank - 1 - i;
    dims[i] = static_cast<uint64_t>(region.dims[from]);
    box[i] = map.box[from];
    steps[i] = ONCE;
    if (from > 0) strides[i] = static_cast<uint64_t>(region.strides[from - 1] * type.item);
  }
  const int swizzle = map.swizzle == 0 ? 0 : map.swizzle == 32 ? 1 : map.swizzle == 64 ? 2 : 3;
  EncodedMap found{};
  const Result result = driver().TensorMapEncodeTiled(&found, element(type), static_cast<uint32_t>(rank), address, dims, strides, box, steps,
                                                      INTERLEAVED, swizzle, FETCHED, map.nan ? 1 : 0);
  if (result != 0) {
    char place[32];
    std::snprintf(place, sizeof place, "%p", address);
    succeed(result, "argument " + std::to_string(map.argument) + " of " + who + ", " + type.dtype + " " + shown(region.dims, rank) + " at " + place +
                        ", has no tensor map");
  }
  return found;
}

}  // namespace

EncodedMap TensorMaps::of(const plan::TensorMap& map, const plan::Type& type, const void* address, const plan::Sizes& sizes, const std::string& who) {
  const auto key = std::make_tuple(&map, address, map.at(type, sizes));
  const std::lock_guard<std::mutex> one(guard);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const EncodedMap made = encoded(map, type, address, std::get<2>(key), who);
  if (known.size() >= KEPT) known.clear();
  return known.emplace(key, made).first->second;
}

}  // namespace cuda
