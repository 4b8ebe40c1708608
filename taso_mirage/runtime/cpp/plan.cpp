#include "plan.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace plan {
namespace {

using std::to_string;

constexpr size_t LONGEST = size_t{1} << 20;  // characters of a plan
constexpr size_t MOST = 256;                 // tensors, kernels, images
constexpr size_t RANK = 8;
constexpr int DEPTH = 16;  // of an expression
constexpr int64_t BYTES = int64_t{1} << 46;
constexpr int64_t GRID[] = {2147483647, 65535, 65535};
constexpr int64_t CLUSTER = 16;  // blocks that any GPU takes as one
constexpr int CLUSTERED = 90;    // the first compute capability that does, and that takes tensor maps
constexpr int64_t BOX = 256;     // elements of a tensor map's box along a dim

struct Named {
  const char* dtype;
  int element;
  int64_t item;
};
constexpr Named DTYPES[] = {
    {"float32", 1, 4}, {"uint8", 2, 1},    {"int8", 3, 1},    {"uint16", 4, 2},  {"int16", 5, 2},   {"int32", 6, 4},    {"int64", 7, 8},
    {"bool", 9, 1},    {"float16", 10, 2}, {"float64", 11, 8}, {"uint32", 12, 4}, {"uint64", 13, 8}, {"bfloat16", 16, 2},
    {"float8_e4m3fn", 17, 1}, {"float8_e5m2", 19, 1},
};

std::string quoted(std::string_view text) {
  std::string found = "'";
  for (char c : text.substr(0, 80)) found += c >= 32 && c < 127 ? c : '?';
  return found + (text.size() > 80 ? "...'" : "'");
}

bool letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool digit(char c) { return c >= '0' && c <= '9'; }

bool is_name(std::string_view text) {
  if (text.empty() || text.size() > 200 || !letter(text[0])) return false;
  for (char c : text)
    if (!letter(c) && !digit(c)) return false;
  return true;
}

int64_t natural(std::string_view text, const char* what, int64_t most) {
  if (text.empty() || text.size() > 18) throw Problem(std::string(what) + " " + quoted(text) + " is no number");
  int64_t found = 0;
  for (char c : text) {
    if (!digit(c)) throw Problem(std::string(what) + " " + quoted(text) + " is no number");
    found = 10 * found + (c - '0');
  }
  if (found > most) throw Problem(std::string(what) + " is " + to_string(found) + ", more than " + to_string(most));
  return found;
}

std::string hexadecimal(uint32_t value) {
  std::string found(8, '0');
  for (size_t i = 8; i-- > 0; value >>= 4) found[i] = "0123456789abcdef"[value & 15];
  return found;
}

// Recursive descent over sums, products, names, numbers and parentheses; `sizes` null: every name is 1 and quotients are not exact.
class Evaluation {
 public:
  Evaluation(std::string_view text, const Sizes* sizes) : text_(text), sizes_(sizes) {}

  int64_t run() {
    const int64_t found = sum(0);
    if (at_ < text_.size()) fail("ends at character " + to_string(at_));
    return found;
  }
  std::vector<std::string> names;

 private:
  [[noreturn]] void fail(const std::string& why) const { throw Problem("the size " + quoted(text_) + " " + why); }

  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  int64_t sum(int depth) {
    int64_t found = product(depth);
    while (next() == '+' || next() == '-') {
      const bool plus = text_[at_++] == '+';
      const int64_t other = product(depth);
      if (plus ? __builtin_add_overflow(found, other, &found) : __builtin_sub_overflow(found, other, &found)) fail("overflows");
    }
    return found;
  }

  int64_t product(int depth) {
    int64_t found = factor(depth);
    while (next() == '*' || next() == '/') {
      const bool times = text_[at_++] == '*';
      const bool down = !times && next() == '/';
      if (down) ++at_;
      const int64_t other = factor(depth);
      if (times) {
        if (__builtin_mul_overflow(found, other, &found)) fail("overflows");
      } else if (sizes_ != nullptr) {
        if (other <= 0 || (down ? found < 0 : found % other != 0)) fail("divides " + to_string(found) + " by " + to_string(other) + ", which is not exact");
        found /= other;
      }
    }
    return found;
  }

