// TensorRT plugins for the kernels of kernels.cpp: IPluginV3 for TensorRT 10 and newer, IPluginV2DynamicExt for TensorRT 8.
// Links nothing of TensorRT and nothing of CUDA. The same in every exported library.

#include <NvInferRuntime.h>

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "cuda.h"
#include "kernels.h"
#include "plan.h"

#define TASO_MIRAGE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace nvinfer1;

static_assert(sizeof(taso_mirage::Shape::dims) / sizeof(int64_t) == Dims::MAX_DIMS, "ranks as TensorRT has them");

constexpr char const* kVersion = "1";
constexpr char const* kDigestField = "digest";
constexpr int32_t kFailed = -1;
constexpr uintptr_t kAlignment = 16;
constexpr size_t kScratchAlignment = 256;

ILoggerFinder* gLoggerFinder = nullptr;

/// A line in TensorRT's log, or on stderr where the library was not loaded by TensorRT's registry.
__attribute__((format(printf, 3, 4))) void say(ILogger::Severity severity, char const* name, char const* format, ...) noexcept {
  char text[512], line[640];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::snprintf(line, sizeof line, "taso_mirage %s: %s", name, text);
  ILogger* const logger = gLoggerFinder == nullptr ? nullptr : gLoggerFinder->findLogger();
  if (logger != nullptr) {
    logger->log(severity, line);
  } else {
    std::fprintf(stderr, "%s\n", line);
  }
}

struct Tensor {
  DataType type;
  std::vector<int64_t> dims;
};

DataType dataType(plan::Type const& type) {
  if (type.dtype == "float32") return DataType::kFLOAT;
  if (type.dtype == "float16") return DataType::kHALF;
  throw plan::Problem("a plugin takes and gives float32 and float16, the plan has " + type.dtype);
}

/// What one plugin computes: its plan at the sizes that it was exported for. `offsets` are of its scratch memory in the workspace.
struct Kernel {
  explicit Kernel(taso_mirage::Data const& made) : data(made), name(made.name), digest(made.digest), plan(plan::parse(made.plan)) {
    if (!plan.cuda || plan.inputs.size() != static_cast<size_t>(made.input_count)) throw plan::Problem("the plan is not for this plugin");
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      taso_mirage::Shape const& shape = made.inputs[i];
      plan.bind(i, plan.inputs[i].element, shape.dims, static_cast<size_t>(shape.rank), sizes);
      inputs.push_back({dataType(plan.inputs[i]), {shape.dims, shape.dims + shape.rank}});
    }
    for (plan::Type const& each : plan.outputs) outputs.push_back({dataType(each), each.shape(sizes)});
    for (plan::Type const& each : plan.scratch) {
      offsets.push_back(workspace);
      workspace += (static_cast<size_t>(each.bytes(sizes)) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    }
  }

  int32_t inputCount() const noexcept { return static_cast<int32_t>(inputs.size()); }
  int32_t outputCount() const noexcept { return static_cast<int32_t>(outputs.size()); }

  taso_mirage::Data const& data;
  char const* name;
  char const* digest;
  plan::Plan plan;
  plan::Sizes sizes;
  std::vector<Tensor> inputs, outputs;
  std::vector<size_t> offsets;
  size_t workspace = 0;
};

char const* typeName(DataType type) noexcept { return type == DataType::kFLOAT ? "FLOAT" : "HALF"; }

Tensor const& tensor(Kernel const& kernel, int32_t pos) noexcept {
  return pos < kernel.inputCount() ? kernel.inputs[static_cast<size_t>(pos)] : kernel.outputs[static_cast<size_t>(pos - kernel.inputCount())];
}

bool checkCounts(Kernel const& kernel, int32_t inputs, int32_t outputs) noexcept {
  if (inputs == kernel.inputCount() && outputs == kernel.outputCount()) return true;
  say(ILogger::Severity::kERROR, kernel.name, "has %d inputs and %d outputs, the network gives it %d and %d", kernel.inputCount(),
    kernel.outputCount(), inputs, outputs);
  return false;
}

