#include "cuda.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "driver.h"

namespace cuda {
namespace {

using plan::Problem;

constexpr int CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, SHARED_MOST = 97;  // of a device
constexpr int THREADS_MOST = 0, DYNAMIC_SHARED = 8, CARVEOUT = 9, LARGE_CLUSTERS = 14;  // of a function
constexpr unsigned NON_BLOCKING = 1, UNTIMED = 2;                              // of a stream, of an event
constexpr int CLUSTER = 4, SERIALIZATION = 6;                                  // programmatic stream serialization; of a launch
constexpr unsigned PORTABLE = 8;                                               // blocks of a cluster that every GPU with clusters has
constexpr size_t CALLERS = 64;  // streams that have others beside them; what was used the longest ago goes
constexpr unsigned SHARED_ALWAYS = 48 * 1024;
constexpr unsigned WARP = 32;
constexpr int SPECIFIC = 90;  // from this capability on, code is compiled for one architecture alone

void* current() {
  void* found = nullptr;
  succeed(driver().CtxGetCurrent(&found), "the CUDA driver cannot say which context this thread has");
  return found;
}

// A number that no other context of this process has; 0 where the driver gives none.
unsigned long long number(void* context) {
  unsigned long long found = 0;
  return driver().CtxGetId != nullptr && driver().CtxGetId(context, &found) == 0 ? found : 0;
}

int of_device(int device, int which) {
  int found = 0;
  succeed(driver().DeviceGetAttribute(&found, which, device), "the device cannot be asked for its properties");
  return found;
}

// Code runs on its own architecture, before sm_90 also on later ones of the same generation.
bool runs(const plan::Image& image, int capability) {
  if (image.ptx) return image.capability <= capability;
  if (image.capability >= SPECIFIC) return image.capability == capability;
  return image.capability <= capability && image.capability / 10 == capability / 10;
}

// The image for a kernel: machine code before PTX, then the newest.
size_t choose(const plan::Plan& plan, size_t kernel, int capability) {
  size_t best = plan.images.size();
  std::string have;
  for (size_t i = 0; i < plan.images.size(); ++i) {
    const plan::Image& image = plan.images[i];
    if (image.kernel != kernel) continue;
    have += (have.empty() ? "" : ", ") + std::string(image.ptx ? "PTX for " : "") + "sm_" + std::to_string(image.capability);
    if (!runs(image, capability)) continue;
    if (best < plan.images.size()) {
      const plan::Image& other = plan.images[best];
      if (image.ptx != other.ptx ? image.ptx : image.capability <= other.capability) continue;
    }
    best = i;
  }
  if (best == plan.images.size())
    throw Problem("kernel " + std::to_string(kernel) + " is compiled for " + have + ", this GPU is sm_" + std::to_string(capability) +
                  "; optimize the model for it");
  return best;
}

// In the order of the code: what stands for a tensor map is the map, its dims in 32 bits and its strides in 64 (Triton 3.6,
// `make_launcher` of backends/nvidia/driver.py); Triton's own scratch memory comes last.
std::vector<Parameter> parameters_of(const plan::Kernel& kernel, const plan::Image& image) {
  using Kind = Parameter::Kind;
  std::vector<Parameter> found;
  size_t map = 0;
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    if (map == image.maps.size() || image.maps[map].argument != i) {
      found.push_back({kernel.arguments[i].role == plan::Role::size ? Kind::size : Kind::address, i, 0, 0});
      continue;
    }
    found.push_back({Kind::map, i, map, 0});
    for (const Kind kind : {Kind::dim, Kind::stride})
      for (size_t dim = 0; dim < image.maps[map].dims.size(); ++dim) found.push_back({kind, i, map, dim});
    ++map;
  }
  found.resize(found.size() + image.hidden, {Kind::null, 0, 0, 0});
  return found;
}

void check_parameters(const Function& made) {
  if (driver().FuncGetParamInfo == nullptr) return;
  size_t offset = 0, size = 0;
  const size_t count = made.parameters.size();
  for (size_t i = 0; i <= count; ++i) {
    const bool has = driver().FuncGetParamInfo(made.function, i, &offset, &size) == 0;
    if (has != (i < count) || (has && size != made.parameters[i].bytes()))
      throw Problem("the kernel " + made.image->symbol + " takes " + (has ? "more or other arguments than" : std::to_string(i) + " arguments, not") + " the " +
                    std::to_string(count) + " arguments of the plan");
  }
}

void check_device(const Function& made, const plan::Kernel& kernel, int device) {
  const plan::Image& image = *made.image;
  const int shared = of_device(device, SHARED_MOST);
  if (static_cast<int>(image.shared) > shared)
    throw Problem(image.symbol + " needs " + std::to_string(image.shared) + " bytes of shared memory, this GPU has " + std::to_string(shared));
  int threads = 0;
  succeed(driver().FuncGetAttribute(&threads, THREADS_MOST, made.function), image.symbol + " cannot be asked for its threads");
  if (static_cast<int>(image.warps * WARP) > threads)
    throw Problem(image.symbol + " has " + std::to_string(image.warps) + " warps in the plan, its code takes " + std::to_string(threads) + " threads");
  if (image.shared > SHARED_ALWAYS || kernel.cluster != 1)  // what a cluster exchanges lies beside it
    succeed(driver().FuncSetAttribute(made.function, DYNAMIC_SHARED, static_cast<int>(image.shared)), image.symbol + " cannot have its shared memory");
  // A preference, whose refusal only costs time: else the driver leaves room for one block of a processor, where several were measured.
  if (image.shared > SHARED_ALWAYS) driver().FuncSetAttribute(made.function, CARVEOUT, 100);
  if ((image.overlap || kernel.cluster != 1) && driver().LaunchKernelEx == nullptr)
    throw Problem(image.symbol + " waits for the kernel before it, or has clusters of blocks, which this driver has no launch for; update the driver");
  if (!image.maps.empty() && driver().TensorMapEncodeTiled == nullptr)
    throw Problem(image.symbol + " takes tensor maps, which this driver does not make; update the driver");
  if (kernel.cluster > PORTABLE)
    succeed(driver().FuncSetAttribute(made.function, LARGE_CLUSTERS, 1), image.symbol + " cannot have clusters of " + std::to_string(kernel.cluster) + " blocks");
}

// A context that is this thread's for as long as it lives: the one before comes back, none too.
class Within {
 public:
  explicit Within(void* context) : before(current()), changed(before != context) {
    if (changed) succeed(driver().CtxSetCurrent(context), "the CUDA context that the kernels were loaded in cannot be used");
  }
  ~Within() {
    if (changed) driver().CtxSetCurrent(before);
  }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  void* before;
  bool changed;
};

template <class Value>
Value at(std::string_view content, uint64_t place) {
  Value found{};
  if (place > content.size() || content.size() - place < sizeof found) throw Problem("its headers end behind its last byte");
  std::memcpy(&found, content.data() + place, sizeof found);
  return found;
}

void inside(std::string_view content, uint64_t start, uint64_t size) {
  if (start > content.size() || size > content.size() - start)
    throw Problem("a part of it at " + std::to_string(start) + " has " + std::to_string(size) + " bytes, but the image ends at " + std::to_string(content.size()));
}

void check_elf(std::string_view content) {
  constexpr uint16_t CUDA = 190;
  constexpr uint32_t NO_BITS = 8;
  constexpr std::string_view magic("\x7f" "ELF\x02\x01", 6);
  if (content.substr(0, 6) != magic || at<uint16_t>(content, 18) != CUDA) throw Problem("it is no cubin");
  const auto programs = at<uint64_t>(content, 32), sections = at<uint64_t>(content, 40);
  const uint64_t program = at<uint16_t>(content, 54), section = at<uint16_t>(content, 58);
  const uint64_t program_count = at<uint16_t>(content, 56), section_count = at<uint16_t>(content, 60);
  if ((program_count > 0 && program < 56) || section < 64 || section_count == 0) throw Problem("its headers are too small");
  inside(content, programs, program_count * program);
  inside(content, sections, section_count * section);
  for (uint64_t i = 0; i < program_count; ++i)
    inside(content, at<uint64_t>(content, programs + i * program + 8), at<uint64_t>(content, programs + i * program + 32));
  for (uint64_t i = 0; i < section_count; ++i)
    if (at<uint32_t>(content, sections + i * section + 4) != NO_BITS)
      inside(content, at<uint64_t>(content, sections + i * section + 24), at<uint64_t>(content, sections + i * section + 32));
}

void check_ptx(std::string_view content) {
  if (content.find('\0') != std::string_view::npos || content.find(".version") == std::string_view::npos) throw Problem("it is no PTX");
}

// Whether two kernels must run in their order. What one copies may be the memory of its result, over which later kernels write: all that read
// it are in order with these.
bool share(const plan::Kernel& one, const plan::Kernel& other) {
  const auto matters = [&](const plan::Argument& a) {
    return a.role == plan::Role::output || a.role == plan::Role::scratch || (a.role == plan::Role::input && (one.copies || other.copies));
  };
  for (const plan::Argument& a : one.arguments)
    for (const plan::Argument& b : other.arguments)
      if (matters(a) && a.role == b.role && a.index == b.index) return true;
  return false;
}

// A named size as kernels take it.
uint32_t size_of(const plan::Plan& plan, size_t index, const plan::Sizes& sizes) {
  const int64_t found = sizes.find(plan.names[index])->second;
  if (found > plan::LARGEST) throw Problem("the size " + plan.names[index] + " is " + std::to_string(found) + ", kernels take up to " + std::to_string(plan::LARGEST));
  return static_cast<uint32_t>(found);
}

// What the driver is given for the parameters of one launch: it copies each from its place.
struct Given {
  Given(const Function& function, const plan::Plan& plan, const plan::Kernel& kernel, const void* const* const tensors[3], const plan::Sizes& sizes,
        TensorMaps& known)
      : numbers(function.parameters.size()) {
    const plan::Image& image = *function.image;
    const auto address = [&](size_t argument) {
      const plan::Argument& own = kernel.arguments[argument];
      return tensors[static_cast<size_t>(own.role)][own.index];
    };
    for (const plan::TensorMap& each : image.maps)
      maps.push_back(known.of(each, plan.type(kernel.arguments[each.argument]), address(each.argument), sizes, image.symbol));
    for (size_t k = 0; k < numbers.size(); ++k) {
      const Parameter& each = function.parameters[k];
      switch (each.kind) {
        case Parameter::Kind::address: numbers[k] = reinterpret_cast<uintptr_t>(address(each.argument)); break;
        case Parameter::Kind::size: numbers[k] = size_of(plan, kernel.arguments[each.argument].index, sizes); break;
        case Parameter::Kind::dim: numbers[k] = static_cast<uint64_t>(image.maps[each.map].dims[each.dim].value(sizes)); break;
        case Parameter::Kind::stride: numbers[k] = static_cast<uint64_t>(image.maps[each.map].strides[each.dim].value(sizes)); break;
        default: break;
      }
      places.push_back(each.kind == Parameter::Kind::map ? static_cast<void*>(&maps[each.map]) : static_cast<void*>(&numbers[k]));
    }
  }
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;