  int64_t factor(int depth) {
    if (depth > DEPTH) fail("is nested too deeply");
    const size_t start = at_;
    if (next() == '(') {
      ++at_;
      const int64_t found = sum(depth + 1);
      if (next() != ')') fail("has no closing parenthesis");
      ++at_;
      return found;
    }
    if (digit(next())) {
      while (digit(next())) ++at_;
      return natural(text_.substr(start, at_ - start), "a size", INT64_MAX);
    }
    while (letter(next()) || digit(next())) ++at_;
    const std::string name(text_.substr(start, at_ - start));
    if (!is_name(name)) fail("has no number or name at character " + to_string(start));
    names.push_back(name);
    if (sizes_ == nullptr) return 1;
    const auto found = sizes_->find(name);
    if (found == sizes_->end()) fail("needs " + name + ", which no input gives");
    return found->second;
  }

  std::string_view text_;
  const Sizes* sizes_;
  size_t at_ = 0;
};

// The parts of a text between separators, of which empty ones are left out or kept.
std::vector<std::string_view> parts(std::string_view text, char separator, bool keep) {
  std::vector<std::string_view> found;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    if (keep || end > at) found.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

void expect(const std::vector<std::string_view>& line, size_t least, size_t most) {
  if (line.size() < least || line.size() > most)
    throw Problem(quoted(line[0]) + " has " + to_string(line.size() - 1) + " fields, not " +
                  to_string(least - 1) + (most > least ? " to " + to_string(most - 1) : ""));
}

Type type(const std::vector<std::string_view>& line) {
  expect(line, 2, 2 + RANK);
  for (const Named& each : DTYPES)
    if (line[1] == each.dtype) {
      Type found{each.element, each.item, each.dtype, {}};
      for (size_t i = 2; i < line.size(); ++i) found.dims.emplace_back(line[i]);
      return found;
    }
  throw Problem(quoted(line[1]) + " is no dtype of a tensor that kernels take");
}

Argument argument(std::string_view text) {
  constexpr std::string_view roles = "iosn";
  const size_t role = text.empty() ? std::string_view::npos : roles.find(text[0]);
  if (role == std::string_view::npos) throw Problem("the argument " + quoted(text) + " is no input, output, scratch memory or size (i0, o0, s0, n0)");
  return {static_cast<Role>(role), static_cast<size_t>(natural(text.substr(1), "the number of an argument", MOST))};
}

Kernel kernel(const std::vector<std::string_view>& line) {
  expect(line, 5, 4 + MOST);
  Kernel found;
  for (size_t i = 1; i < 4; ++i) found.grid.emplace_back(line[i]);
  for (size_t i = 4; i < line.size(); ++i) found.arguments.push_back(argument(line[i]));
  return found;
}

Image image(const std::vector<std::string_view>& line) {
  expect(line, 11, 11);
  Image found;
  found.kernel = static_cast<size_t>(natural(line[1], "the kernel of an image", MOST));
  found.capability = static_cast<int>(natural(line[2], "the compute capability", 999));
  if (line[3] != "cubin" && line[3] != "ptx") throw Problem(quoted(line[3]) + " is no kind of an image; cubin and ptx are");
  found.ptx = line[3] == "ptx";
  if (!is_name(line[4])) throw Problem(quoted(line[4]) + " is no name of a kernel");
  found.symbol = line[4];
  found.warps = static_cast<unsigned>(natural(line[5], "the number of warps", 32));
  found.shared = static_cast<unsigned>(natural(line[6], "the shared memory", 1 << 20));
  found.hidden = static_cast<unsigned>(natural(line[7], "the number of hidden arguments", 8));
  found.overlap = natural(line[8], "overlap", 1) == 1;
  found.bytes = static_cast<size_t>(natural(line[9], "the size of an image", int64_t{1} << 28));
  if (found.warps == 0 || found.bytes == 0 || found.capability < 50)
    throw Problem("an image has " + to_string(found.warps) + " warps, " + to_string(found.bytes) +
                  " bytes and compute capability " + to_string(found.capability) + "; at least 1, 1 and 50 are needed");
  found.crc = 0;
  if (line[10].size() != 8) throw Problem("the checksum " + quoted(line[10]) + " has not 8 digits");
  for (char c : line[10]) {
    const char* digits = "0123456789abcdef";
    const char* place = c == '\0' ? nullptr : std::strchr(digits, c);
    if (place == nullptr) throw Problem("the checksum " + quoted(line[10]) + " is not hexadecimal");
    found.crc = 16 * found.crc + static_cast<uint32_t>(place - digits);
  }
  return found;
}

// The lines above the last, whose checksum it is: what was changed by accident is found here.
std::string_view checked(std::string_view text) {
  if (text.size() > LONGEST) throw Problem("the plan has " + to_string(text.size()) + " characters, more than " + to_string(LONGEST));
  const size_t last = text.rfind("\ncheck ");
  if (last == std::string_view::npos) throw Problem("the plan has no line 'check': it is truncated");
  const std::string_view above = text.substr(0, last + 1);
  const std::string wanted = hexadecimal(crc32(above));
  const std::string_view given = text.substr(last + 7);
  if (given != wanted && given != wanted + "\n") throw Problem("the plan's checksum is " + wanted + ", not " + quoted(given) + ": it was changed");
  return above;
}

void heading(const std::vector<std::string_view>& line, Plan& found) {
  if (line[0] != "taso_mirage") throw Problem("the plan begins with " + quoted(line[0]) + ", not with 'taso_mirage'");
  expect(line, 3, 3);
  const int64_t format = natural(line[1], "the format", 1 << 20);
  if (format != FORMAT)
    throw Problem("the plan has format " + to_string(format) + ", this library reads " + to_string(FORMAT) +
                  (format > FORMAT ? "; update taso-mirage" : "; optimize the model again"));
  if (line[2] != "cpu" && line[2] != "cuda") throw Problem(quoted(line[2]) + " is no target; cpu and cuda are");
  found.cuda = line[2] == "cuda";
}

template <class Item>
void add(std::vector<Item>& items, Item item) {
  if (items.size() >= MOST) throw Problem("the plan has more than " + to_string(MOST) + " tensors, kernels or images of a kind");
  items.push_back(std::move(item));
}

void range(const std::vector<std::string_view>& line, Plan& found) {
  expect(line, 2, 2);
  const Range made{natural(line[1], "the limit of a range", INT64_MAX), found.kernels.size()};
  const Range before = found.ranges.empty() ? Range{-1, 0} : found.ranges.back();
  if (made.end == before.end || made.most <= before.most)
    throw Problem("the range up to " + to_string(made.most) + " has no kernel, or is not above the one before, " + to_string(before.most));
  add(found.ranges, made);
}

void cluster(const std::vector<std::string_view>& line, Plan& found) {
  expect(line, 2, 2);
  const int64_t blocks = natural(line[1], "the number of blocks of a cluster", CLUSTER);
  if (found.kernels.empty() || found.kernels.back().cluster != 1 || blocks < 2)
    throw Problem("a cluster of " + to_string(blocks) + " blocks; it has 2 or more, and one kernel before it has it");
  found.kernels.back().cluster = static_cast<unsigned>(blocks);
}

void copies(const std::vector<std::string_view>& line, Plan& found) {
  expect(line, 1, 1);
  const std::vector<Argument>* const given = found.kernels.empty() ? nullptr : &found.kernels.back().arguments;
  if (given == nullptr || found.kernels.back().copies || given->size() < 2 || (*given)[0].role != Role::input || (*given)[1].role != Role::output)
    throw Problem("a copy has one kernel before it, which takes an input and an output");
  found.kernels.back().copies = true;
}

void tensor_map(const std::vector<std::string_view>& line, Plan& found) {
  expect(line, 7, 7);
  if (found.images.empty()) throw Problem("a tensor map has no image before it");
  std::vector<TensorMap>& known = found.images.back().maps;
  TensorMap made{static_cast<size_t>(natural(line[1], "the number of an argument", MOST)), {}, {}, {}, 0, line[6] == "nan"};
  for (const std::string_view each : parts(line[2], ',', true)) made.dims.emplace_back(each);
  for (const std::string_view each : parts(line[3], ',', true)) made.strides.emplace_back(each);
  for (const std::string_view each : parts(line[4], ',', true)) made.box.push_back(static_cast<unsigned>(natural(each, "a dim of a box", BOX)));
  made.swizzle = static_cast<int>(natural(line[5], "the bytes that are swizzled", 128));
  const size_t rank = made.dims.size();
  if (rank > MAP_RANK || made.strides.size() != rank || made.box.size() != rank || std::find(made.box.begin(), made.box.end(), 0u) != made.box.end())
    throw Problem("a tensor map has the dims " + quoted(line[2]) + ", the strides " + quoted(line[3]) + " and the box " + quoted(line[4]) +
                  "; as many of each, up to " + to_string(MAP_RANK) + ", are possible");
  if (made.swizzle != 0 && made.swizzle != 32 && made.swizzle != 64 && made.swizzle != 128)
    throw Problem("a tensor map swizzles " + to_string(made.swizzle) + " bytes; 0, 32, 64 or 128 are possible");
  if (!made.nan && line[6] != "zero") throw Problem(quoted(line[6]) + " is nothing that a tensor map reads outside of a tensor; zero and nan are");
  if (!known.empty() && known.back().argument >= made.argument)
    throw Problem("a tensor map of argument " + to_string(made.argument) + " stands behind that of argument " + to_string(known.back().argument));
  known.push_back(std::move(made));
}

void statement(const std::vector<std::string_view>& line, Plan& found) {
  if (line[0] == "input") return add(found.inputs, type(line));
  if (line[0] == "output") return add(found.outputs, type(line));
  if (line[0] == "scratch" && found.cuda) return add(found.scratch, type(line));
  if (line[0] == "empty") {
    expect(line, 2, 2);
    return add(found.empty, std::string(line[1]));
  }
  if (line[0] == "kernel" && found.cuda) return add(found.kernels, kernel(line));
  if (line[0] == "cluster" && found.cuda) return cluster(line, found);
  if (line[0] == "copies" && found.cuda) return copies(line, found);
  if (line[0] == "range" && found.cuda) return range(line, found);
  if (line[0] == "image" && found.cuda) return add(found.images, image(line));
  if (line[0] == "map" && found.cuda) return tensor_map(line, found);
  if (line[0] == "entry" && !found.cuda) {
    expect(line, 2, 2);
    if (!is_name(line[1])) throw Problem(quoted(line[1]) + " is no name of a function");
    found.entry = line[1];
    return;
  }
  throw Problem("a line of a plan for " + std::string(found.cuda ? "cuda" : "cpu") + " cannot begin with " + quoted(line[0]));
}

void names_given(const std::vector<Expression>& given, const Sizes& names, const char* who) {
  for (const Expression& each : given) {
    for (const std::string& name : each.names())
      if (names.find(name) == names.end()) throw Problem(std::string(who) + " has the size " + quoted(each.text()) + ", but no input gives " + name);
  }
}

void arguments_given(const Plan& found) {
  const size_t counts[] = {found.inputs.size(), found.outputs.size(), found.scratch.size(), found.names.size()};
  const char* roles[] = {"inputs", "outputs", "scratch buffers", "named sizes"};
  for (const Kernel& each : found.kernels)
    for (const Argument& a : each.arguments) {
      const size_t role = static_cast<size_t>(a.role);
      if (a.index >= counts[role])
        throw Problem("a kernel takes number " + to_string(a.index) + " of " + to_string(counts[role]) + " " + roles[role]);
    }
  std::vector<bool> has(found.kernels.size());
  for (const Image& each : found.images) {
    if (each.kernel >= has.size())
      throw Problem("an image is of kernel " + to_string(each.kernel) + ", but there are " + to_string(has.size()));
    has[each.kernel] = true;
    if (found.kernels[each.kernel].cluster != 1 && each.capability < CLUSTERED)
      throw Problem("an image of kernel " + to_string(each.kernel) + ", which has clusters, is for sm_" + to_string(each.capability) +
                    "; clusters begin with sm_" + to_string(CLUSTERED));
  }
  for (size_t i = 0; i < has.size(); ++i)
    if (!has[i]) throw Problem("kernel " + to_string(i) + " has no image");
}

// Tensor maps are of tensors, on GPUs that have them.
void maps_given(const Plan& found, const Sizes& names) {
  for (const Image& each : found.images)
    for (const TensorMap& map : each.maps) {
      const std::vector<Argument>& arguments = found.kernels[each.kernel].arguments;
      if (map.argument >= arguments.size() || arguments[map.argument].role == Role::size || each.capability < CLUSTERED)
        throw Problem("an image for sm_" + to_string(each.capability) + " has a tensor map of argument " + to_string(map.argument) + " of " +
                      to_string(arguments.size()) + "; it must be a tensor, and the GPU at least sm_" + to_string(CLUSTERED));
      names_given(map.dims, names, "a tensor map");
      names_given(map.strides, names, "a tensor map");
    }
}

bool fixed(const std::vector<Expression>& given) {
  for (const Expression& each : given)
    if (!each.fixed()) return false;
  return true;
}

// What has sizes without names is tried now, the rest at every run.
void sizes_possible(const Plan& found) {
  for (const std::vector<Type>* types : {&found.inputs, &found.outputs, &found.scratch})
    for (const Type& each : *types)
      if (fixed(each.dims)) each.bytes({});
  for (const Kernel& each : found.kernels)
    if (fixed(each.grid)) each.blocks({});
  for (const Image& each : found.images)
    for (const TensorMap& map : each.maps) {
      const Type& type = found.type(found.kernels[each.kernel].arguments[map.argument]);
      if (fixed(type.dims) && fixed(map.dims) && fixed(map.strides)) map.at(type, {});
    }
}

// The names that inputs give, in their order; expressions are of names that the input itself or one before it gives.
void read_names(Plan& found) {
  Sizes names;
  for (const Type& each : found.inputs) {
    for (const Expression& dim : each.dims)
      if (dim.name() && names.emplace(dim.text(), 1).second) found.names.push_back(dim.text());
    names_given(each.dims, names, "an input");
  }
}

void complete(Plan& found) {
  if (found.inputs.empty() || found.outputs.empty()) throw Problem("the plan has no input, or no output");
  if (found.cuda ? found.kernels.empty() : found.entry.empty()) throw Problem("the plan has no kernel");
  if (!found.ranges.empty() && found.ranges.back().end == found.kernels.size()) throw Problem("the plan has no kernel behind its last range");
  read_names(found);
  Sizes names;
  for (const std::string& name : found.names) names.emplace(name, 1);
  for (const Type& each : found.outputs) names_given(each.dims, names, "an output");
  for (const Type& each : found.scratch) names_given(each.dims, names, "scratch memory");
  for (const Kernel& each : found.kernels) names_given(each.grid, names, "a grid");
  for (const std::string& name : found.empty)
    if (names.find(name) == names.end()) throw Problem("the size " + quoted(name) + " may be 0, but no input gives it");
  arguments_given(found);
  maps_given(found, names);
  sizes_possible(found);
}

}  // namespace

Expression::Expression(std::string_view text) : text_(text) {
  if (text.size() > 500) throw Problem("a size has " + to_string(text.size()) + " characters, more than 500");
  Evaluation read(text, nullptr);
  read.run();
  names_ = std::move(read.names);
  name_ = is_name(text);
  if (fixed()) constant_ = Evaluation(text, &static_cast<const Sizes&>(Sizes{})).run();
}

int64_t Expression::value(const Sizes& sizes) const { return fixed() ? constant_ : Evaluation(text_, &sizes).run(); }

std::vector<int64_t> Type::shape(const Sizes& sizes) const {
  std::vector<int64_t> found;
  found.reserve(dims.size());
  for (const Expression& each : dims) {
    found.push_back(each.value(sizes));
    if (found.back() < 0) throw Problem("the size " + quoted(each.text()) + " is " + to_string(found.back()) + ", less than 0");
  }
  return found;
}

int64_t Type::bytes(const Sizes& sizes) const {
  int64_t found = item;
  for (int64_t n : shape(sizes))
    if (__builtin_mul_overflow(found, n, &found) || found > BYTES) throw Problem("a tensor " + text() + " is larger than any memory");
  return found;
}

std::string Type::text() const {
  std::string found = dtype;
  for (const Expression& each : dims) found += " " + each.text();
  return found;
}

std::vector<unsigned> Kernel::blocks(const Sizes& sizes) const {
  std::vector<unsigned> found;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t n = grid[i].value(sizes);
    if (n < (grid[i].fixed() ? 1 : 0) || n > GRID[i])
      throw Problem("dimension " + to_string(i) + " of the grid is " + to_string(n) + "; " + (grid[i].fixed() ? "1" : "0") + " to " + to_string(GRID[i]) + " blocks are possible");
    found.push_back(static_cast<unsigned>(n));
  }
  if (found[0] % cluster != 0) throw Problem("the grid has " + to_string(found[0]) + " blocks along its first dimension, which clusters of " + to_string(cluster) + " do not fill");
  return found;
}