/// Whether dims of tensor `pos` are those that the kernel was made for.
bool checkDims(Kernel const& kernel, int32_t pos, Dims const& dims) noexcept {
  Tensor const& wanted = tensor(kernel, pos);
  char const* const role = pos < kernel.inputCount() ? "input" : "output";
  int32_t const index = pos < kernel.inputCount() ? pos : pos - kernel.inputCount();
  if (dims.nbDims != static_cast<int32_t>(wanted.dims.size())) {
    say(ILogger::Severity::kERROR, kernel.name, "%s %d has %d dims, the kernel was made for %zu", role, index, dims.nbDims, wanted.dims.size());
    return false;
  }
  for (size_t i = 0; i < wanted.dims.size(); ++i) {
    if (static_cast<int64_t>(dims.d[i]) == wanted.dims[i]) continue;
    say(ILogger::Severity::kERROR, kernel.name,
      "dim %zu of %s %d is %lld, the kernel was made for %lld; export the plugin again for the other size", i, role, index,
      static_cast<long long>(dims.d[i]), static_cast<long long>(wanted.dims[i]));
    return false;
  }
  return true;
}

bool fitsFormat(Kernel const& kernel, int32_t pos, DataType type, TensorFormat format) noexcept {
  return type == tensor(kernel, pos).type && format == TensorFormat::kLINEAR;
}

bool checkTensor(Kernel const& kernel, int32_t pos, PluginTensorDesc const& desc) noexcept {
  if (!fitsFormat(kernel, pos, desc.type, desc.format)) {
    say(ILogger::Severity::kERROR, kernel.name, "tensor %d is of type %d and format %d, the kernel takes %s in format LINEAR", pos,
      static_cast<int32_t>(desc.type), static_cast<int32_t>(desc.format), typeName(tensor(kernel, pos).type));
    return false;
  }
  return checkDims(kernel, pos, desc.dims);
}

PluginTensorDesc const& given(PluginTensorDesc const& desc) noexcept { return desc; }
PluginTensorDesc const& given(DynamicPluginTensorDesc const& desc) noexcept { return desc.desc; }

/// Sizes of the network, or of a run: -1 for one that the network leaves open; the bounds of a profile say no more.
template <class Desc>
bool checkTensors(Kernel const& kernel, Desc const* in, int32_t inputs, Desc const* out, int32_t outputs) noexcept {
  if (!checkCounts(kernel, inputs, outputs)) return false;
  for (int32_t pos = 0; pos < inputs + outputs; ++pos) {
    if (!checkTensor(kernel, pos, given(pos < inputs ? in[pos] : out[pos - inputs]))) return false;
  }
  return true;
}

bool checkShapes(Kernel const& kernel, DimsExprs const* inputs, int32_t count) noexcept {
  if (!checkCounts(kernel, count, kernel.outputCount())) return false;
  for (int32_t i = 0; i < count; ++i) {
    Dims dims{};
    dims.nbDims = inputs[i].nbDims;
    for (int32_t k = 0; k < dims.nbDims && k < Dims::MAX_DIMS; ++k) {
      if (!inputs[i].d[k]->isConstant()) {
        say(ILogger::Severity::kERROR, kernel.name,
          "dim %d of input %d is not known when the engine is built; the kernel has fixed sizes", k, i);
        return false;
      }
      dims.d[k] = static_cast<decltype(+dims.d[0])>(inputs[i].d[k]->getConstantValue());
    }
    if (!checkDims(kernel, i, dims)) return false;
  }
  return true;
}

bool outputShape(Kernel const& kernel, int32_t index, IExprBuilder& builder, DimsExprs& made) noexcept {
  Tensor const& output = kernel.outputs[static_cast<size_t>(index)];
  made.nbDims = static_cast<int32_t>(output.dims.size());
  for (int32_t k = 0; k < made.nbDims; ++k) {
    made.d[k] = builder.constant(static_cast<decltype(+Dims{}.d[0])>(output.dims[static_cast<size_t>(k)]));
    if (made.d[k] == nullptr) return false;
  }
  return true;
}

