"""The rates of this machine's cores: operations of products in registers, by vectors and on a
matrix unit, and bytes that a copy moves, each on some threads at once."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from taso_mirage.devices.machine import has_matrix_unit
from taso_mirage.emit.cpu.native_kernel import NATIVE, build
from taso_mirage.emit.cpu.prepared import header

ROUNDS, COPIED = 5, 1 << 28
PARTS = 6
"""The products of bfloat16 that a product in single precision takes (`emit/cpu/tile_linear.h`)."""
SOURCE = """
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
LANES_H
#if defined(__AMX_BF16__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
// Seconds in which all threads have run f(thread).
template <class F> double seconds(size_t threads, F f) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> all;
  for (size_t i = 1; i < threads; ++i) all.emplace_back(f, i);
  f(0);
  for (auto& each : all) each.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
// Operations a second of products by vectors, with all sums in registers.
extern "C" double vectors(size_t threads) {
  constexpr size_t SUMS = 12, TURNS = 1 << 24;
  const double taken = seconds(threads, [](size_t i) {
    lanes_t a = lanes_t{} + 0.5f / static_cast<float>(i + 1), b = lanes_t{} + 1e-3f, sums[SUMS] = {};
    for (lanes_t& each : sums) asm volatile("" : "+x"(each));
    for (size_t turn = 0; turn < TURNS; ++turn) {
      asm volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
      for (size_t s = 0; s < SUMS; ++s) sums[s] = sums[s] * a + b;
    }
    for (lanes_t& each : sums) asm volatile("" : : "x"(each));
  });
  return 2.0 * LANES * SUMS * TURNS * static_cast<double>(threads) / taken;
}
// Operations a second of products of bfloat16 on a matrix unit, of numbers that are not zero; 0 where there is none.
extern "C" double tiles(size_t threads) {
#if defined(__AMX_BF16__) && defined(__linux__)
  if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) return 0;
  constexpr size_t TURNS = 1 << 19;
  const double taken = seconds(threads, [](size_t thread) {
    struct {
      uint8_t palette = 1, rest[15] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    for (size_t i = 0; i < 8; ++i) shapes.bytes[i] = 64, shapes.rows[i] = 16;
    alignas(64) uint16_t numbers[4][512];
    for (size_t i = 0; i < 2048; ++i) numbers[i / 512][i % 512] = static_cast<uint16_t>(0x3f00 + i * 37 % 251 + thread);
    asm volatile("" : : "r"(&shapes), "r"(numbers) : "memory");
    _tile_loadconfig(&shapes);
    for (size_t turn = 0; turn < TURNS; ++turn) {
      _tile_loadd(4, numbers[0], 64);
      _tile_loadd(5, numbers[1], 64);
      _tile_loadd(6, numbers[2], 64);
      _tile_loadd(7, numbers[3], 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
  });
  return 4.0 * 2 * 16 * 16 * 32 * TURNS * static_cast<double>(threads) / taken;
#else
  return static_cast<double>(threads - threads);
#endif
}
// Bytes a second that a copy reads and writes.
extern "C" double copied(size_t threads, char* to, const char* from, size_t bytes) {
  const size_t share = bytes / threads;
  return 2.0 * static_cast<double>(bytes) / seconds(threads, [=](size_t i) { std::memcpy(to + i * share, from + i * share, share); });
}
"""


@dataclass(frozen=True, slots=True)
class Rates:
    """Operations a second in single precision by vectors, and on a matrix unit (0 where there is
    none), and bytes a second."""

    vectors: float
    tiles: float
    bandwidth: float

    @property
    def flops(self) -> float:
        """The larger rate."""
        return max(self.vectors, self.tiles)


def rates(threads: int) -> Rates:
    """The best of some rounds."""
    library = ctypes.CDLL(str(build(SOURCE.replace("LANES_H", header("lanes.h")), None, (*NATIVE, "-pthread"))))
    for each in (library.vectors, library.tiles, library.copied):
        each.restype = ctypes.c_double
    count = ctypes.c_size_t(threads)
    there, to = (ctypes.create_string_buffer(COPIED) for _ in range(2))
    vectors = max(library.vectors(count) for _ in range(ROUNDS))
    tiles = max(library.tiles(count) for _ in range(ROUNDS)) if has_matrix_unit() else 0.0
    bandwidth = max(library.copied(count, to, there, ctypes.c_size_t(COPIED)) for _ in range(ROUNDS))
    return Rates(vectors, tiles / PARTS, bandwidth)
