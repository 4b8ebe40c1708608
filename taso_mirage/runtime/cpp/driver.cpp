#include "driver.h"

namespace cuda {

using plan::Problem;

template <class Function>
static void find(void* library, const char* name, Function*& place, bool needed = true) {
  place = reinterpret_cast<Function*>(dlsym(library, name));
  if (place == nullptr && needed) throw Problem(std::string("the CUDA driver has no ") + name + "; update the driver");
}

const Driver& driver() {
  static const Driver found = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw Problem(std::string("there is no CUDA driver: ") + dlerror());
    Driver made{};
    find(library, "cuCtxGetCurrent", made.CtxGetCurrent);
    find(library, "cuCtxSetCurrent", made.CtxSetCurrent);
    find(library, "cuCtxGetDevice", made.CtxGetDevice);
    find(library, "cuDeviceGetAttribute", made.DeviceGetAttribute);
    find(library, "cuModuleLoadData", made.ModuleLoadData);
    find(library, "cuModuleUnload", made.ModuleUnload);
    find(library, "cuModuleGetFunction", made.ModuleGetFunction);
    find(library, "cuFuncGetAttribute", made.FuncGetAttribute);
    find(library, "cuFuncSetAttribute", made.FuncSetAttribute);
    find(library, "cuLaunchKernel", made.LaunchKernel);
    find(library, "cuStreamCreate", made.StreamCreate);
    find(library, "cuStreamDestroy_v2", made.StreamDestroy);
    find(library, "cuStreamWaitEvent", made.StreamWaitEvent);
    find(library, "cuEventCreate", made.EventCreate);
    find(library, "cuEventRecord", made.EventRecord);
    find(library, "cuEventDestroy_v2", made.EventDestroy);
    find(library, "cuGetErrorString", made.GetErrorString);
    find(library, "cuLaunchKernelEx", made.LaunchKernelEx, false);
    find(library, "cuFuncGetParamInfo", made.FuncGetParamInfo, false);
    find(library, "cuFuncLoad", made.FuncLoad, false);
    find(library, "cuCtxGetId", made.CtxGetId, false);
    find(library, "cuTensorMapEncodeTiled", made.TensorMapEncodeTiled, false);
    return made;
  }();
  return found;
}

void succeed(Result result, const std::string& what) {
  if (result == 0) return;
  const char* text = nullptr;
  driver().GetErrorString(result, &text);
  throw Problem(what + ": CUDA error " + std::to_string(result) + ", " + (text == nullptr ? "unknown" : text));
}

}  // namespace cuda