/// Whether the fields of a node or an engine name these very kernels.
bool checkDigest(Kernel const& kernel, char const* digest, size_t length) noexcept {
  while (length > 0 && digest[length - 1] == 0) --length;
  if (length == std::strlen(kernel.digest) && std::memcmp(digest, kernel.digest, length) == 0) return true;
  say(ILogger::Severity::kERROR, kernel.name,
    "the model or engine is for the kernels %.*s, this library has %s; use the files of one export together",
    static_cast<int>(length < 64 ? length : 64), digest, kernel.digest);
  return false;
}

bool checkFields(Kernel const& kernel, PluginFieldCollection const* fields) noexcept {
  for (int32_t i = 0; fields != nullptr && i < fields->nbFields; ++i) {
    PluginField const& field = fields->fields[i];
    if (field.name == nullptr || std::strcmp(field.name, kDigestField) != 0) continue;
    if (field.type == PluginFieldType::kCHAR && field.data != nullptr && field.length > 0) {
      return checkDigest(kernel, static_cast<char const*>(field.data), static_cast<size_t>(field.length));
    }
    say(ILogger::Severity::kERROR, kernel.name, "the field %s is not text", kDigestField);
    return false;
  }
  say(ILogger::Severity::kERROR, kernel.name, "there is no field %s; it is %s for this library", kDigestField, kernel.digest);
  return false;
}

/// Whether the driver knows a pointer: memory of a device, or of the host made known to it. Ordinary host memory is not.
bool reachable(void const* pointer) noexcept {
  using Ask = int (*)(void*, int, uint64_t);
  static auto const ask = [] {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver == nullptr ? nullptr : reinterpret_cast<Ask>(dlsym(driver, "cuPointerGetAttribute"));
  }();
  constexpr int kMemoryType = 2;
  unsigned type = 0;
  return ask != nullptr && ask(&type, kMemoryType, reinterpret_cast<uintptr_t>(pointer)) == 0;
}

/// A kernel's code on the device of one execution context, and the pointers that were found to be a device's.
class Runner {
 public:
  explicit Runner(Kernel const& kernel) : kernel_(kernel) {}
  /// A copy shares the code.
  Runner(Runner const& other) : kernel_(other.kernel_), loaded_(other.loaded_) {}
  Runner& operator=(Runner const&) = delete;

  Kernel const& kernel() const noexcept { return kernel_; }

  /// Load the code, so that no enqueue does, which may be captured. What fails is tried again, and fails, when it is run.
  void attach() noexcept {
    guarded(ILogger::Severity::kWARNING, [&] { load(); });
  }

  int32_t run(void const* const* inputs, void* const* outputs, void* workspace, cudaStream_t stream) noexcept {
    bool const done = guarded(ILogger::Severity::kERROR, [&] {
      if (loaded_ == nullptr) load();
      check(inputs, kernel_.inputs.size(), "input", checkedInputs_);
      check(outputs, kernel_.outputs.size(), "output", checkedOutputs_);
      if (workspace == nullptr && kernel_.workspace > 0) throw plan::Problem("there is no workspace");
      std::vector<void const*> scratch;
      for (size_t const offset : kernel_.offsets) scratch.push_back(static_cast<char const*>(workspace) + offset);
      void const* const* const tensors[3] = {inputs, outputs, scratch.data()};
      loaded_->launch(kernel_.plan, tensors, kernel_.sizes, stream);
    });
    return done ? 0 : kFailed;
  }

 private:
  template <class Work>
  bool guarded(ILogger::Severity severity, Work const& work) const noexcept {
    try {
      work();
      return true;
    } catch (std::exception const& error) {
      say(severity, kernel_.name, "%s", error.what());
      return false;
    }
  }

  void load() {
    loaded_ = cuda::load(kernel_.plan, [&](size_t i) { return std::string(static_cast<char const*>(kernel_.data.images[i])); });
  }

