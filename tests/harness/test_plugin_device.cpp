// Runs one plugin of an exported library on a GPU, as an engine would: device LIBRARY INDEX DIGEST RUNS TENSOR...
// A TENSOR is in:TYPE:DIMS:FILE or out:TYPE:DIMS:FILE, as in in:half:2x64:x.bin. The outputs are written; they must be the same bytes when a CUDA
// graph replays them, and in RUNS runs of two threads with contexts of their own. Prints what was done; exits with 0 if all went well.
#include <NvInferRuntime.h>

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace nvinfer1;

namespace {

using Address = unsigned long long;

void* symbol(void* library, char const* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("there is no ") + name);
  return found;
}

void* opened(char const* name) {
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return library;
}

template <class... Arguments>
void cuda(char const* name, Arguments... arguments) {
  static void* const driver = opened("libcuda.so.1");
  int const error = reinterpret_cast<int (*)(Arguments...)>(symbol(driver, name))(arguments...);
  if (error != 0) throw std::runtime_error(std::string(name) + " fails with " + std::to_string(error));
}

void require(bool passed, char const* what) {
  if (!passed) throw std::runtime_error(std::string("not so: ") + what);
  std::printf("ok %s\n", what);
}

struct Memory {
  explicit Memory(size_t bytes) : bytes(bytes) {
    cuda("cuMemAlloc_v2", &address, bytes);
    clear();
  }
  void clear() const { cuda("cuMemsetD8_v2", address, static_cast<unsigned char>(0), bytes); }
  void put(std::vector<char> const& content) const { cuda("cuMemcpyHtoD_v2", address, static_cast<void const*>(content.data()), content.size()); }
  std::vector<char> get() const {
    std::vector<char> content(bytes);
    cuda("cuMemcpyDtoH_v2", static_cast<void*>(content.data()), address, bytes);
    return content;
  }
  void* pointer() const { return reinterpret_cast<void*>(address); }
  Address address = 0;
  size_t bytes;
};

struct Argument {
  bool input;
  PluginTensorDesc desc;
  size_t bytes;
  std::string file;
};

Argument parsed(std::string const& text) {
  std::istringstream words(text);
  std::string role, type, dims, file;
  std::getline(words, role, ':');
  std::getline(words, type, ':');
  std::getline(words, dims, ':');
  std::getline(words, file);
  Argument found{role == "in", {}, type == "half" ? size_t{2} : size_t{4}, file};
  found.desc.type = type == "half" ? DataType::kHALF : DataType::kFLOAT;
  std::istringstream sizes(dims);
  for (std::string each; std::getline(sizes, each, 'x');) {
    found.desc.dims.d[found.desc.dims.nbDims++] = std::stoi(each);
    found.bytes *= static_cast<size_t>(std::stoi(each));
  }
  return found;
}

std::vector<char> content(Argument const& argument) {
  std::ifstream file(argument.file, std::ios::binary);
  std::vector<char> found((std::istreambuf_iterator<char>(file)), {});
  if (found.size() != argument.bytes) throw std::runtime_error(argument.file + " has not " + std::to_string(argument.bytes) + " bytes");
  return found;
}

struct Logger final : ILogger {
  void log(Severity, AsciiChar const* text) noexcept override { std::printf("log %s\n", text); }
};
struct Finder final : ILoggerFinder {
  ILogger* findLogger() override { return &logger; }
  Logger logger;
};

#if NV_TENSORRT_MAJOR >= 10
constexpr char const* ENTRY = "getCreators";
using Creator = IPluginCreatorInterface;
using Plugin = IPluginV3;
struct Destroy {
  void operator()(Plugin* plugin) const { delete plugin; }
};
using Owned = std::unique_ptr<Plugin, Destroy>;

IPluginV3OneRuntime& runtime(Plugin& plugin) {
  return *static_cast<IPluginV3OneRuntime*>(plugin.getCapabilityInterface(PluginCapabilityType::kRUNTIME));
}
Owned restored(Creator& creator, PluginFieldCollection const& fields) {
  auto& made = static_cast<IPluginCreatorV3One&>(creator);
  Owned const plugin(made.createPlugin("node", &fields, TensorRTPhase::kBUILD));
  return Owned(plugin == nullptr ? nullptr : made.createPlugin("node", runtime(*plugin).getFieldsToSerialize(), TensorRTPhase::kRUNTIME));
}
size_t workspace(Plugin& plugin) {
  auto& build = *static_cast<IPluginV3OneBuild*>(plugin.getCapabilityInterface(PluginCapabilityType::kBUILD));
  return build.getWorkspaceSize(nullptr, 0, nullptr, 0);
}
Owned attached(Plugin& plugin) { return Owned(runtime(plugin).attachToContext(nullptr)); }
#else
constexpr char const* ENTRY = "getPluginCreators";
using Creator = IPluginCreator;
using Plugin = IPluginV2DynamicExt;
struct Destroy {
  void operator()(Plugin* plugin) const { plugin->destroy(); }
};
using Owned = std::unique_ptr<Plugin, Destroy>;

