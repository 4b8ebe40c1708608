#include "cpu.h"

#include <dlfcn.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <algorithm>
#include <mutex>
#include <vector>

namespace cpu {
namespace {

std::mutex mutex;
std::vector<void*>& libraries = *new std::vector<void*>;  // never closed, nor destroyed: sessions may use them

#ifdef __x86_64__
// What the processor has and the system saves: compilers' own tables are not filled everywhere.
bool supported(const std::string& feature) {
  if (feature == "x86-64") return true;
  unsigned a = 0, b = 0, c = 0, d = 0, features = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return false;
  const bool fma = c >> 12 & 1;
  if (!__get_cpuid_count(7, 0, &a, &features, &c, &d)) return false;
  unsigned more = 0, others = 0;
  const bool vnni = a >= 1 && __get_cpuid_count(7, 1, &more, &b, &others, &d) && (more >> 4 & 1);
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  const bool wide = (low & 6) == 6, widest = (low & 0xe6) == 0xe6;
  if (feature == "fma") return wide && fma;
  if (feature == "avx2") return wide && (features >> 5 & 1);
  if (feature == "avx512f") return widest && (features >> 16 & 1);
  if (feature == "avx512dq") return widest && (features >> 17 & 1);
  if (feature == "avx512bw") return widest && (features >> 30 & 1);
  if (feature == "avx512vnni") return widest && (c >> 11 & 1);
  if (feature == "avxvnni") return wide && vnni;
  if (feature == "avx512vl") return widest && (features >> 31 & 1);
  return false;
}
#else
bool supported(const std::string& feature) {
#ifdef __aarch64__
  return feature == "aarch64";
#else
  return feature.empty();
#endif
}
#endif

void check(const std::string& path, const std::string& features) {
  const size_t end = std::min(features.find(' '), features.size());
  if (features.substr(0, end) != "3")
    throw plan::Problem(path + " has kernels of version " + features.substr(0, end) + ", this library reads 3; build both with the same taso-mirage");
  for (size_t at = end + 1; at < features.size();) {
    const size_t stop = std::min(features.find(' ', at), features.size());
    const std::string feature = features.substr(at, stop - at);
    if (!supported(feature)) throw plan::Problem(path + " was built for a processor with " + feature + ", which this machine has not; build it here");
    at = stop + 1;
  }
}

}  // namespace

void open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw plan::Problem("the kernels in " + path + " cannot be loaded: " + dlerror());
  const void* features = dlsym(library, "taso_mirage_features");
  if (features == nullptr) throw plan::Problem(path + " is no library of taso_mirage's kernels; build it with taso_mirage.runtime.build_kernels");
  check(path, static_cast<const char*>(features));
  const std::lock_guard<std::mutex> lock(mutex);
  for (const void* each : libraries)
    if (each == library) return;
  libraries.push_back(library);
}

Function find(const plan::Plan& plan) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (void* library : libraries) {
    void* entry = dlsym(library, plan.entry.c_str());
    void* scratch = dlsym(library, (plan.entry + "_scratch").c_str());
    void* types = dlsym(library, (plan.entry + "_types").c_str());
    if (entry == nullptr || scratch == nullptr || types == nullptr) continue;
    const auto* prepared = static_cast<const size_t*>(dlsym(library, (plan.entry + "_prepared").c_str()));
    const std::string wanted = static_cast<const char*>(types), said = plan.signature() + (prepared == nullptr ? "" : " prepared") + (plan.names.empty() ? "" : " sizes");
    if (wanted != said) throw plan::Problem("the compiled kernel " + plan.entry + " computes " + wanted + " the plan says " + said + " it was changed");
    Function found = {reinterpret_cast<Entry>(entry), 0, nullptr, nullptr, 0, {}};
    if (plan.names.empty()) found.scratch = reinterpret_cast<size_t (*)()>(scratch)();
    else found.room = reinterpret_cast<Room>(scratch);
    found.prepare = reinterpret_cast<Prepare>(dlsym(library, (plan.entry + "_prepare").c_str()));
    if (prepared != nullptr && prepared[1] <= plan.inputs.size()) found.prepared = prepared[0], found.weights.assign(prepared + 2, prepared + 2 + prepared[1]);
    const bool all = std::all_of(found.weights.begin(), found.weights.end(), [&](size_t i) { return i < plan.inputs.size(); });
    if ((prepared == nullptr) != (found.prepare == nullptr) || found.weights.empty() != (prepared == nullptr) || !all)
      throw plan::Problem("the compiled kernel " + plan.entry + " is damaged; optimize the model again");
    return found;
  }
  throw plan::Problem("the kernel " + plan.entry + " is not compiled; call taso_mirage.register(session_options, model), or load the model without"
                      " this library: it then runs by its functions");
}

}  // namespace cpu