  static void check(void const* const* pointers, size_t count, char const* role, std::vector<void const*>& checked) {
    std::vector<void const*> const given(pointers, pointers + count);
    if (given == checked) return;
    for (size_t i = 0; i < count; ++i) {
      char const* const wrong = given[i] == nullptr ? "null"
        : reinterpret_cast<uintptr_t>(given[i]) % kAlignment != 0 ? "not aligned to 16 bytes"
        : !reachable(given[i]) ? "not memory of the GPU" : nullptr;
      if (wrong != nullptr) throw plan::Problem(std::string("the pointer to ") + role + " " + std::to_string(i) + " is " + wrong);
    }
    checked = given;
  }

  Kernel const& kernel_;
  std::shared_ptr<cuda::Loaded const> loaded_;
  std::vector<void const*> checkedInputs_, checkedOutputs_;
};

#if NV_TENSORRT_MAJOR >= 10

PluginField digestField(Kernel const& kernel) noexcept {
  return {kDigestField, kernel.digest, PluginFieldType::kCHAR, static_cast<int32_t>(std::strlen(kernel.digest))};
}

class Plugin final : public IPluginV3, public IPluginV3OneCore, public IPluginV3OneBuild, public IPluginV3OneRuntime {
 public:
  explicit Plugin(Runner const& runner)
    : kernel_(runner.kernel()), runner_(runner), field_(digestField(kernel_)), fields_{1, &field_} {}

  IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override {
    switch (type) {
    case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
    case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
    case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
    }
    return nullptr;
  }
  IPluginV3* clone() noexcept override { return new (std::nothrow) Plugin(runner_); }

  AsciiChar const* getPluginName() const noexcept override { return kernel_.name; }
  AsciiChar const* getPluginVersion() const noexcept override { return kVersion; }
  AsciiChar const* getPluginNamespace() const noexcept override { return taso_mirage::NAMESPACE; }

  int32_t getNbOutputs() const noexcept override { return kernel_.outputCount(); }
  int32_t configurePlugin(
    DynamicPluginTensorDesc const* in, int32_t inputs, DynamicPluginTensorDesc const* out, int32_t outputs) noexcept override {
    return checkTensors(kernel_, in, inputs, out, outputs) ? 0 : kFailed;
  }
  int32_t getOutputDataTypes(DataType* types, int32_t outputs, DataType const* given, int32_t inputs) const noexcept override {
    if (!checkCounts(kernel_, inputs, outputs)) return kFailed;
    for (int32_t i = 0; i < inputs; ++i) {
      if (given[i] == tensor(kernel_, i).type) continue;
      say(ILogger::Severity::kERROR, kernel_.name, "input %d is of type %d, the kernel takes %s", i, static_cast<int32_t>(given[i]),
        typeName(tensor(kernel_, i).type));
      return kFailed;
    }
    for (int32_t i = 0; i < outputs; ++i) types[i] = tensor(kernel_, inputs + i).type;
    return 0;
  }
  int32_t getOutputShapes(DimsExprs const* inputs, int32_t count, DimsExprs const*, int32_t, DimsExprs* outputs, int32_t made,
    IExprBuilder& builder) noexcept override {
    if (!checkCounts(kernel_, count, made) || !checkShapes(kernel_, inputs, count)) return kFailed;
    for (int32_t i = 0; i < made; ++i) {
      if (!outputShape(kernel_, i, builder, outputs[i])) return kFailed;
    }
    return 0;
  }
  bool supportsFormatCombination(
    int32_t pos, DynamicPluginTensorDesc const* inOut, int32_t inputs, int32_t outputs) noexcept override {
    return checkCounts(kernel_, inputs, outputs) && fitsFormat(kernel_, pos, inOut[pos].desc.type, inOut[pos].desc.format);
  }
  size_t getWorkspaceSize(
    DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*, int32_t) const noexcept override {
    return kernel_.workspace;
  }
  char const* getTimingCacheID() noexcept override { return kernel_.digest; }

