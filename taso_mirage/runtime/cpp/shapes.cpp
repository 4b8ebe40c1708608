// Types and shapes of a node's outputs while a session is made: named sizes stay named.
#include <map>
#include <memory>
#include <vector>

#include "api.h"

namespace {

using plan::Plan;
using plan::Problem;

std::string attribute(const OrtShapeInferContext* context, const char* name) {
  const OrtOpAttr* given = nullptr;
  ort::Status status = api->ShapeInferContext_GetAttribute(context, name, &given);
  if (status != nullptr || given == nullptr) {
    if (status != nullptr) api->ReleaseStatus(status);
    throw Problem(std::string("it has no attribute '") + name + "'; optimize the model again");
  }
  std::string found = text([&](char* to, size_t* size) { return api->ReadOpAttr(given, ort::STRING, to, *size, size); });
  if (found.empty()) throw Problem(std::string("its attribute '") + name + "' is no text, or empty");
  return found;
}

struct Symbols {
  plan::Sizes sizes;
  std::map<std::string, std::string> texts;  // what the model calls a size that is not known
};

// What the types of the inputs say of the named sizes.
Symbols symbols(const Plan& plan, const OrtShapeInferContext* context) {
  Symbols found;
  size_t count = 0;
  succeed(api->ShapeInferContext_GetInputCount(context, &count));
  for (size_t i = 0; i < count && i < plan.inputs.size(); ++i) {
    ort::Info* info = nullptr;
    size_t rank = 0;
    succeed(api->ShapeInferContext_GetInputTypeShape(context, i, &info));
    succeed(api->GetDimensionsCount(info, &rank));
    if (rank != plan.inputs[i].dims.size()) continue;
    std::vector<int64_t> dims(rank);
    std::vector<const char*> names(rank);
    succeed(api->GetDimensions(info, dims.data(), rank));
    succeed(api->GetSymbolicDimensions(info, names.data(), rank));
    for (size_t d = 0; d < rank; ++d) {
      const plan::Expression& dim = plan.inputs[i].dims[d];
      if (!dim.name()) continue;
      if (dims[d] > 0)
        found.sizes.emplace(dim.text(), dims[d]);
      else if (names[d] != nullptr && names[d][0] != '\0')
        found.texts.emplace(dim.text(), names[d]);
    }
  }
  return found;
}

int64_t known(const plan::Expression& dim, const plan::Sizes& sizes) {
  try {
    return dim.value(sizes);
  } catch (const Problem&) {
    return -1;
  }
}

void set_output(OrtShapeInferContext* context, size_t i, const plan::Type& type, const Symbols& given) {
  std::vector<int64_t> dims;
  std::vector<const char*> names;
  for (const plan::Expression& dim : type.dims) {
    dims.push_back(known(dim, given.sizes));
    const auto text = given.texts.find(dim.text());
    names.push_back(dims.back() < 0 && text != given.texts.end() ? text->second.c_str() : "");
  }
  ort::Info* made = nullptr;
  succeed(api->CreateTensorTypeAndShapeInfo(&made));
  const std::unique_ptr<ort::Info, void (*)(ort::Info*)> info(made, api->ReleaseTensorTypeAndShapeInfo);
  succeed(api->SetTensorElementType(made, type.element));
  succeed(api->SetDimensions(made, dims.data(), dims.size()));
  succeed(api->SetSymbolicDimensions(made, names.data(), names.size()));
  succeed(api->ShapeInferContext_SetOutputTypeShape(context, i, made));
}

// The runtime drops what is wrong here and says only that types are missing: with a damaged plan the first output is taken to be as the first
// input, so that the session comes to where the kernel is created, which says it.
void guess(OrtShapeInferContext* context) {
  ort::Info* first = nullptr;
  succeed(api->ShapeInferContext_GetInputTypeShape(context, 0, &first));
  succeed(api->ShapeInferContext_SetOutputTypeShape(context, 0, first));
}

}  // namespace

ort::Status infer(const OrtCustomOp* base, OrtShapeInferContext* context) {
  return guarded(std::string("a node taso_mirage.") + static_cast<const Op*>(base)->name, [&] {
    try {
      const Plan plan = plan::parse(attribute(context, "plan"));
      const Symbols given = symbols(plan, context);
      for (size_t i = 0; i < plan.outputs.size(); ++i) set_output(context, i, plan.outputs[i], given);
    } catch (const Problem&) {
      guess(context);
    }
  });
}
