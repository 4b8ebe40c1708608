// A CUDA driver that is none: libcuda.so.1 for tests without a GPU. Memory is the host's, and a launch is only written down, one line each:
// symbol, grid, threads, shared memory, and the pointers as number of the allocation and bytes into it. So is a tensor map, which has the
// pointer in its first word.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr int INVALID = 1;
std::map<char*, std::pair<int, size_t>> allocated;
std::mutex guard;
thread_local void* current = nullptr;
int primary;

std::string place(char* pointer) {
  if (pointer == nullptr) return "null";
  for (auto const& [start, each] : allocated) {
    if (pointer >= start && pointer < start + each.second) return std::to_string(each.first) + "+" + std::to_string(pointer - start);
  }
  return "unknown";
}

int launch(void* function, unsigned const* grid, unsigned const* block, unsigned shared, void** parameters) {
  std::lock_guard<std::mutex> const lock(guard);
  std::string text = static_cast<char const*>(function);
  for (int i = 0; i < 3; ++i) text += " " + std::to_string(grid[i]);
  text += " threads " + std::to_string(block[0]) + " shared " + std::to_string(shared) + " at";
  size_t const count = static_cast<size_t>(std::atoi(std::getenv("FAKE_DRIVER_PARAMETERS")));
  for (size_t i = 0; i < count; ++i) text += " " + place(*static_cast<char**>(parameters[i]));
  std::printf("launch %s\n", text.c_str());
  return 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* device, int) { return *device = 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &primary, 0; }
int cuCtxGetCurrent(void** context) { return *context = current, 0; }
int cuCtxSetCurrent(void* context) { return current = context, 0; }
int cuCtxGetDevice(int* device) { return *device = 0; }
int cuGetErrorString(int, char const** text) { return *text = "an error of the driver that is none", 0; }
int cuDeviceGetAttribute(int* value, int which, int) { return *value = which == 75 ? 9 : which == 76 ? 0 : 232448, 0; }
int cuModuleLoadData(void** module, void const* image) { return *module = std::malloc(1), image == nullptr; }
int cuModuleUnload(void* module) { return std::free(module), 0; }
int cuModuleGetFunction(void** function, void*, char const* name) { return *function = strdup(name), 0; }  // named for good: a test is short
int cuFuncGetAttribute(int* value, int, void*) { return *value = 1024, 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, void*, void** parameters, void**) {
  unsigned const grid[] = {x, y, z}, block[] = {bx, by, bz};
  return launch(function, grid, block, shared, parameters);
}
int cuTensorMapEncodeTiled(char** map, int type, unsigned rank, char* address, unsigned long long const* dims, unsigned long long const* strides,
  unsigned const* box, unsigned const*, int, int swizzle, int, int) {
  std::lock_guard<std::mutex> const lock(guard);
  std::printf("map of %s type %d dims", place(address).c_str(), type);
  for (unsigned i = 0; i < rank; ++i) std::printf(" %llu", dims[i]);
  std::printf(" stride %llu box", strides[0]);
  for (unsigned i = 0; i < rank; ++i) std::printf(" %u", box[i]);
  std::printf(" swizzle %d\n", swizzle);
  return *map = address, reinterpret_cast<size_t>(map) % 64 == 0 ? 0 : INVALID;
}
int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  std::lock_guard<std::mutex> const lock(guard);
  char* const made = static_cast<char*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  allocated[made] = {static_cast<int>(allocated.size()), bytes};
  return *address = reinterpret_cast<unsigned long long>(made), 0;
}
int cuMemsetD8_v2(unsigned long long address, unsigned char value, size_t bytes) { return std::memset(reinterpret_cast<void*>(address), value, bytes), 0; }
int cuMemcpyHtoD_v2(unsigned long long to, void const* from, size_t bytes) { return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0; }
int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t bytes) { return std::memcpy(to, reinterpret_cast<void*>(from), bytes), 0; }
int cuPointerGetAttribute(void* value, int, unsigned long long pointer) {
  std::lock_guard<std::mutex> const lock(guard);
  *static_cast<unsigned*>(value) = 2;
  return place(reinterpret_cast<char*>(pointer)) == "unknown" ? INVALID : 0;
}
int cuStreamCreate(void** stream, unsigned) { return *stream = &primary, 0; }
int cuStreamDestroy_v2(void*) { return 0; }
int cuStreamWaitEvent(void*, void*, unsigned) { return 0; }
int cuEventCreate(void** event, unsigned) { return *event = &primary, 0; }
int cuEventRecord(void*, void*) { return 0; }
int cuEventDestroy_v2(void*) { return 0; }
int cuStreamSynchronize(void*) { return 0; }
int cuStreamBeginCapture_v2(void*, int) { return 0; }
int cuStreamEndCapture(void*, void** graph) { return *graph = &primary, 0; }
int cuGraphInstantiateWithFlags(void** made, void*, unsigned long long) { return *made = &primary, 0; }
int cuGraphLaunch(void*, void*) { return 0; }

}