  std::vector<uint64_t> numbers;  // a driver that takes 32 bits of one takes its lower half: hosts of GPUs are little-endian
  std::vector<EncodedMap> maps;
  std::vector<void*> places;
};

// The number of each kernel's lane: kernels of a range that share scratch memory, an output, or an input that one of them copies are in one,
// the others run beside each other.
std::vector<size_t> lanes_of(const plan::Plan& plan) {
  std::vector<size_t> lane;
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    lane.push_back(i);
    for (size_t before = 0; before < i; ++before) {
      if (plan.range(before) != plan.range(i) || !share(plan.kernels[before], plan.kernels[i])) continue;
      const size_t old = lane[i], joined = lane[before];
      for (size_t& each : lane)
        if (each == old) each = joined;
    }
  }
  return lane;
}

}  // namespace

// Streams beside one of the caller's, and the events that order them.
struct Loaded::Beside {
  std::vector<void*> others, ends;
  void* start = nullptr;
  unsigned long long used = 0;

  Beside() = default;
  void open(size_t count) {
    others.resize(count, nullptr);
    ends.resize(count, nullptr);
    succeed(driver().EventCreate(&start, UNTIMED), "no event can be made");
    for (void*& each : others) succeed(driver().StreamCreate(&each, NON_BLOCKING), "no stream can be made");
    for (void*& each : ends) succeed(driver().EventCreate(&each, UNTIMED), "no event can be made");
  }
  ~Beside() {
    for (void* each : others)
      if (each != nullptr) driver().StreamDestroy(each);
    for (void* each : ends)
      if (each != nullptr) driver().EventDestroy(each);
    if (start != nullptr) driver().EventDestroy(start);
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;
};

bool present() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  const auto init = reinterpret_cast<Result (*)(unsigned)>(dlsym(library, "cuInit"));
  const auto count = reinterpret_cast<Result (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
  int found = 0;
  return init != nullptr && count != nullptr && init(0) == 0 && count(&found) == 0 && found > 0;
}

bool has_context() { return current() != nullptr; }

void check(const plan::Image& image, std::string_view content) {
  try {
    image.ptx ? check_ptx(content) : check_elf(content);
  } catch (const Problem& problem) {
    throw Problem("the image of " + image.symbol + " for sm_" + std::to_string(image.capability) + " is damaged: " + problem.what());
  }
}

std::unique_ptr<Loaded> load(const plan::Plan& plan, const std::function<std::string(size_t)>& attribute) {
  auto found = std::make_unique<Loaded>();
  found->lanes = lanes_of(plan);
  int device = 0;
  found->context = current();
  if (found->context == nullptr) throw Problem("this thread has no CUDA context");
  found->id = number(found->context);
  succeed(driver().CtxGetDevice(&device), "there is no CUDA device");
  const int capability = 10 * of_device(device, CAPABILITY_MAJOR) + of_device(device, CAPABILITY_MINOR);
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    const size_t which = choose(plan, i, capability);
    const plan::Image& image = plan.images[which];
    const std::string content = image.content(attribute(which));
    check(image, content);
    Function made{nullptr, nullptr, &image, parameters_of(plan.kernels[i], image)};
    succeed(driver().ModuleLoadData(&made.module, content.c_str()), "the image of " + image.symbol + " cannot be loaded");
    found->functions.push_back(made);
    succeed(driver().ModuleGetFunction(&made.function, made.module, image.symbol.c_str()), "the image has no kernel " + image.symbol);
    check_parameters(made);
    check_device(made, plan.kernels[i], device);
    if (driver().FuncLoad != nullptr) succeed(driver().FuncLoad(made.function), image.symbol + " cannot be loaded");
    found->functions.back() = made;
  }
  return found;
}

