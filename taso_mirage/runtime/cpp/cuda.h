// Launching compiled kernels through the CUDA driver, which is opened when the first node is created: no CUDA toolkit is needed.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "plan.h"
#include "tensor_maps.h"

namespace cuda {

// Whether this machine has a driver and a GPU.
bool present();
// Whether this thread has a context, as a session's has where it runs on a GPU.
bool has_context();

// A parameter of a kernel's code: an argument of the plan, or its tensor map, or a dim or a stride of that, or null.
struct Parameter {
  enum class Kind { address, size, map, dim, stride, null };
  Kind kind;
  size_t argument, map, dim;  // of the kernel, of its image, of the map

  size_t bytes() const;
};

struct Function {
  void* module;
  void* function;
  const plan::Image* image;
  std::vector<Parameter> parameters;
};

// The kernels of one node on one device. Launches may come from several threads.
class Loaded {
 public:
  Loaded();
  ~Loaded();
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  // Put all kernels onto the stream, in order, where they share memory that one of them writes, else beside each other: what is put there
  // later waits for all. `tensors` are the addresses of inputs, outputs and scratch buffers. Nothing is awaited and no memory asked for, so
  // that a CUDA graph can capture it.
  void launch(const plan::Plan& plan, const void* const* const tensors[3], const plan::Sizes& sizes, void* stream) const;

  // Whether this thread's context is the one that they were loaded in.
  bool here() const;

  std::vector<Function> functions;
  std::vector<size_t> lanes;  // of the functions: those of other lanes do not wait for each other
  void* context = nullptr;
  unsigned long long id = 0;  // of the context: another may come to have its address

 private:
  struct Beside;

  // So many streams beside one of the caller's, and their events.
  const Beside* by(void* stream, size_t count) const;
  // Whether a kernel was launched: none is where there is nothing to write.
  bool start(const plan::Plan& plan, size_t i, const void* const* const tensors[3], const plan::Sizes& sizes, void* stream, bool overlap) const;

  mutable TensorMaps maps;
  mutable std::mutex guard;
  mutable std::map<void*, std::unique_ptr<Beside>> beside;  // by the caller's stream
  mutable unsigned long long launches = 0;
};

// The kernels of a plan for the device of this thread's CUDA context. `attribute` gives the text of image number i; only those that fit are read.
std::unique_ptr<Loaded> load(const plan::Plan& plan, const std::function<std::string(size_t)>& attribute);

// Problem unless it looks like what its line in the plan says: the driver takes an address and believes what lies there.
void check(const plan::Image& image, std::string_view content);

}  // namespace cuda