Plugin& runtime(Plugin& plugin) { return plugin; }
Owned restored(Creator& creator, PluginFieldCollection const& fields) {
  Owned const plugin(static_cast<Plugin*>(creator.createPlugin("node", &fields)));
  std::vector<char> bytes(plugin->getSerializationSize());
  plugin->serialize(bytes.data());
  Owned made(static_cast<Plugin*>(creator.deserializePlugin("node", bytes.data(), bytes.size())));
  if (made != nullptr && made->initialize() != 0) throw std::runtime_error("initialize fails");
  return made;
}
size_t workspace(Plugin& plugin) { return plugin.getWorkspaceSize(nullptr, 0, nullptr, 0); }
Owned attached(Plugin& plugin) { return Owned(plugin.clone()); }
#endif

// What one execution context has: a plugin, memory, a stream.
struct Context {
  Context(Plugin& plugin, std::vector<Argument> const& arguments) : plugin(attached(plugin)) {
    for (Argument const& each : arguments) {
      memory.push_back(std::make_unique<Memory>(each.bytes));
      (each.input ? in : out).push_back(each.desc);
      if (each.input) memory.back()->put(content(each));
      each.input ? inputs.push_back(memory.back()->pointer()) : outputs.push_back(memory.back()->pointer());
    }
    if (size_t const bytes = workspace(plugin); bytes > 0) {
      memory.push_back(std::make_unique<Memory>(bytes));
      scratch = memory.back()->pointer();
    }
    cuda("cuStreamCreate", &stream, 1u);
  }
  int enqueue() { return runtime(*plugin).enqueue(in.data(), out.data(), inputs.data(), outputs.data(), scratch, static_cast<cudaStream_t>(stream)); }
  void wait() const { cuda("cuStreamSynchronize", stream); }
  std::vector<std::vector<char>> results() const {
    std::vector<std::vector<char>> found;
    for (size_t i = 0; i < out.size(); ++i) found.push_back(memory[in.size() + i]->get());
    return found;
  }

  Owned plugin;
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<PluginTensorDesc> in, out;
  std::vector<void const*> inputs;
  std::vector<void*> outputs;
  void *scratch = nullptr, *stream = nullptr;
};

void checkHost(Context& context) {
  alignas(16) static char host[1 << 16];
  void const* const device = context.inputs[0];
  context.inputs[0] = host;
  require(context.enqueue() != 0, "memory of the host is refused");
  context.inputs[0] = static_cast<char const*>(device) + 2;
  require(context.enqueue() != 0, "a pointer that is not aligned is refused");
  context.inputs[0] = device;
}

void checkGraph(Context& context, std::vector<std::vector<char>> const& expected) {
  for (size_t i = 0; i < context.out.size(); ++i) context.memory[context.in.size() + i]->clear();
  void *graph = nullptr, *made = nullptr;
  cuda("cuStreamBeginCapture_v2", context.stream, 0);
  int const error = context.enqueue();
  cuda("cuStreamEndCapture", context.stream, &graph);
  require(error == 0, "captured as a CUDA graph");
  cuda("cuGraphInstantiateWithFlags", &made, graph, 0ull);
  cuda("cuGraphLaunch", made, context.stream);
  context.wait();
  require(context.results() == expected, "the graph gives the same");
}

void checkThreads(Plugin& plugin, std::vector<Argument> const& arguments, int runs, void* device, std::vector<std::vector<char>> const& expected) {
  int wrong[2] = {1, 1};
  std::vector<std::thread> threads;
  for (int& each : wrong) {
    threads.emplace_back([&] {
      try {
        cuda("cuCtxSetCurrent", device);
        Context context(plugin, arguments);
        int failed = 0;
        for (int i = 0; i < runs; ++i) failed += context.enqueue() != 0;
        context.wait();
        each = failed + (context.results() != expected);
      } catch (std::exception const& error) {
        std::printf("log %s\n", error.what());
      }
    });
  }
  for (std::thread& each : threads) each.join();
  require(wrong[0] == 0 && wrong[1] == 0, "two threads give the same");
}

void run(std::vector<std::string> const& words) {
  void* const library = opened(words[0].c_str());
  static Finder finder;
  reinterpret_cast<void (*)(ILoggerFinder*)>(symbol(library, "setLoggerFinder"))(&finder);
  int32_t count = 0;
  auto const* const creators = reinterpret_cast<Creator* const* (*)(int32_t&)>(symbol(library, ENTRY))(count);
  std::vector<Argument> arguments;
  for (size_t i = 4; i < words.size(); ++i) arguments.push_back(parsed(words[i]));
  int device = 0;
  void* primary = nullptr;
  cuda("cuInit", 0u);
  cuda("cuDeviceGet", &device, 0);
  cuda("cuDevicePrimaryCtxRetain", &primary, device);
  cuda("cuCtxSetCurrent", primary);
  PluginField field{"digest", words[2].c_str(), PluginFieldType::kCHAR, static_cast<int32_t>(words[2].size())};
  Owned const plugin = restored(*creators[std::stoi(words[1])], {1, &field});
  require(plugin != nullptr, "created, serialised, made again");
  Context context(*plugin, arguments);
  require(context.plugin != nullptr && context.enqueue() == 0, "enqueued");
  context.wait();
  auto const expected = context.results();
  size_t next = 0;
  for (Argument const& each : arguments) {
    if (!each.input) std::ofstream(each.file, std::ios::binary).write(expected[next].data(), static_cast<long>(expected[next].size())), ++next;
  }
  checkHost(context);
  checkGraph(context, expected);
  checkThreads(*plugin, arguments, std::stoi(words[3]), primary, expected);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    run({arguments + 1, arguments + count});
    return 0;
  } catch (std::exception const& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
