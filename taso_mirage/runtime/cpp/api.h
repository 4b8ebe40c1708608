// ONNX Runtime's functions, as this library calls them, and the operators that it gives.
#pragma once
#include <exception>
#include <string>

#include "ort.h"
#include "plan.h"

constexpr size_t ROOM = size_t{1} << 30;  // bytes of an attribute

extern const ort::Api* api;  // set when the library is registered

// A Problem with the runtime's own message.
inline void succeed(ort::Status status) {
  if (status == nullptr) return;
  const auto message = api->at<const char*(const OrtStatus*)>(2);
  const std::string text = message(status);
  api->ReleaseStatus(status);
  throw plan::Problem(text);
}

// A text that the runtime gives when it is asked twice, for the size and then for the text; empty where it has none, or a longer one than ROOM.
template <class Ask>
std::string text(const Ask& ask) {
  size_t size = 0;
  if (const ort::Status status = ask(nullptr, &size); status != nullptr) api->ReleaseStatus(status);
  std::string found(size > ROOM ? 0 : size, '\0');
  if (!found.empty()) succeed(ask(found.data(), &size));
  if (!found.empty() && found.back() == '\0') found.pop_back();
  return found;
}

struct Op : OrtCustomOp {
  char name[24];
  const char* provider;
};

// Every entry from the runtime returns through here: nothing may throw across it.
template <class Work>
ort::Status guarded(const std::string& who, const Work& work) noexcept {
  try {
    try {
      work();
      return nullptr;
    } catch (const std::exception& error) {
      return api->CreateStatus(ort::FAIL, (who + ": " + error.what()).c_str());
    }
  } catch (...) {
    return api->CreateStatus(ort::FAIL, "taso_mirage: out of memory");
  }
}

// InferOutputShapeFn: the types of the outputs, from the plan and the types of the inputs.
ort::Status infer(const OrtCustomOp* op, OrtShapeInferContext* context);