  int32_t onShapeChange(
    PluginTensorDesc const* in, int32_t inputs, PluginTensorDesc const* out, int32_t outputs) noexcept override {
    return checkTensors(kernel_, in, inputs, out, outputs) ? 0 : kFailed;
  }
  int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const* out, void const* const* inputs, void* const* outputs,
    void* workspace, cudaStream_t stream) noexcept override {
    if (!checkTensors(kernel_, in, kernel_.inputCount(), out, kernel_.outputCount())) return kFailed;
    return runner_.run(inputs, outputs, workspace, stream);
  }
  IPluginV3* attachToContext(IPluginResourceContext*) noexcept override {
    auto* const made = new (std::nothrow) Plugin(Runner(kernel_));  // another context may be on another device
    if (made != nullptr) made->runner_.attach();
    return made;
  }
  PluginFieldCollection const* getFieldsToSerialize() noexcept override { return &fields_; }

 private:
  Kernel const& kernel_;
  Runner runner_;
  PluginField field_;
  PluginFieldCollection fields_;
};

class Creator final : public IPluginCreatorV3One {
 public:
  explicit Creator(Kernel const& kernel) : kernel_(kernel), field_{kDigestField, nullptr, PluginFieldType::kCHAR, 1}, fields_{1, &field_} {}

  IPluginV3* createPlugin(AsciiChar const*, PluginFieldCollection const* fields, TensorRTPhase) noexcept override {
    return checkFields(kernel_, fields) ? new (std::nothrow) Plugin(Runner(kernel_)) : nullptr;
  }
  PluginFieldCollection const* getFieldNames() noexcept override { return &fields_; }
  AsciiChar const* getPluginName() const noexcept override { return kernel_.name; }
  AsciiChar const* getPluginVersion() const noexcept override { return kVersion; }
  AsciiChar const* getPluginNamespace() const noexcept override { return taso_mirage::NAMESPACE; }

 private:
  Kernel const& kernel_;
  PluginField field_;
  PluginFieldCollection fields_;
};

using CreatorInterface = IPluginCreatorInterface;

#else

class Plugin final : public IPluginV2DynamicExt {
 public:
  explicit Plugin(Runner const& runner) : kernel_(runner.kernel()), runner_(runner), namespace_(taso_mirage::NAMESPACE) {}

  AsciiChar const* getPluginType() const noexcept override { return kernel_.name; }
  AsciiChar const* getPluginVersion() const noexcept override { return kVersion; }
  AsciiChar const* getPluginNamespace() const noexcept override { return namespace_.c_str(); }
  void setPluginNamespace(AsciiChar const* name) noexcept override { namespace_ = name; }
  int32_t getNbOutputs() const noexcept override { return kernel_.outputCount(); }
  int32_t initialize() noexcept override {
    runner_.attach();
    return 0;
  }
  void terminate() noexcept override {}
  void destroy() noexcept override { delete this; }
  size_t getSerializationSize() const noexcept override { return std::strlen(kernel_.digest); }
  void serialize(void* buffer) const noexcept override { std::memcpy(buffer, kernel_.digest, std::strlen(kernel_.digest)); }