void Plan::bind(size_t input, int element, const int64_t* dims, size_t rank, Sizes& sizes) const {
  const Type& type = inputs[input];
  const std::string who = "input " + to_string(input);
  if (element != type.element) {
    std::string given = "ONNX's element type " + to_string(element);
    for (const Named& each : DTYPES)
      if (each.element == element) given = each.dtype;
    throw Problem(who + " has " + given + ", its kernel was made for " + type.dtype);
  }
  if (rank != type.dims.size())
    throw Problem(who + " has rank " + to_string(rank) + ", its kernel was made for rank " + to_string(type.dims.size()));
  for (size_t i = 0; i < rank; ++i)
    if (type.dims[i].name()) sizes.try_emplace(type.dims[i].text(), dims[i]);
  for (size_t i = 0; i < rank; ++i) {
    const Expression& dim = type.dims[i];
    const int64_t wanted = dim.name() ? sizes.find(dim.text())->second : dim.value(sizes);
    if (dims[i] != wanted)
      throw Problem("dimension " + to_string(i) + " of " + who + " is " + to_string(dims[i]) + ", its kernel was made for " +
                    to_string(wanted) + (dim.name() ? " (" + dim.text() + ")" : ""));
  }
}

std::pair<size_t, size_t> Plan::chosen(const Sizes& sizes) const {
  int64_t product = 1;
  for (const std::string& name : names)
    if (__builtin_mul_overflow(product, sizes.find(name)->second, &product)) product = INT64_MAX;
  size_t start = 0;
  for (const Range& each : ranges) {
    if (product <= each.most) return {start, each.end};
    start = each.end;
  }
  return {start, kernels.size()};
}