size_t Parameter::bytes() const { return kind == Kind::map ? sizeof(EncodedMap) : kind == Kind::size || kind == Kind::dim ? sizeof(int32_t) : sizeof(void*); }

bool Loaded::here() const {
  void* const now = current();
  return now == context && number(now) == id;
}

Loaded::Loaded() = default;

Loaded::~Loaded() {
  if (functions.empty()) return;
  try {
    const Within within(context);
    beside.clear();
    for (const Function& each : functions) driver().ModuleUnload(each.module);
  } catch (const Problem&) {  // the context is gone, and all that was made in it
  }
}

void Loaded::launch(const plan::Plan& plan, const void* const* const tensors[3], const plan::Sizes& sizes, void* stream) const {
  const Within within(context);
  const auto [begin, end] = plan.chosen(sizes);
  const std::set<size_t> numbers(lanes.begin() + static_cast<ptrdiff_t>(begin), lanes.begin() + static_cast<ptrdiff_t>(end));
  if (numbers.size() < 2) {
    for (size_t i = begin; i < end; ++i) start(plan, i, tensors, sizes, stream, true);
    return;
  }
  // One thread at a time, so that no other records an event between a record and a wait; streams of their own for every stream of the
  // caller, because one that is being captured must not be used for anything else.
  const std::lock_guard<std::mutex> one(guard);
  const Beside* const side = by(stream, std::set<size_t>(lanes.begin(), lanes.end()).size() - 1);  // as many as any range has
  succeed(driver().EventRecord(side->start, stream), "an event cannot be recorded");
  size_t number = 0;
  for (const size_t lane : numbers) {
    void* const own = number == 0 ? stream : side->others[number - 1];
    if (number > 0) succeed(driver().StreamWaitEvent(own, side->start, 0), "a stream cannot wait");
    bool first = number > 0;
    for (size_t i = begin; i < end; ++i) {
      if (lanes[i] != lane) continue;
      if (start(plan, i, tensors, sizes, own, !first)) first = false;
    }
    if (number > 0) succeed(driver().EventRecord(side->ends[number - 1], own), "an event cannot be recorded");
    ++number;
  }
  for (size_t i = 0; i + 1 < numbers.size(); ++i) succeed(driver().StreamWaitEvent(stream, side->ends[i], 0), "a stream cannot wait");
}

