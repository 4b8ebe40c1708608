// What the library needs of ONNX Runtime's C interface, whose table of functions is append-only: the places of those that are called, as they
// have been since version 18 of the interface (ONNX Runtime 1.18). No header of ONNX Runtime is needed.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtStatus;
struct OrtApi;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtShapeInferContext;
struct OrtOpAttr;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtAllocator;
struct OrtMemoryInfo;

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

// Enumerations have the size of an int; `Element` are ONNX's element types.
using Element = int;

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  Element (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  Element (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};

}  // extern "C"

namespace ort {

constexpr uint32_t VERSION = 18;
constexpr int FAIL = 1;           // an error code
constexpr int VARIADIC = 2;        // of a characteristic
constexpr int STRING = 5;          // of an attribute
constexpr int DEFAULT_MEMORY = 0;

using Status = OrtStatus*;
using Info = OrtTensorTypeAndShapeInfo;

// The functions by their places in the table.
struct Api {
  explicit Api(const OrtApi* api) : table(reinterpret_cast<void* const*>(api)) {}

  template <class Function>
  Function* at(size_t place) const {
    return reinterpret_cast<Function*>(table[place]);
  }

  void* const* table;
  Status (*CreateStatus)(int, const char*) = at<Status(int, const char*)>(0);
  Status (*CreateCustomOpDomain)(const char*, OrtCustomOpDomain**) = at<Status(const char*, OrtCustomOpDomain**)>(26);
  Status (*CustomOpDomain_Add)(OrtCustomOpDomain*, const OrtCustomOp*) = at<Status(OrtCustomOpDomain*, const OrtCustomOp*)>(27);
  Status (*AddCustomOpDomain)(OrtSessionOptions*, OrtCustomOpDomain*) = at<Status(OrtSessionOptions*, OrtCustomOpDomain*)>(28);
  Status (*GetTensorMutableData)(OrtValue*, void**) = at<Status(OrtValue*, void**)>(51);
  Status (*CreateTensorTypeAndShapeInfo)(Info**) = at<Status(Info**)>(57);
  Status (*SetTensorElementType)(Info*, Element) = at<Status(Info*, Element)>(58);
  Status (*SetDimensions)(Info*, const int64_t*, size_t) = at<Status(Info*, const int64_t*, size_t)>(59);
  Status (*GetTensorElementType)(const Info*, Element*) = at<Status(const Info*, Element*)>(60);
  Status (*GetDimensionsCount)(const Info*, size_t*) = at<Status(const Info*, size_t*)>(61);
  Status (*GetDimensions)(const Info*, int64_t*, size_t) = at<Status(const Info*, int64_t*, size_t)>(62);
  Status (*GetSymbolicDimensions)(const Info*, const char**, size_t) = at<Status(const Info*, const char**, size_t)>(63);
  Status (*GetTensorTypeAndShape)(const OrtValue*, Info**) = at<Status(const OrtValue*, Info**)>(65);
  Status (*AllocatorAlloc)(OrtAllocator*, size_t, void**) = at<Status(OrtAllocator*, size_t, void**)>(75);
  Status (*AllocatorFree)(OrtAllocator*, void*) = at<Status(OrtAllocator*, void*)>(76);
  Status (*AllocatorGetInfo)(const OrtAllocator*, const OrtMemoryInfo**) = at<Status(const OrtAllocator*, const OrtMemoryInfo**)>(77);
  Status (*KernelInfoGetAttribute_string)(const OrtKernelInfo*, const char*, char*, size_t*) =
      at<Status(const OrtKernelInfo*, const char*, char*, size_t*)>(87);
  Status (*KernelContext_GetInputCount)(const OrtKernelContext*, size_t*) = at<Status(const OrtKernelContext*, size_t*)>(88);
  Status (*KernelContext_GetOutputCount)(const OrtKernelContext*, size_t*) = at<Status(const OrtKernelContext*, size_t*)>(89);
  Status (*KernelContext_GetInput)(const OrtKernelContext*, size_t, const OrtValue**) =
      at<Status(const OrtKernelContext*, size_t, const OrtValue**)>(90);
  Status (*KernelContext_GetOutput)(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**) =
      at<Status(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**)>(91);
  void (*ReleaseStatus)(Status) = at<void(Status)>(93);
  void (*ReleaseTensorTypeAndShapeInfo)(Info*) = at<void(Info*)>(99);
  void (*ReleaseAllocator)(OrtAllocator*) = at<void(OrtAllocator*)>(132);
  Status (*KernelContext_GetGPUComputeStream)(const OrtKernelContext*, void**) = at<Status(const OrtKernelContext*, void**)>(193);
  Status (*HasSessionConfigEntry)(const OrtSessionOptions*, const char*, int*) = at<Status(const OrtSessionOptions*, const char*, int*)>(237);
  Status (*GetSessionConfigEntry)(const OrtSessionOptions*, const char*, char*, size_t*) =
      at<Status(const OrtSessionOptions*, const char*, char*, size_t*)>(238);
  Status (*KernelInfo_GetNodeName)(const OrtKernelInfo*, char*, size_t*) = at<Status(const OrtKernelInfo*, char*, size_t*)>(244);
  Status (*KernelInfoGetConstantInput_tensor)(const OrtKernelInfo*, size_t, int*, const OrtValue**) =
      at<Status(const OrtKernelInfo*, size_t, int*, const OrtValue**)>(249);
  Status (*ShapeInferContext_GetInputCount)(const OrtShapeInferContext*, size_t*) = at<Status(const OrtShapeInferContext*, size_t*)>(267);
  Status (*ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext*, size_t, Info**) =
      at<Status(const OrtShapeInferContext*, size_t, Info**)>(268);
  Status (*ShapeInferContext_GetAttribute)(const OrtShapeInferContext*, const char*, const OrtOpAttr**) =
      at<Status(const OrtShapeInferContext*, const char*, const OrtOpAttr**)>(269);
  Status (*ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext*, size_t, const Info*) =
      at<Status(const OrtShapeInferContext*, size_t, const Info*)>(270);
  Status (*SetSymbolicDimensions)(Info*, const char**, size_t) = at<Status(Info*, const char**, size_t)>(271);
  Status (*ReadOpAttr)(const OrtOpAttr*, int, void*, size_t, size_t*) = at<Status(const OrtOpAttr*, int, void*, size_t, size_t*)>(272);
  Status (*KernelContext_ParallelFor)(const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*) =
      at<Status(const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*)>(274);
  Status (*KernelContext_GetScratchBuffer)(const OrtKernelContext*, const OrtMemoryInfo*, size_t, void**) =
      at<Status(const OrtKernelContext*, const OrtMemoryInfo*, size_t, void**)>(277);
  Status (*KernelInfoGetAllocator)(const OrtKernelInfo*, int, OrtAllocator**) = at<Status(const OrtKernelInfo*, int, OrtAllocator**)>(278);
};

}  // namespace ort
