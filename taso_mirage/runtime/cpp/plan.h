// A node's plan: the text that says which tensors a kernel takes and gives, and how it is launched; read and checked before anything runs.
//
//   taso_mirage 1 cuda                        the version of this format, and the target (cpu or cuda)
//   input float16 rows 4096                   a type: sizes are numbers, names that the first input with them gives, or expressions of names before
//   output float16 rows 6144                  sizes of outputs, of scratch memory and of grids are expressions: rows*2, (rows+7)//8
//                                             (/ must come out even, // rounds down)
//   scratch float32 rows 16                   what passes between kernels
//   empty rows                                a named size that may be 0 although results have elements then: nothing is summed over it alone
//   kernel rows/8 96 1 i0 i1 s0 n0            one launch: its grid, then its arguments: inputs, outputs and scratch by number, and named sizes
//                                             by theirs, as int32 (a grid with names may be 0, where there is no sample: nothing is launched)
//   cluster 8                                 the launch before is one of clusters: so many neighbours along the first dim of its grid run as one
//   copies                                    the launch before copies its first argument to its last one, which has the elements in the same
//                                             places: it is left out where both are the same memory
//   range 4096                                the kernels between the line `range` before and this one are for runs whose named sizes have a
//                                             product of at most that; those behind the last such line for all others
//   image 0 90 cubin kernel_0 4 49152 2 1 20480 9ae0f1c2
//          | |  |     symbol  | |     | | bytes, and CRC-32, of the attribute `image_N` (base64), where N counts these lines
//          | |  cubin or ptx  | |     | overlap: the kernel itself waits for the one before it (programmatic dependent launch)
//          | compute capability | |     null pointers behind the arguments
//          number of the kernel | dynamic shared memory; before it warps of 32 threads
//   map 0 4096,64 64,1 128,64 128 zero        argument 0 of the image before is given as a tensor map (sm_90 and newer; images of one kernel may
//       | |       |    |      |   |           differ in that): what is outside of the tensor is read as (zero or nan)
//       | |       |    |      bytes that are swizzled in shared memory (0, 32, 64 or 128)
//       | |       |    the box that is copied at a time
//       | dims and strides in elements, the outermost first: expressions, as sizes of outputs are
//       number of the argument
//   entry kernel_1f00 (cpu only)              the function of the compiled kernel
//   check 01234567                            CRC-32 of all lines above
//
// A library refuses a line that it does not know, so a new kind of line leaves the version as it is: older plans are read as before.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plan {

constexpr int64_t FORMAT = 1;

// What is wrong, with both values and the next step.
struct Problem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Sizes = std::map<std::string, int64_t, std::less<>>;

// A size of a tensor or a grid: sums, products and quotients of numbers and names.
class Expression {
 public:
  explicit Expression(std::string_view text);
  int64_t value(const Sizes& sizes) const;
  const std::string& text() const { return text_; }
  const std::vector<std::string>& names() const { return names_; }
  bool fixed() const { return names_.empty(); }
  bool name() const { return name_; }

 private:
  std::string text_;
  std::vector<std::string> names_;
  bool name_ = false;
  int64_t constant_ = 0;
};

struct Type {
  int element;  // ONNX's number
  int64_t item;  // bytes of an element
  std::string dtype;
  std::vector<Expression> dims;

  int64_t bytes(const Sizes& sizes) const;
  std::vector<int64_t> shape(const Sizes& sizes) const;
  std::string text() const;
};

enum class Role { input, output, scratch, size };
constexpr int64_t LARGEST = (int64_t{1} << 31) - (int64_t{1} << 20);  // size that is an argument: a tile more is still 32 bits

struct Argument {
  Role role;
  size_t index;
};

struct Kernel {
  std::vector<Expression> grid;  // three
  std::vector<Argument> arguments;
  unsigned cluster = 1;
  bool copies = false;

  std::vector<unsigned> blocks(const Sizes& sizes) const;
};

// Kernels before number `end` are for runs whose named sizes have a product of at most `most`.
struct Range {
  int64_t most;
  size_t end;
};

constexpr size_t MAP_RANK = 5;
constexpr int64_t MOST_STRIDE = int64_t{1} << 36;  // elements: less than 2^40 bytes

// The sizes and strides of a tensor map in one run.
struct Region {
  std::array<int64_t, MAP_RANK> dims{}, strides{};

  bool operator<(const Region& other) const { return dims != other.dims ? dims < other.dims : strides < other.strides; }
};

// How the hardware copies an argument of a kernel to shared memory (TMA).
struct TensorMap {
  size_t argument;
  std::vector<Expression> dims, strides;
  std::vector<unsigned> box;
  int swizzle;
  bool nan;

  // What it is of a tensor of this type. Problem where it cannot be, or is not inside of it (tensor_maps.cpp).
  Region at(const Type& type, const Sizes& sizes) const;
};

struct Image {
  size_t kernel;
  int capability;
  bool ptx;
  std::string symbol;
  unsigned warps, shared, hidden;
  bool overlap;
  size_t bytes;
  uint32_t crc;
  std::vector<TensorMap> maps;  // of arguments in their order

  // The bytes of the attribute, which must be those that were written.
  std::string content(std::string_view base64) const;
};

struct Plan {
  bool cuda = false;
  std::string entry;
  std::vector<Type> inputs, outputs, scratch;
  std::vector<std::string> names;  // of sizes, in the order in which inputs give them
  std::vector<std::string> empty;  // names of sizes that may be 0 in a run with results
  std::vector<Kernel> kernels;
  std::vector<Range> ranges;
  std::vector<Image> images;

  // Take the named sizes from an input's shape. Problem where it is none of this type.
  void bind(size_t input, int element, const int64_t* dims, size_t rank, Sizes& sizes) const;
  // The first of the kernels for a run, and the one behind the last.
  std::pair<size_t, size_t> chosen(const Sizes& sizes) const;
  // The number of the range of a kernel.
  size_t range(size_t kernel) const;
  // Whether one of some kernels takes a scratch buffer.
  bool takes(std::pair<size_t, size_t> kernels, size_t scratch) const;
  // The tensor that an argument is; none is a size.
  const Type& type(const Argument& argument) const;
  // Its types as text: what the compiled kernel must say of itself.
  std::string signature() const;
};

Plan parse(std::string_view text);
uint32_t crc32(std::string_view bytes);

}  // namespace plan