const Loaded::Beside* Loaded::by(void* stream, size_t count) const {
  auto found = beside.find(stream);
  if (found == beside.end()) {
    const auto earlier = [](const auto& a, const auto& b) { return a.second->used < b.second->used; };
    if (beside.size() >= CALLERS) beside.erase(std::min_element(beside.begin(), beside.end(), earlier));
    auto made = std::make_unique<Beside>();
    made->open(count);
    found = beside.emplace(stream, std::move(made)).first;
  }
  found->second->used = ++launches;
  return found->second.get();
}

bool Loaded::start(const plan::Plan& plan, size_t i, const void* const* const tensors[3], const plan::Sizes& sizes, void* stream, bool overlap) const {
  const plan::Kernel& kernel = plan.kernels[i];
  const plan::Image& image = *functions[i].image;
  const std::vector<unsigned> grid = kernel.blocks(sizes);
  if (std::find(grid.begin(), grid.end(), 0u) != grid.end()) return false;  // there is no sample, and nothing to write
  const auto address = [&](const plan::Argument& each) { return tensors[static_cast<size_t>(each.role)][each.index]; };
  if (kernel.copies && address(kernel.arguments[0]) == address(kernel.arguments[1])) return false;  // it is there already
  Given given(functions[i], plan, kernel, tensors, sizes, maps);
  const unsigned threads = image.warps * WARP;
  Result result;
  Attribute attributes[2]{};
  unsigned count = 0;
  if (image.overlap && overlap) {
    attributes[count].id = SERIALIZATION;
    attributes[count++].value.allowed = 1;
  }
  if (kernel.cluster != 1) {
    attributes[count].id = CLUSTER;
    const unsigned dims[] = {kernel.cluster, 1, 1};
    std::copy(std::begin(dims), std::end(dims), attributes[count++].value.dims);
  }
  if (count != 0) {
    const Config config{{grid[0], grid[1], grid[2]}, {threads, 1, 1}, image.shared, stream, attributes, count};
    result = driver().LaunchKernelEx(&config, functions[i].function, given.places.data(), nullptr);
  } else {
    result = driver().LaunchKernel(functions[i].function, grid[0], grid[1], grid[2], threads, 1, 1, image.shared, stream, given.places.data(), nullptr);
  }
  succeed(result, image.symbol + " cannot be launched");
  return true;
}

}  // namespace cuda
