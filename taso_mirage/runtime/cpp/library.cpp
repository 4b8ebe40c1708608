// The custom operators of the domain `taso_mirage`: CpuKernel0.. for the CPU and CudaKernel0.. for CUDA. They are all the same two operators; a
// model needs a name for each kernel because the kernel's original computation is the model's own function of that name, which the runtime
// takes where this library, or the device, is not there.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "api.h"
#include "cpu.h"
#include "cuda.h"
#include "plan.h"

namespace {

using plan::Plan;
using plan::Problem;

constexpr size_t NAMES = 128;
constexpr size_t ALIGNMENT = 256, PAGE = size_t{1} << 21;
constexpr size_t BATCHES = 64;  // parts that the runtime's threads take a grid in, at most

}  // namespace

const ort::Api* api = nullptr;

namespace {

// ---------------------------------------------------------------- a node

constexpr const char* WITHOUT = "; load it without this library, where it runs by its functions";

std::string attribute(const OrtKernelInfo* info, const std::string& name) {
  std::string found = text([&](char* to, size_t* size) { return api->KernelInfoGetAttribute_string(info, name.c_str(), to, size); });
  if (found.empty()) throw Problem("it has no text attribute '" + name + "'; optimize the model again");
  return found;
}

std::string node_name(const OrtKernelInfo* info) {
  return text([&](char* to, size_t* size) { return api->KernelInfo_GetNodeName(info, to, size); });
}

// Memory for one run. On a GPU it belongs to the run's stream, so that what another stream does with it later waits; a CPU has no stream, which
// older runtimes do not expect of GetScratchBuffer.
struct Scratch {
  Scratch(const OrtKernelContext* context, OrtAllocator* allocator, size_t bytes, bool on_stream) : allocator(allocator) {
    const OrtMemoryInfo* where = nullptr;
    if (on_stream) {
      succeed(api->AllocatorGetInfo(allocator, &where));
      succeed(api->KernelContext_GetScratchBuffer(context, where, bytes + ALIGNMENT, &given));
    } else {
      succeed(api->AllocatorAlloc(allocator, bytes + ALIGNMENT, &given));
    }
    if (given == nullptr) throw Problem("the runtime has no " + std::to_string(bytes) + " bytes of scratch memory");
    start = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(given) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  }
  ~Scratch() {
    ort::Status status = api->AllocatorFree(allocator, given);
    if (status != nullptr) api->ReleaseStatus(status);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  OrtAllocator* allocator;
  void* given = nullptr;
  char* start = nullptr;
};

struct Freed {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Freed>;

// In large pages, where the system has them: what is read in every run comes faster from memory so, as fewer addresses are translated.
Memory aligned(size_t bytes) {
  const size_t page = bytes < PAGE ? ALIGNMENT : PAGE, rounded = (bytes + page - 1) / page * page;
  Memory found(std::aligned_alloc(page, rounded));
#ifdef MADV_HUGEPAGE
  if (found != nullptr && page == PAGE) madvise(found.get(), rounded, MADV_HUGEPAGE);
#endif
  if (found == nullptr) throw Problem("there are no " + std::to_string(bytes) + " bytes of memory for its weights");
  return found;
}

struct Node {
  std::string who;
  Plan plan;
  cpu::Function function{};
  Memory prepared;  // from weights that are the same in every run; else a run prepares its own
  const cuda::Loaded* loaded = nullptr;
  OrtAllocator* allocator = nullptr;
  std::vector<std::vector<int64_t>> shapes;  // of the outputs, where no size has a name
  bool fixed = true;