  IPluginV2DynamicExt* clone() const noexcept override {
    auto* const made = new (std::nothrow) Plugin(runner_);
    if (made != nullptr) {
      made->namespace_ = namespace_;
      made->refused_ = refused_;
    }
    return made;
  }
  DataType getOutputDataType(int32_t index, DataType const*, int32_t) const noexcept override {
    return kernel_.outputs[static_cast<size_t>(index)].type;
  }
  DimsExprs getOutputDimensions(
    int32_t index, DimsExprs const* inputs, int32_t count, IExprBuilder& builder) noexcept override {
    DimsExprs made{};
    if (!checkShapes(kernel_, inputs, count) || !outputShape(kernel_, index, builder, made)) made.nbDims = -1;
    return made;
  }
  bool supportsFormatCombination(int32_t pos, PluginTensorDesc const* inOut, int32_t inputs, int32_t outputs) noexcept override {
    return checkCounts(kernel_, inputs, outputs) && fitsFormat(kernel_, pos, inOut[pos].type, inOut[pos].format);
  }
  void configurePlugin(
    DynamicPluginTensorDesc const* in, int32_t inputs, DynamicPluginTensorDesc const* out, int32_t outputs) noexcept override {
    refused_ = !checkTensors(kernel_, in, inputs, out, outputs);
  }
  size_t getWorkspaceSize(PluginTensorDesc const*, int32_t, PluginTensorDesc const*, int32_t) const noexcept override {
    return kernel_.workspace;
  }
  int32_t enqueue(PluginTensorDesc const* in, PluginTensorDesc const* out, void const* const* inputs, void* const* outputs,
    void* workspace, cudaStream_t stream) noexcept override {
    if (refused_ || !checkTensors(kernel_, in, kernel_.inputCount(), out, kernel_.outputCount())) return kFailed;
    return runner_.run(inputs, outputs, workspace, stream);
  }

 private:
  Kernel const& kernel_;
  Runner runner_;
  std::string namespace_;
  bool refused_ = false;
};

class Creator final : public IPluginCreator {
 public:
  explicit Creator(Kernel const& kernel)
    : kernel_(kernel), namespace_(taso_mirage::NAMESPACE), field_{kDigestField, nullptr, PluginFieldType::kCHAR, 1}, fields_{1, &field_} {}

  Plugin* createPlugin(AsciiChar const*, PluginFieldCollection const* fields) noexcept override {
    return checkFields(kernel_, fields) ? made() : nullptr;
  }
  Plugin* deserializePlugin(AsciiChar const*, void const* data, size_t length) noexcept override {
    return checkDigest(kernel_, static_cast<char const*>(data), length) ? made() : nullptr;
  }
  PluginFieldCollection const* getFieldNames() noexcept override { return &fields_; }
  AsciiChar const* getPluginName() const noexcept override { return kernel_.name; }
  AsciiChar const* getPluginVersion() const noexcept override { return kVersion; }
  AsciiChar const* getPluginNamespace() const noexcept override { return namespace_.c_str(); }
  void setPluginNamespace(AsciiChar const* name) noexcept override { namespace_ = name; }

 private:
  Plugin* made() const noexcept {
    auto* const plugin = new (std::nothrow) Plugin(Runner(kernel_));
    if (plugin != nullptr) plugin->setPluginNamespace(namespace_.c_str());
    return plugin;
  }

  Kernel const& kernel_;
  std::string namespace_;
  PluginField field_;
  PluginFieldCollection fields_;
};

using CreatorInterface = IPluginCreator;

#endif

std::vector<CreatorInterface*> all() noexcept {
  std::vector<CreatorInterface*> made;
  for (int32_t i = 0; i < taso_mirage::KERNEL_COUNT; ++i) {
    taso_mirage::Data const& data = taso_mirage::KERNELS[i];
    try {
      made.push_back(new Creator(*new Kernel(data)));  // they last as long as the library
    } catch (std::exception const& error) {
      say(ILogger::Severity::kERROR, data.name, "%s", error.what());
    }
  }
  return made;
}

CreatorInterface* const* creators(int32_t& count) noexcept {
  static auto const* const list = new std::vector<CreatorInterface*>(all());  // the registry may outlive what is static here
  count = static_cast<int32_t>(list->size());
  return list->data();
}

}  // namespace

// What the plugin registry asks a library for; TensorRT 8 knows the second by another name.
TASO_MIRAGE_EXPORT void setLoggerFinder(ILoggerFinder* finder) { gLoggerFinder = finder; }
#if NV_TENSORRT_MAJOR >= 10
TASO_MIRAGE_EXPORT IPluginCreatorInterface* const* getCreators(int32_t& count) { return creators(count); }
#else
TASO_MIRAGE_EXPORT IPluginCreator* const* getPluginCreators(int32_t& count) { return creators(count); }
#endif