size_t Plan::range(size_t kernel) const {
  size_t found = 0;
  while (found < ranges.size() && kernel >= ranges[found].end) ++found;
  return found;
}

bool Plan::takes(std::pair<size_t, size_t> between, size_t buffer) const {
  for (size_t i = between.first; i < between.second; ++i)
    for (const Argument& each : kernels[i].arguments)
      if (each.role == Role::scratch && each.index == buffer) return true;
  return false;
}

const Type& Plan::type(const Argument& argument) const {
  const std::vector<Type>* types[] = {&inputs, &outputs, &scratch};
  return (*types[static_cast<size_t>(argument.role)])[argument.index];
}

std::string Plan::signature() const {
  std::string found;
  for (const Type& each : inputs) found += each.text() + ", ";
  found += "->";
  for (const Type& each : outputs) found += " " + each.text() + ",";
  return found;
}

Plan parse(std::string_view text) {
  std::string_view left = checked(text);
  Plan found;
  for (int64_t line = 1; !left.empty(); ++line) {
    const size_t end = left.find('\n');
    const std::vector<std::string_view> fields = parts(left.substr(0, end), ' ', false);
    left.remove_prefix(end + 1);
    try {
      if (fields.empty()) throw Problem("the line is empty");
      if (line == 1)
        heading(fields, found);
      else
        statement(fields, found);
    } catch (const Problem& problem) {
      throw Problem("line " + to_string(line) + " of the plan: " + problem.what());
    }
  }
  complete(found);
  return found;
}

