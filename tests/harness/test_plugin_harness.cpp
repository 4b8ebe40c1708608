// Drives an exported library as TensorRT would, through the interface alone: harness LIBRARY DIGEST0 DIGEST1. Written for the model of
// test_plugin.py: plugin 0 is (2,64) half, (64,96) half -> (2,96) half, plugin 1 is (12,20) float -> (20) float with a workspace.
// Each check is a line; the exit code counts those that fail.
#include <NvInferRuntime.h>

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

using namespace nvinfer1;

namespace {

int failures = 0;
std::string logged;

void check(bool passed, char const* what) {
  std::printf("%s %s\n", passed ? "ok" : "FAILED", what);
  failures += !passed;
}

bool said(char const* text) {
  bool const found = logged.find(text) != std::string::npos;
  if (!found) std::printf("the log has no '%s': %s\n", text, logged.c_str());
  logged.clear();
  return found;
}

struct Logger final : ILogger {
  void log(Severity, AsciiChar const* text) noexcept override { logged += std::string(text) + "\n"; }
};

struct Finder final : ILoggerFinder {
  ILogger* findLogger() override { return &logger; }
  Logger logger;
};

// Sizes as the builder hands them out: constants, or unknown (-1).
using Size = decltype(+Dims{}.d[0]);
struct Expression final : IDimensionExpr, apiv::VDimensionExpr {
  explicit Expression(Size size) : size(size) { mImpl = this; }
  bool isConstant() const override { return size >= 0; }
  Size getConstantValue() const override { return size; }
#if NV_TENSORRT_MAJOR >= 10
  bool isSizeTensor() const override { return false; }
#endif
  Size size;
};

struct Builder final : IExprBuilder, apiv::VExprBuilder {
  Builder() { mImpl = this; }
  IDimensionExpr const* constant(Size size) override {
    made.push_back(std::make_unique<Expression>(size));
    return made.back().get();
  }
  IDimensionExpr const* operation(DimensionOperation, IDimensionExpr const&, IDimensionExpr const&) override { return nullptr; }
#if NV_TENSORRT_MAJOR >= 10
  IDimensionExpr const* declareSizeTensor(int32_t, IDimensionExpr const&, IDimensionExpr const&) override { return nullptr; }
#endif
  std::vector<std::unique_ptr<Expression>> made;
};

DimsExprs exprs(Builder& builder, std::vector<Size> const& sizes) {
  DimsExprs found{};
  found.nbDims = static_cast<int32_t>(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) found.d[i] = static_cast<IExprBuilder&>(builder).constant(sizes[i]);
  return found;
}

PluginTensorDesc desc(std::vector<Size> const& sizes, DataType type, TensorFormat format = TensorFormat::kLINEAR) {
  PluginTensorDesc found{};
  found.dims.nbDims = static_cast<int32_t>(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) found.dims.d[i] = sizes[i];
  found.type = type;
  found.format = format;
  return found;
}

DynamicPluginTensorDesc dynamic(PluginTensorDesc const& each) {
  DynamicPluginTensorDesc found{};
  found.desc = each;
  found.min = found.max = each.dims;
  return found;
}

PluginFieldCollection digest(PluginField& field, char const* text) {
  field = {"digest", text, PluginFieldType::kCHAR, static_cast<int32_t>(std::strlen(text))};
  return {1, &field};
}

constexpr auto HALF = DataType::kHALF;
constexpr auto FLOAT = DataType::kFLOAT;
alignas(16) char memory[1 << 16];

// What both interfaces have in common, by the shapes of plugin 0.
struct Tensors {
  PluginTensorDesc in[2] = {desc({2, 64}, HALF), desc({64, 96}, HALF)};
  PluginTensorDesc out[1] = {desc({2, 96}, HALF)};
  void const* inputs[2] = {memory, memory + 1024};
  void* outputs[1] = {memory + 32768};
};

#if NV_TENSORRT_MAJOR >= 10

using Creators = IPluginCreatorInterface* const* (*)(int32_t&);
constexpr char const* ENTRY = "getCreators";

template <class Interface>
Interface& as(IPluginV3& plugin, PluginCapabilityType type) {
  return *static_cast<Interface*>(plugin.getCapabilityInterface(type));
}

IPluginV3* created(IPluginCreatorInterface* creator, char const* text, TensorRTPhase phase = TensorRTPhase::kBUILD) {
  PluginField field;
  PluginFieldCollection const fields = digest(field, text);
  return static_cast<IPluginCreatorV3One*>(creator)->createPlugin("node", &fields, phase);
}

void checkShapes(IPluginV3OneBuild& build) {
  Builder builder;
  DimsExprs inputs[2] = {exprs(builder, {2, 64}), exprs(builder, {64, 96})}, output{};
  check(build.getOutputShapes(inputs, 2, nullptr, 0, &output, 1, builder) == 0 && output.nbDims == 2
      && output.d[0]->getConstantValue() == 2 && output.d[1]->getConstantValue() == 96, "output shape");
  inputs[0] = exprs(builder, {3, 64});
  check(build.getOutputShapes(inputs, 2, nullptr, 0, &output, 1, builder) != 0 && said("dim 0 of input 0 is 3, the kernel was made for 2"), "wrong size");
  inputs[0] = exprs(builder, {-1, 64});
  check(build.getOutputShapes(inputs, 2, nullptr, 0, &output, 1, builder) != 0 && said("dim 0 of input 0 is not known"), "unknown size");
  inputs[0] = exprs(builder, {2, 64, 1});
  check(build.getOutputShapes(inputs, 2, nullptr, 0, &output, 1, builder) != 0 && said("input 0 has 3 dims, the kernel was made for 2"), "wrong rank");
  check(build.getOutputShapes(inputs, 1, nullptr, 0, &output, 1, builder) != 0 && said("has 2 inputs and 1 outputs"), "wrong count");
  DataType types[2] = {HALF, HALF}, type = FLOAT;
  check(build.getOutputDataTypes(&type, 1, types, 2) == 0 && type == HALF, "output type");
  types[1] = FLOAT;
  check(build.getOutputDataTypes(&type, 1, types, 2) != 0 && said("input 1 is of type 0, the kernel takes HALF"), "wrong type");
}

void checkFormats(IPluginV3OneBuild& build) {
  Tensors t;
  DynamicPluginTensorDesc all[3] = {dynamic(t.in[0]), dynamic(t.in[1]), dynamic(t.out[0])};
  for (int32_t pos = 0; pos < 3; ++pos) {
    all[pos].desc.type = HALF;
    check(build.supportsFormatCombination(pos, all, 2, 1), "half in row order");
    all[pos].desc.type = FLOAT;
    check(!build.supportsFormatCombination(pos, all, 2, 1), "not float");
    all[pos].desc.type = HALF;
    all[pos].desc.format = TensorFormat::kCHW2;
    check(!build.supportsFormatCombination(pos, all, 2, 1), "not another format");
    all[pos].desc.format = TensorFormat::kLINEAR;
  }
  check(build.configurePlugin(all, 2, all + 2, 1) == 0, "configured");
  all[0].desc.dims.d[0] = -1;
  check(build.configurePlugin(all, 2, all + 2, 1) != 0 && said("dim 0 of input 0 is -1"), "a network that leaves a size open");
}

void checkRun(IPluginV3OneRuntime& runtime) {
  Tensors t;
  check(runtime.onShapeChange(t.in, 2, t.out, 1) == 0, "shapes");
  check(runtime.enqueue(t.in, t.out, t.inputs, t.outputs, nullptr, nullptr) != 0 && !logged.empty(), "memory of the host is refused");
  std::printf("%s", logged.c_str());
  logged.clear();
  t.in[0] = desc({2, 65}, HALF);
  check(runtime.onShapeChange(t.in, 2, t.out, 1) != 0 && said("dim 1 of input 0 is 65"), "wrong shapes");
  check(runtime.enqueue(t.in, t.out, t.inputs, t.outputs, nullptr, nullptr) != 0 && said("dim 1 of input 0 is 65"), "wrong shapes are not run");
}

void drive(IPluginCreatorInterface* const* creators, char const* const* digests) {
  auto& first = *static_cast<IPluginCreatorV3One*>(creators[0]);
  check(std::string(first.getInterfaceInfo().kind) == "PLUGIN CREATOR_V3ONE", "interface");
  check(std::string(first.getPluginNamespace()) == "taso_mirage" && std::string(first.getPluginVersion()) == "1", "namespace and version");
  auto const* fields = first.getFieldNames();
  check(fields->nbFields == 1 && std::string(fields->fields[0].name) == "digest", "fields");
  check(created(creators[0], "0000000000000000") == nullptr && said("the model or engine is for the kernels 0000000000000000"), "another digest");
  check(first.createPlugin("node", nullptr, TensorRTPhase::kBUILD) == nullptr && said("there is no field digest"), "no digest");
  std::unique_ptr<IPluginV3> const plugin(created(creators[0], digests[0]));
  check(plugin != nullptr, "created");
  auto& core = as<IPluginV3OneCore>(*plugin, PluginCapabilityType::kCORE);
  check(std::string(core.getPluginName()) == first.getPluginName(), "name");
  auto& build = as<IPluginV3OneBuild>(*plugin, PluginCapabilityType::kBUILD);
  check(build.getNbOutputs() == 1 && build.getWorkspaceSize(nullptr, 2, nullptr, 1) == 0 && build.getNbTactics() == 0, "counts");
  checkShapes(build);
  checkFormats(build);
  std::unique_ptr<IPluginV3> const copy(plugin->clone());
  auto& runtime = as<IPluginV3OneRuntime>(*copy, PluginCapabilityType::kRUNTIME);
  check(runtime.setTactic(0) == 0, "tactic");
  auto const* kept = runtime.getFieldsToSerialize();
  std::unique_ptr<IPluginV3> const again(first.createPlugin("node", kept, TensorRTPhase::kRUNTIME));
  check(again != nullptr, "serialised and made again");
  std::unique_ptr<IPluginV3> const attached(as<IPluginV3OneRuntime>(*again, PluginCapabilityType::kRUNTIME).attachToContext(nullptr));
  check(attached != nullptr && attached != again, "attached");
  logged.clear();
  checkRun(as<IPluginV3OneRuntime>(*attached, PluginCapabilityType::kRUNTIME));
  std::unique_ptr<IPluginV3> const second(created(creators[1], digests[1]));
  check(as<IPluginV3OneBuild>(*second, PluginCapabilityType::kBUILD).getWorkspaceSize(nullptr, 1, nullptr, 1) >= 3 * 20 * sizeof(float), "workspace");
}

#else

using Creators = IPluginCreator* const* (*)(int32_t&);
constexpr char const* ENTRY = "getPluginCreators";

struct Destroy {
  void operator()(IPluginV2DynamicExt* plugin) const { plugin->destroy(); }
};
using Plugin = std::unique_ptr<IPluginV2DynamicExt, Destroy>;

Plugin created(IPluginCreator* creator, char const* text) {
  PluginField field;
  PluginFieldCollection const fields = digest(field, text);
  return Plugin(static_cast<IPluginV2DynamicExt*>(creator->createPlugin("node", &fields)));
}

void checkShapes(IPluginV2DynamicExt& plugin) {
  Builder builder;
  DimsExprs inputs[2] = {exprs(builder, {2, 64}), exprs(builder, {64, 96})};
  DimsExprs const output = plugin.getOutputDimensions(0, inputs, 2, builder);
  check(output.nbDims == 2 && output.d[0]->getConstantValue() == 2 && output.d[1]->getConstantValue() == 96, "output shape");
  inputs[0] = exprs(builder, {3, 64});
  check(plugin.getOutputDimensions(0, inputs, 2, builder).nbDims < 0 && said("dim 0 of input 0 is 3, the kernel was made for 2"), "wrong size");
  inputs[0] = exprs(builder, {-1, 64});
  check(plugin.getOutputDimensions(0, inputs, 2, builder).nbDims < 0 && said("dim 0 of input 0 is not known"), "unknown size");
  check(plugin.getOutputDimensions(0, inputs, 1, builder).nbDims < 0 && said("has 2 inputs and 1 outputs"), "wrong count");
  DataType const types[2] = {HALF, HALF};
  check(plugin.getOutputDataType(0, types, 2) == HALF, "output type");
}

void checkFormats(IPluginV2DynamicExt& plugin) {
  Tensors t;
  PluginTensorDesc all[3] = {t.in[0], t.in[1], t.out[0]};
  for (int32_t pos = 0; pos < 3; ++pos) {
    check(plugin.supportsFormatCombination(pos, all, 2, 1), "half in row order");
    all[pos].type = FLOAT;
    check(!plugin.supportsFormatCombination(pos, all, 2, 1), "not float");
    all[pos].type = HALF;
    all[pos].format = TensorFormat::kCHW2;
    check(!plugin.supportsFormatCombination(pos, all, 2, 1), "not another format");
    all[pos].format = TensorFormat::kLINEAR;
  }
  DynamicPluginTensorDesc in[2] = {dynamic(t.in[0]), dynamic(t.in[1])}, out[1] = {dynamic(t.out[0])};
  plugin.configurePlugin(in, 2, out, 1);
  check(logged.empty(), "configured");
}

void checkRun(IPluginV2DynamicExt& plugin) {
  Tensors t;
  check(plugin.initialize() == 0, "initialized");
  logged.clear();
  check(plugin.enqueue(t.in, t.out, t.inputs, t.outputs, nullptr, nullptr) != 0 && !logged.empty(), "memory of the host is refused");
  std::printf("%s", logged.c_str());
  logged.clear();
  t.in[0] = desc({2, 65}, HALF);
  check(plugin.enqueue(t.in, t.out, t.inputs, t.outputs, nullptr, nullptr) != 0 && said("dim 1 of input 0 is 65"), "wrong shapes are not run");
  DynamicPluginTensorDesc in[2] = {dynamic(t.in[0]), dynamic(t.in[1])}, out[1] = {dynamic(t.out[0])};
  plugin.configurePlugin(in, 2, out, 1);
  check(said("dim 1 of input 0 is 65"), "a network of other sizes");
}

void drive(IPluginCreator* const* creators, char const* const* digests) {
  IPluginCreator& first = *creators[0];
  check(std::string(first.getPluginNamespace()) == "taso_mirage" && std::string(first.getPluginVersion()) == "1", "namespace and version");
  auto const* fields = first.getFieldNames();
  check(fields->nbFields == 1 && std::string(fields->fields[0].name) == "digest", "fields");
  check(created(creators[0], "0000000000000000") == nullptr && said("the model or engine is for the kernels 0000000000000000"), "another digest");
  check(first.createPlugin("node", nullptr) == nullptr && said("there is no field digest"), "no digest");
  Plugin const plugin = created(creators[0], digests[0]);
  check(plugin != nullptr && std::string(plugin->getPluginType()) == first.getPluginName(), "created");
  check(plugin->getNbOutputs() == 1 && plugin->getWorkspaceSize(nullptr, 2, nullptr, 1) == 0, "counts");
  checkShapes(*plugin);
  checkFormats(*plugin);
  Plugin const copy(plugin->clone());
  std::vector<char> bytes(copy->getSerializationSize());
  copy->serialize(bytes.data());
  Plugin const again(static_cast<IPluginV2DynamicExt*>(first.deserializePlugin("node", bytes.data(), bytes.size())));
  check(again != nullptr, "serialised and made again");
  bytes[0] ^= 1;
  check(first.deserializePlugin("node", bytes.data(), bytes.size()) == nullptr && said("the model or engine is for"), "another engine");
  checkRun(*again);
  check(created(creators[1], digests[1])->getWorkspaceSize(nullptr, 1, nullptr, 1) >= 3 * 20 * sizeof(float), "workspace");
}

#endif

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) return 99;
  void* const library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::printf("%s\n", dlerror());
    return 98;
  }
  auto const setFinder = reinterpret_cast<void (*)(ILoggerFinder*)>(dlsym(library, "setLoggerFinder"));
  auto const getCreators = reinterpret_cast<Creators>(dlsym(library, ENTRY));
  if (setFinder == nullptr || getCreators == nullptr) return 97;
  static Finder finder;
  setFinder(&finder);
  int32_t creators = 0;
  auto const* const list = getCreators(creators);
  check(creators == 2, "creators");
  if (creators == 2) drive(list, arguments + 2);
  std::printf("%d failed\n", failures);
  return failures;
}
