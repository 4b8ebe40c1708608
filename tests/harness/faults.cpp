// Calls that change files fail at the k-th of them, as on a full or a broken disk; loaded before the C library by tests/system/test_faults.py.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>
#include <unistd.h>

static long seen = 0, first = 0;
static int error = 0;
static bool lasting = false;

// Let the `k`-th call from now on fail with `code`; if it lasts, every one after it, too. 0: none.
extern "C" void arm(long k, int code, int lasts) {
  seen = 0;
  first = k;
  error = code;
  lasting = lasts != 0;
}

extern "C" long calls() { return seen; }

static bool fails() {
  if (first == 0) return false;
  ++seen;
  if (seen != first && !(lasting && seen > first)) return false;
  errno = error;
  return true;
}

template <class F>
static F next(const char* name) { return reinterpret_cast<F>(dlsym(RTLD_NEXT, name)); }

#define WITHOUT_A_MODE(name, parameters, arguments)                          \
  extern "C" int name parameters {                                          \
    static auto original = next<int(*) parameters>(#name);                  \
    return fails() ? -1 : original arguments;                               \
  }

WITHOUT_A_MODE(fsync, (int file), (file))
WITHOUT_A_MODE(fdatasync, (int file), (file))
WITHOUT_A_MODE(ftruncate64, (int file, off64_t size), (file, size))
WITHOUT_A_MODE(rename, (const char* from, const char* to), (from, to))
WITHOUT_A_MODE(mkdir, (const char* path, mode_t mode), (path, mode))

extern "C" ssize_t write(int file, const void* data, size_t size) {
  static auto original = next<ssize_t (*)(int, const void*, size_t)>("write");
  return file != 2 && fails() ? -1 : original(file, data, size);
}

extern "C" ssize_t pwrite64(int file, const void* data, size_t size, off64_t place) {
  static auto original = next<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  return fails() ? -1 : original(file, data, size, place);
}

extern "C" int open64(const char* path, int flags, ...) {
  static auto original = next<int (*)(const char*, int, ...)>("open64");
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return (flags & (O_WRONLY | O_RDWR)) != 0 && fails() ? -1 : original(path, flags, mode);
}