std::string Image::content(std::string_view base64) const {
  static const auto values = [] {
    std::array<int8_t, 256> found;
    found.fill(-1);
    constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < letters.size(); ++i) found[static_cast<uint8_t>(letters[i])] = static_cast<int8_t>(i);
    return found;
  }();
  while (!base64.empty() && base64.back() == '=') base64.remove_suffix(1);
  std::string found;
  found.reserve(base64.size() * 3 / 4 + 8);
  uint32_t bits = 0;
  int count = 0;
  for (char c : base64) {
    const int8_t value = values[static_cast<uint8_t>(c)];
    if (value < 0) throw Problem("the image of " + symbol + " is not base64: it was changed");
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) found += static_cast<char>(bits >> (count -= 8));
  }
  const std::string end = " of " + symbol + " for sm_" + to_string(capability);
  if (found.size() != bytes)
    throw Problem("the image" + end + " has " + to_string(found.size()) + " bytes, the plan says " + to_string(bytes) + ": it is truncated or was changed");
  if (crc32(found) != crc) throw Problem("the image" + end + " has the checksum " + hexadecimal(crc32(found)) + ", the plan says " + hexadecimal(crc) + ": it was changed");
  return found;
}

uint32_t crc32(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> found;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xedb88320u : 0);
      found[i] = value;
    }
    return found;
  }();
  uint32_t found = 0xffffffffu;
  for (char c : bytes) found = found >> 8 ^ table[(found ^ static_cast<uint8_t>(c)) & 255];
  return ~found;
}

}  // namespace plan