  ~Node() {
    if (allocator != nullptr) api->ReleaseAllocator(allocator);
  }
};

// Kernels that were loaded, with what they were loaded from.
struct Known {
  std::string text;  // of the plan
  Plan plan;
  std::map<size_t, std::string> images;  // the attributes that the device needed
  std::unique_ptr<cuda::Loaded> loaded;
};

// The kernels of a plan for the context of this thread, loaded once for all nodes and sessions, and kept as long as the process: a CUDA graph
// that captured them is destroyed after the session's nodes, and while any thread captures, unloading would break its capture.
const cuda::Loaded* loaded(const std::string& text, const OrtKernelInfo* info) {
  static std::mutex mutex;
  static auto& all = *new std::vector<std::unique_ptr<Known>>;
  const auto image = [info](size_t i) { return attribute(info, "image_" + std::to_string(i)); };
  const auto same = [&](const Known& known) {
    if (known.text != text || !known.loaded->here()) return false;
    for (const auto& [i, content] : known.images)
      if (image(i) != content) return false;
    return true;
  };
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& known : all)
    if (same(*known)) return known->loaded.get();
  auto made = std::make_unique<Known>(Known{text, plan::parse(text), {}, nullptr});
  made->loaded = cuda::load(made->plan, [&](size_t i) { return made->images[i] = image(i); });
  all.push_back(std::move(made));
  return all.back()->loaded.get();
}

void bind(const Plan& plan, size_t i, const OrtValue* value, plan::Sizes& sizes);

void prepare_weights(Node& node, const OrtKernelInfo* info) {
  std::vector<const void*> inputs(node.plan.inputs.size());
  for (const size_t i : node.function.weights) {
    int constant = 0;
    const OrtValue* value = nullptr;
    succeed(api->KernelInfoGetConstantInput_tensor(info, i, &constant, &value));
    if (!constant || value == nullptr) return;
    plan::Sizes sizes;
    bind(node.plan, i, value, sizes);
    void* data = nullptr;
    succeed(api->GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    inputs[i] = data;
  }
  node.prepared = aligned(node.function.prepared);
  node.function.prepare(inputs.data(), node.prepared.get());
}

void prepare(Node& node, const Op& op, const OrtKernelInfo* info) {
  const std::string text = attribute(info, "plan");
  node.plan = plan::parse(text);
  if (node.plan.cuda != (op.provider != nullptr))
    throw Problem(std::string("its plan is for ") + (node.plan.cuda ? "cuda" : "cpu") + ", the node runs on " + (op.provider ? op.provider : "the CPU"));
  for (const plan::Type& each : node.plan.outputs)
    for (const plan::Expression& dim : each.dims) node.fixed = node.fixed && dim.fixed();
  if (node.fixed)
    for (const plan::Type& each : node.plan.outputs) node.shapes.push_back(each.shape({}));
  if (node.plan.cuda) {
    if (!cuda::has_context()) throw Problem("there is no CUDA context; the session must have the CUDA provider");
    try {
      node.loaded = loaded(text, info);
    } catch (const Problem& problem) {
      throw Problem(problem.what() + std::string(WITHOUT));
    }
  } else {
    node.function = cpu::find(node.plan);
    if (node.function.prepare != nullptr) prepare_weights(node, info);
  }
  if (node.plan.cuda ? !node.plan.scratch.empty() : node.function.scratch > 1 || node.function.room != nullptr)
    succeed(api->KernelInfoGetAllocator(info, ort::DEFAULT_MEMORY, &node.allocator));
}

ort::Status create(const OrtCustomOp* base, const OrtApi*, const OrtKernelInfo* info, void** kernel) {
  const Op& op = *static_cast<const Op*>(base);
  *kernel = nullptr;
  std::string who = op.name;
  return guarded(who, [&] {
    auto node = std::make_unique<Node>();
    node->who = who = "node '" + node_name(info) + "' (taso_mirage." + op.name + ")";
    prepare(*node, op, info);
    *kernel = node.release();
  });
}

void destroy(void* kernel) { delete static_cast<Node*>(kernel); }

// ---------------------------------------------------------------- one run

struct Shape {
  explicit Shape(const OrtValue* value) { succeed(api->GetTensorTypeAndShape(value, &info)); }
  ~Shape() { api->ReleaseTensorTypeAndShapeInfo(info); }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;
  ort::Info* info = nullptr;
};

void bind(const Plan& plan, size_t i, const OrtValue* value, plan::Sizes& sizes) {
  const Shape shape(value);
  Element element = 0;
  size_t rank = 0;
  int64_t dims[64];
  succeed(api->GetTensorElementType(shape.info, &element));
  succeed(api->GetDimensionsCount(shape.info, &rank));
  if (rank > 64) throw Problem("input " + std::to_string(i) + " has rank " + std::to_string(rank));
  succeed(api->GetDimensions(shape.info, dims, rank));
  plan.bind(i, element, dims, rank, sizes);
}

constexpr const char* OTHER_SIZES = "; load the model without this library, where its function takes every size, or optimize it for these";

void inputs_of(const Node& node, OrtKernelContext* context, const void** found, plan::Sizes& sizes) {
  size_t given = 0, wanted = node.plan.inputs.size();
  succeed(api->KernelContext_GetInputCount(context, &given));
  if (given != wanted) throw Problem("it has " + std::to_string(given) + " inputs, its plan says " + std::to_string(wanted));
  const std::vector<size_t>& weights = node.function.weights;
  for (size_t i = 0; i < wanted; ++i) {
    const OrtValue* value = nullptr;
    succeed(api->KernelContext_GetInput(context, i, &value));
    if (value == nullptr) throw Problem("input " + std::to_string(i) + " is left out; its kernel needs it");
    // Constants that were prepared have the shapes that they had; to ask for these takes as long as a small kernel.
    const bool known = node.prepared != nullptr && std::find(weights.begin(), weights.end(), i) != weights.end();
    try {
      if (!known) bind(node.plan, i, value, sizes);
    } catch (const Problem& problem) {
      throw Problem(problem.what() + std::string(OTHER_SIZES));
    }
    void* data = nullptr;
    succeed(api->GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    found[i] = data;
  }
}

void outputs_of(const Node& node, OrtKernelContext* context, void** found, const plan::Sizes& sizes) {
  size_t given = 0, wanted = node.plan.outputs.size();
  succeed(api->KernelContext_GetOutputCount(context, &given));
  if (given != wanted) throw Problem("it has " + std::to_string(given) + " outputs, its plan says " + std::to_string(wanted));
  for (size_t i = 0; i < wanted; ++i) {
    const std::vector<int64_t> made = node.fixed ? std::vector<int64_t>() : node.plan.outputs[i].shape(sizes);
    const std::vector<int64_t>& shape = node.fixed ? node.shapes[i] : made;
    OrtValue* value = nullptr;
    succeed(api->KernelContext_GetOutput(context, i, shape.data(), shape.size(), &value));
    if (value == nullptr) throw Problem("output " + std::to_string(i) + " is left out; its kernel writes it");
    succeed(api->GetTensorMutableData(value, &found[i]));
  }
}

void parallel(void (*block)(void*, size_t), size_t count, void* data, void* context) {
  ort::Status status =
      api->KernelContext_ParallelFor(static_cast<const OrtKernelContext*>(context), block, count, count < BATCHES ? count : BATCHES, data);
  if (status == nullptr) return;
  api->ReleaseStatus(status);
  for (size_t i = 0; i < count; ++i) block(data, i);  // nothing ran: it fails before it begins
}

// The named sizes, in their order. Nothing can be said of a sum over none.
std::vector<size_t> given_sizes(const Node& node, const plan::Sizes& sizes) {
  std::vector<size_t> found;
  for (const std::string& name : node.plan.names) {
    const int64_t size = sizes.find(name)->second;
    bool delivered = size > 0 || std::find(node.plan.empty.begin(), node.plan.empty.end(), name) != node.plan.empty.end();
    for (const plan::Type& each : node.plan.outputs)
      for (const plan::Expression& dim : each.dims)
        for (const std::string& other : dim.names()) delivered = delivered || other == name;
    if (!delivered) throw Problem("the size " + name + ", over which its kernel sums, is 0" + WITHOUT);
    found.push_back(static_cast<size_t>(size));
  }
  return found;
}

void run_cpu(const Node& node, OrtKernelContext* context, const void** inputs, void** outputs, const plan::Sizes& sizes) {
  const std::vector<size_t> given = given_sizes(node, sizes);
  const size_t count = node.plan.inputs.size(), bytes = node.function.room != nullptr ? node.function.room(given.data()) : node.function.scratch;
  std::unique_ptr<Scratch> scratch;
  if (bytes > 1) scratch = std::make_unique<Scratch>(context, node.allocator, bytes, false);
  Memory prepared;
  if (node.function.prepare != nullptr && node.prepared == nullptr) {
    prepared = aligned(node.function.prepared);
    node.function.prepare(inputs, prepared.get());
  }
  inputs[count + 1] = given.data();
  if (node.function.prepare != nullptr) inputs[count] = prepared ? prepared.get() : node.prepared.get();
  node.function.entry(inputs, outputs, scratch ? scratch->start : nullptr, parallel, context);
}

void run_cuda(const Node& node, OrtKernelContext* context, const void** inputs, void** outputs, const plan::Sizes& sizes) {
  void* stream = nullptr;
  succeed(api->KernelContext_GetGPUComputeStream(context, &stream));
  std::vector<size_t> starts;
  size_t size = 0;
  given_sizes(node, sizes);
  const auto kernels = node.plan.chosen(sizes);
  for (size_t i = 0; i < node.plan.scratch.size(); ++i) {
    starts.push_back(size);
    if (node.plan.takes(kernels, i)) size += (static_cast<size_t>(node.plan.scratch[i].bytes(sizes)) + 255) / 256 * 256;
  }
  std::unique_ptr<Scratch> scratch;
  if (node.allocator != nullptr) scratch = std::make_unique<Scratch>(context, node.allocator, size, true);
  std::vector<const void*> between;
  for (size_t start : starts) between.push_back(scratch->start + start);
  const void* const* tensors[] = {inputs, outputs, between.data()};
  node.loaded->launch(node.plan, tensors, sizes, stream);
}

ort::Status compute(void* kernel, OrtKernelContext* context) {
  const Node& node = *static_cast<const Node*>(kernel);
  return guarded(node.who, [&] {
    const void* inputs[258];
    void* outputs[256];
    plan::Sizes sizes;
    inputs_of(node, context, inputs, sizes);
    outputs_of(node, context, outputs, sizes);
    if (node.plan.cuda)
      run_cuda(node, context, inputs, outputs, sizes);
    else
      run_cpu(node, context, inputs, outputs, sizes);
  });
}

// ---------------------------------------------------------------- registration

Op make(const char* stem, size_t number, const char* provider) {
  Op op{};
  std::snprintf(op.name, sizeof op.name, "%s%zu", stem, number);
  op.provider = provider;
  op.version = ort::VERSION;
  op.GetName = [](const OrtCustomOp* self) -> const char* { return static_cast<const Op*>(self)->name; };
  op.GetExecutionProviderType = [](const OrtCustomOp* self) { return static_cast<const Op*>(self)->provider; };
  op.GetInputType = op.GetOutputType = [](const OrtCustomOp*, size_t) -> Element { return 0; };  // any
  op.GetInputTypeCount = op.GetOutputTypeCount = [](const OrtCustomOp*) -> size_t { return 1; };
  op.KernelDestroy = destroy;
  op.GetInputCharacteristic = op.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return ort::VARIADIC; };
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return ort::DEFAULT_MEMORY; };
  op.GetVariadicInputMinArity = op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.CreateKernelV2 = create;
  op.KernelComputeV2 = compute;
  op.InferOutputShapeFn = infer;
  op.GetStartVersion = op.GetEndVersion = [](const OrtCustomOp*) { return 1; };
  op.GetMayInplace = op.GetAliasMap = [](int**, int**) -> size_t { return 0; };
  op.ReleaseMayInplace = op.ReleaseAliasMap = [](int*, int*) {};
  return op;
}

// Never destroyed: a session may outlive the destructors of this library.
const std::vector<Op>& operators() {
  static const auto& found = *new std::vector<Op>([] {
    std::vector<Op> made;
    for (size_t i = 0; i < NAMES; ++i) made.push_back(make("CpuKernel", i, nullptr));
    for (const char* provider : {"CUDAExecutionProvider", "CudaPluginExecutionProvider"})
      for (size_t i = 0; i < NAMES; ++i) made.push_back(make("CudaKernel", i, provider));
    return made;
  }());
  return found;
}

// One for all sessions: it and the operators last as long as the process (the library is linked with -z nodelete). An operator that is known
// hides the function of its name even where no provider has a kernel for it, so those for CUDA are left out where there is none.
OrtCustomOpDomain* domain(bool with_cuda) {
  static OrtCustomOpDomain* found[2];
  OrtCustomOpDomain*& made = found[with_cuda];
  if (made != nullptr) return made;
  OrtCustomOpDomain* fresh = nullptr;
  succeed(api->CreateCustomOpDomain("taso_mirage", &fresh));
  for (const Op& op : operators())
    if (with_cuda || op.provider == nullptr) succeed(api->CustomOpDomain_Add(fresh, &op));
  return made = fresh;
}

std::string config(const OrtSessionOptions* options, const char* key) {
  int has = 0;
  succeed(api->HasSessionConfigEntry(options, key, &has));
  return has ? text([&](char* to, size_t* size) { return api->GetSessionConfigEntry(options, key, to, size); }) : "";
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  static std::mutex mutex;
  const OrtApi* table = base->GetApi(ort::VERSION);
  if (table == nullptr) {
    const OrtApi* old = base->GetApi(1);
    if (old == nullptr) return nullptr;
    const auto status = reinterpret_cast<ort::Status (*)(int, const char*)>(reinterpret_cast<void* const*>(old)[0]);
    return status(ort::FAIL, "taso_mirage needs ONNX Runtime 1.18 or newer; update it");
  }
  const std::lock_guard<std::mutex> lock(mutex);
  static const ort::Api functions(table);
  api = &functions;
  return guarded("taso_mirage", [&] {
    const std::string kernels = config(options, "taso_mirage.kernels");
    if (!kernels.empty()) cpu::open(kernels);
    const std::string with_cuda = config(options, "taso_mirage.cuda");
    if (!with_cuda.empty() && with_cuda != "0" && with_cuda != "1") throw Problem("the session's entry taso_mirage.cuda is '" + with_cuda + "'; 0 or 1 are possible");
    succeed(api->AddCustomOpDomain(options, domain(with_cuda.empty() ? cuda::present() : with_cuda == "1")));
  });
}

// The version of the plans that it reads.
EXPORTED int taso_mirage_format() { return static_cast<int>(plan::FORMAT); }

// Read a plan, and its images' attributes, and check them as a session would: 0, or 1 and what is wrong. For tests and tools.
EXPORTED int taso_mirage_check(const char* text, size_t size, const char* const* images, const size_t* sizes, size_t count, char* message, size_t room) {
  try {
    const Plan found = plan::parse(std::string_view(text, size));
    if (found.images.size() != count) throw Problem("there are " + std::to_string(count) + " images, the plan says " + std::to_string(found.images.size()));
    for (size_t i = 0; i < count; ++i) cuda::check(found.images[i], found.images[i].content(std::string_view(images[i], sizes[i])));
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, room, "%s", error.what());
    return 1;
  }
}
