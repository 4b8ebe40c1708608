// Engines of ONNX files in a real TensorRT, timed in turns: engine PLUGIN_LIBRARY OUT NAME:FILE,... [key:]MODEL.onnx...
// The library is loaded by the registry, as `trtexec --dynamicPlugins` does. Each engine is built in half precision, serialised, and
// what is timed is made of the bytes read back. Inputs are the exporter's samples (float32, half, int64 or int32 as the engine wants).
// OUT-key.json is in the form of `trtexec --exportOutput`, which check_samples.py reads; the last line printed is JSON: microseconds of
// a replayed CUDA graph, the median of ROUNDS in turns, seconds to build, bytes of the engine, kernels of the graph.
// Only TensorRT's own kernels are used (no cuBLAS or cuDNN), on both sides.
#include <NvInfer.h>
#include <NvOnnxParser.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

using namespace nvinfer1;

namespace {

constexpr int ROUNDS = 200, REPLAYS = 10;

class Logger final : public ILogger {
  void log(Severity severity, AsciiChar const* text) noexcept override {
    if (severity <= Severity::kERROR) std::printf("log %s\n", text);
  }
} logger;

template <class T>
std::unique_ptr<T> made(T* object, std::string const& what) {
  if (object == nullptr) throw std::runtime_error("there is no " + what);
  return std::unique_ptr<T>(object);
}

void cuda(cudaError_t error, char const* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

std::vector<char> content(std::string const& name) {
  std::ifstream file(name, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t count(Dims const& dims) {
  int64_t product = 1;
  for (int i = 0; i < dims.nbDims; ++i) product *= dims.d[i];
  return product;
}

size_t width(DataType type) {
  switch (type) {
    case DataType::kHALF: return 2;
    case DataType::kINT8:
    case DataType::kBOOL: return 1;
    default: return 4;
  }
}

float single(uint16_t half) {
  uint32_t const sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 31u, fraction = half & 1023u;
  if (exponent == 0) return (sign != 0 ? -1.0f : 1.0f) * static_cast<float>(fraction) / 16777216.0f;
  uint32_t const bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

struct Tensor {
  std::string name;
  Dims dims;
  DataType type;
  void* memory;
  size_t bytes() const { return static_cast<size_t>(count(dims)) * width(type); }
};

std::string built(std::string const& path, double& seconds) {
  auto const start = std::chrono::steady_clock::now();
  auto const builder = made(createInferBuilder(logger), "builder");
  auto const network = made(builder->createNetworkV2(1U << static_cast<int>(NetworkDefinitionCreationFlag::kEXPLICIT_BATCH)), "network");
  auto const parser = made(nvonnxparser::createParser(*network, logger), "parser");
  if (!parser->parseFromFile(path.c_str(), static_cast<int>(ILogger::Severity::kERROR))) {
    throw std::runtime_error(parser->getNbErrors() ? parser->getError(0)->desc() : "the parser does not say why");
  }
  auto const config = made(builder->createBuilderConfig(), "configuration");
  config->setFlag(BuilderFlag::kFP16);
  config->setTacticSources(1U << static_cast<int>(TacticSource::kEDGE_MASK_CONVOLUTIONS) | 1U << static_cast<int>(TacticSource::kJIT_CONVOLUTIONS));
  auto const plan = made(builder->buildSerializedNetwork(*network, *config), "plan: the network could not be built");
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {static_cast<char const*>(plan->data()), plan->size()};
}

class Engine {
 public:
  Engine(IRuntime& runtime, std::string const& path, std::string const& file, std::map<std::string, std::string> const& samples) {
    std::string const plan = built(path, seconds);
    std::ofstream(file, std::ios::binary) << plan;
    std::vector<char> const read = content(file);
    bytes = read.size();
    engine = made(runtime.deserializeCudaEngine(read.data(), read.size()), "engine of the bytes read back");
    context = made(engine->createExecutionContext(), "context");
    for (int i = 0; i < engine->getNbIOTensors(); ++i) place(engine->getIOTensorName(i), samples);
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    enqueue();
    cuda(cudaStreamSynchronize(stream), "first run");
    capture();
  }

  void replay() const { cuda(cudaGraphLaunch(graph, stream), "replay"); }

  double timed() const {
    cudaEvent_t from, to;
    cuda(cudaEventCreate(&from), "event");
    cuda(cudaEventCreate(&to), "event");
    cuda(cudaEventRecord(from, stream), "record");
    for (int i = 0; i < REPLAYS; ++i) replay();
    cuda(cudaEventRecord(to, stream), "record");
    cuda(cudaEventSynchronize(to), "wait");
    float milliseconds = 0;
    cuda(cudaEventElapsedTime(&milliseconds, from, to), "elapsed");
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return milliseconds * 1e3 / REPLAYS;
  }

  void write(std::string const& file) const {
    std::ofstream out(file);
    out.precision(9);
    char const* before = "[";
    for (Tensor const& each : outputs) {
      std::vector<char> bytes(each.bytes());
      cuda(cudaMemcpy(bytes.data(), each.memory, bytes.size(), cudaMemcpyDeviceToHost), "copy");
      out << before << "{\"name\": \"" << each.name << "\", \"values\": [";
      for (int64_t i = 0; i < count(each.dims); ++i) out << (i ? ", " : "") << value(bytes, each.type, i);
      out << "]}";
      before = ", ";
    }
    out << "]\n";
  }

  double seconds = 0;
  size_t bytes = 0, nodes = 0;
  std::vector<double> times;

 private:
  static double value(std::vector<char> const& bytes, DataType type, int64_t i) {
    if (type == DataType::kHALF) return single(reinterpret_cast<uint16_t const*>(bytes.data())[i]);
    if (type == DataType::kINT32) return reinterpret_cast<int32_t const*>(bytes.data())[i];
    if (type == DataType::kBOOL) return bytes[static_cast<size_t>(i)];
    return reinterpret_cast<float const*>(bytes.data())[i];
  }

  void place(char const* name, std::map<std::string, std::string> const& samples) {
    Tensor tensor{name, engine->getTensorShape(name), engine->getTensorDataType(name), nullptr};
    cuda(cudaMalloc(&tensor.memory, tensor.bytes()), "memory");
    if (engine->getTensorIOMode(name) == TensorIOMode::kINPUT) {
      auto const found = samples.find(name);
      if (found == samples.end()) throw std::runtime_error(std::string("no sample is named ") + name);
      std::vector<char> sample = content(found->second);
      if (tensor.type == DataType::kINT32 && sample.size() == 2 * tensor.bytes()) {  // the parser narrows int64
        for (int64_t i = 0; i < count(tensor.dims); ++i) std::memmove(sample.data() + 4 * i, sample.data() + 8 * i, 4);
        sample.resize(tensor.bytes());
      }
      if (sample.size() != tensor.bytes()) {
        throw std::runtime_error(found->second + " has " + std::to_string(sample.size()) + " bytes, the engine takes " + std::to_string(tensor.bytes()));
      }
      cuda(cudaMemcpy(tensor.memory, sample.data(), sample.size(), cudaMemcpyHostToDevice), "copy");
    } else {
      outputs.push_back(tensor);
    }
    if (!context->setTensorAddress(name, tensor.memory)) throw std::runtime_error(std::string("no address for ") + name);
  }

  void enqueue() {
    if (!context->enqueueV3(stream)) throw std::runtime_error("enqueueV3 fails");
  }

  void capture() {
    cudaGraph_t captured;
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    enqueue();
    cuda(cudaStreamEndCapture(stream, &captured), "end of the capture");
    cuda(cudaGraphGetNodes(captured, nullptr, &nodes), "nodes");
    cuda(cudaGraphInstantiateWithFlags(&graph, captured, 0), "instantiate");
    for (Tensor const& each : outputs) cuda(cudaMemset(each.memory, 0, each.bytes()), "clear");  // what is checked, a replay wrote
    replay();
    cuda(cudaStreamSynchronize(stream), "first replay");
  }

  std::unique_ptr<ICudaEngine> engine;
  std::unique_ptr<IExecutionContext> context;
  std::vector<Tensor> outputs;
  cudaStream_t stream = nullptr;
  cudaGraphExec_t graph = nullptr;
};

std::map<std::string, std::string> pairs(std::string const& text) {
  std::map<std::string, std::string> found;
  std::istringstream words(text);
  for (std::string each; std::getline(words, each, ',');) found[each.substr(0, each.rfind(':'))] = each.substr(each.rfind(':') + 1);
  return found;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

int run(std::vector<std::string> const& arguments) {
  if (getPluginRegistry()->loadLibrary(arguments[0].c_str()) == nullptr) throw std::runtime_error("cannot load " + arguments[0]);
  auto const runtime = made(createInferRuntime(logger), "runtime");
  auto const samples = pairs(arguments[2]);
  std::vector<std::pair<std::string, std::unique_ptr<Engine>>> engines;
  for (size_t i = 3; i < arguments.size(); ++i) {
    auto const cut = arguments[i].find(':');
    std::string const key = arguments[i].substr(0, cut), path = arguments[i].substr(cut + 1);
    try {
      auto engine = std::make_unique<Engine>(*runtime, path, arguments[1] + "-" + key + ".plan", samples);
      engine->write(arguments[1] + "-" + key + ".json");
      engines.emplace_back(key, std::move(engine));
    } catch (std::exception const& error) {
      std::printf("%s: %s\n", key.c_str(), error.what());
    }
  }
  for (int round = 0; round < ROUNDS; ++round) {
    for (auto& [_, engine] : engines) engine->times.push_back(engine->timed());
  }
  std::printf("{\"tensorrt\": %d", getInferLibVersion());
  for (auto const& [key, engine] : engines) {
    std::printf(", \"%s\": {\"us\": %.2f, \"seconds\": %.1f, \"bytes\": %zu, \"nodes\": %zu}", key.c_str(), median(engine->times), engine->seconds, engine->bytes, engine->nodes);
  }
  std::printf("}\n");
  return engines.size() + 3 == arguments.size() ? 0 : 1;
}

}  // namespace

int main(int count, char** values) {
  try {
    if (count < 5) throw std::runtime_error("engine PLUGIN_LIBRARY OUT NAME:FILE,... KEY:MODEL.onnx...");
    int const failed = run({values + 1, values + count});
    std::fflush(stdout);
    _Exit(failed);
  } catch (std::exception const& error) {
    std::printf("%s\n", error.what());
    return 2;
  }
}
