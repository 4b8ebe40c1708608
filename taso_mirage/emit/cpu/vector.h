// Elementary functions that a compiler vectorises, and blocks of dot products. No branches, no library calls, no intrinsics.
// Largest errors in fp32 against float64, over all magnitudes (tests/test_codegen_cpp.py): exponential 2 ulp, tangent and
// error_function 3 ulp, logarithm and logarithm_of_1p 2 ulp. exponential(x) is 0 below -87 (-inf too) and inf above 88.73; NaN stays
// NaN.
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512")  // g++ would take half of a register in its own vectors
#endif
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace {

using std::size_t;

[[maybe_unused]] inline float maximum(float a, float b) { return a > b || a != a ? a : b; }
[[maybe_unused]] inline float minimum(float a, float b) { return a < b || a != a ? a : b; }

// e^x = 2^n e^r with |r| <= ln(2)/2, for x within -87 and 89. Adding 1.5 * 2^23 rounds to an integer, which is then in the low
// bits; the polynomial is twice that of e^r, so that 2^(n-1) is enough, which is finite where e^x is.
[[maybe_unused]] inline float exponential_within(float x) {
  const float magic = 12582912.0f;
  const float shifted = x * 1.44269504f + magic;
  const float n = shifted - magic;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 2.0f * 1.381418865e-3f;
  p = p * r + 2.0f * 8.368913896e-3f;
  p = p * r + 2.0f * 4.166840723e-2f;
  p = p * r + 2.0f * 1.666651900e-1f;
  p = p * r + 2.0f * 4.999999334e-1f;
  p = p * r + 2.0f;
  p = p * r + 2.0f;
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + (126u << 23);
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return p * scale;
}

// e^x for every x. Where x is below -87 what is computed has no meaning, and 0 is taken instead.
[[maybe_unused]] inline float exponential(float x) {
  const float e = exponential_within(x > 89.0f ? 89.0f : x);
  return x < -87.0f ? 0.0f : e;
}

// ln x = n ln(2) + ln(1 + f) with 1 + f between sqrt(1/2) and sqrt(2): the difference of the bits of x and of sqrt(1/2) has n in its
// upper bits. Subnormal x are scaled by 2^23 first.
[[maybe_unused]] inline float logarithm(float x) {
  const bool small = x < 1.17549435e-38f;
  const float scaled = small ? x * 8388608.0f : x;
  int32_t bits;
  std::memcpy(&bits, &scaled, sizeof bits);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;
  bits -= exponent * (1 << 23);
  float f;
  std::memcpy(&f, &bits, sizeof f);
  f -= 1.0f;
  const float n = static_cast<float>(exponent) - (small ? 23.0f : 0.0f);
  float p = 6.746640089e-02f;
  p = p * f + -1.167565171e-01f;
  p = p * f + 1.188816240e-01f;
  p = p * f + -1.240558895e-01f;
  p = p * f + 1.421955235e-01f;
  p = p * f + -1.666799585e-01f;
  p = p * f + 2.000211866e-01f;
  p = p * f + -2.500000960e-01f;
  p = p * f + 3.333331260e-01f;
  const float s = f * f;
  const float made = n * 0.693359375f + (f + (s * f * p + n * -2.12194440e-4f - 0.5f * s));
  return x > 0.0f ? (x < INFINITY ? made : x) : (x < 0.0f || x != x ? NAN : -INFINITY);
}

// ln(1 + x) with the digits that 1 + x loses.
[[maybe_unused]] inline float logarithm_of_1p(float x) {
  const float u = 1.0f + x;
  const float lost = x - (u - 1.0f);
  return logarithm(u) + (u > 0.0f && u < INFINITY ? lost / u : 0.0f);
}

// A polynomial near 0, where 1 - 2 / (e^2x + 1) would lose its digits.
[[maybe_unused]] inline float tangent(float x) {
  const float t = std::fabs(x);
  const float s = x * x;
  float p = -5.717036548e-3f;
  p = p * s + 2.065057899e-2f;
  p = p * s + -5.374349526e-2f;
  p = p * s + 1.333149125e-1f;
  p = p * s + -3.333328392e-1f;
  const float near = p * s * x + x;
  const float far = std::copysign(1.0f - 2.0f / (exponential_within(t > 10.0f ? 20.0f : 2.0f * t) + 1.0f), x);
  return t < 0.625f ? near : far;
}

// A polynomial near 0, else 1 - e^p, where p is a polynomial for ln(erfc |x|); from 4 on it is 1.
[[maybe_unused]] inline float error_function(float x) {
  const float a = std::fabs(x);
  const float t = a > 4.0f ? 4.0f : a;
  const float s = t * t;
  float p = -5.976893799e-4f;
  p = p * s + 4.990980253e-3f;
  p = p * s + -2.676556700e-2f;
  p = p * s + 1.128180277e-1f;
  p = p * s + -3.761249432e-1f;
  p = p * s + 1.128379150f;
  float q = -2.116190651e-5f;
  q = q * t + 4.352188861e-4f;
  q = q * t + -4.174643021e-3f;
  q = q * t + 2.512862459e-2f;
  q = q * t + -1.082939466e-1f;
  q = q * t + -6.333346530e-1f;
  q = q * t + -1.129520823f;
  q = q * t + 1.758745629e-4f;
  const float far = std::copysign(1.0f - exponential_within(q), x);
  return a < 0.92f ? p * x : far;
}

#if defined(__AVX512F__)
constexpr size_t WIDTH = 16;
#elif defined(__AVX__)
constexpr size_t WIDTH = 8;
#else
constexpr size_t WIDTH = 4;
#endif
typedef float vec __attribute__((vector_size(4 * WIDTH)));

[[maybe_unused]] inline vec load(const float* p) {
  vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
inline vec load(const T* p) {
  vec v;
  for (size_t i = 0; i < WIDTH; ++i) v[i] = static_cast<float>(p[i]);
  return v;
}

// Keeps a vector that several products read in a register: g++ would read it from memory for each of them, which is 1.7 times slower.
template <size_t USES>
inline void hold(vec& v) {
  if constexpr (USES > 1) {
#if defined(__AVX512F__)
    asm("" : "+v"(v));
#elif defined(__AVX__)
    asm("" : "+x"(v));
#endif
  }
  (void)v;
}

[[maybe_unused]] inline void store(float* p, const vec& v) { std::memcpy(p, &v, sizeof v); }

// Ask for N elements, which are read later.
template <size_t N>
[[maybe_unused]] inline void ahead(const float* p) {
  for (size_t i = 0; i < N; i += 16) __builtin_prefetch(p + i);
}

#if defined(__GNUC__) && !defined(__clang__)
typedef int32_t places __attribute__((vector_size(4 * WIDTH)));

// Where the lower and the upper halves of groups of 2 * HALF elements lie in two vectors side by side.
template <size_t HALF>
struct Halves {
  int32_t low[WIDTH] = {}, high[WIDTH] = {};
  constexpr Halves() {
    for (size_t i = 0; i < WIDTH; ++i) {
      const size_t at = i % (2 * HALF), first = i - at;
      low[i] = static_cast<int32_t>(at < HALF ? first + at : WIDTH + first + at - HALF);
      high[i] = low[i] + static_cast<int32_t>(HALF);
    }
  }
};
template <size_t HALF>
constexpr Halves<HALF> halves;

// Two vectors at a time become one that has half sums of both, until each sum is one element, or several equal ones.
template <size_t HALF, size_t LEFT>
inline void merge(vec* s) {
  places low, high;
  std::memcpy(&low, halves<HALF>.low, sizeof low);
  std::memcpy(&high, halves<HALF>.high, sizeof high);
#pragma GCC unroll 8
  for (size_t i = 0; i < (LEFT + 1) / 2; ++i) {
    const vec x = s[LEFT > 1 ? 2 * i : i], y = s[LEFT > 1 ? 2 * i + 1 : i];
    s[i] = __builtin_shuffle(x, y, low) + __builtin_shuffle(x, y, high);
  }
  if constexpr (HALF > 1) merge<HALF / 2, (LEFT + 1) / 2>(s);
}
#endif

// c[i / Q][i % Q] += the sum of s[i]'s elements, for 8 vectors; merged ones are in the order of their indices' bits reversed.
template <size_t Q>
inline void totals(vec (&s)[8], float* c, size_t cm, size_t cn) {
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX__)
  merge<WIDTH / 2, 8>(s);
#pragma GCC unroll 8
  for (size_t i = 0; i < 8; ++i) {
    const size_t place = (i & 1) * 4 + (i & 2) + (i & 4) / 4;
    c[i / Q * cm + i % Q * cn] += s[0][place * (WIDTH / 8)];
  }
#else
  for (size_t i = 0; i < 8; ++i)
    for (size_t j = 0; j < WIDTH; ++j) c[i / Q * cm + i % Q * cn] += s[i][j];
#endif
}

// A size is a constant where the compiler knows it, else a number.
template <size_t N>
using constant = std::integral_constant<size_t, N>;
template <class Count>
struct known : std::false_type {};
template <size_t N>
struct known<constant<N>> : std::true_type {};

// What groups of EACH leave of n, in groups of IN, rounded up.
template <size_t EACH, size_t IN = 1, class Count>
constexpr auto rest(Count n) {
  if constexpr (known<Count>::value) return constant<(Count::value % EACH + IN - 1) / IN>();
  else return (n % EACH + IN - 1) / IN;
}

// A size if it is known, else what it is at most.
template <class Count>
constexpr size_t most(size_t limit) {
  if constexpr (known<Count>::value) return Count::value;
  else return limit;
}

// Whether some sizes are known, but not all: code for such mixtures is no faster than that for numbers, or half as fast.
template <class... Counts>
constexpr bool mixed = (known<Counts>::value || ...) && !(known<Counts>::value && ...);

// f(constant<n>()) for n of 1 to MOST; nothing for 0.
template <size_t MOST, class Count, class F>
inline void with_constant(Count n, F f) {
  if constexpr (known<Count>::value && most<Count>(0) > 0) f(n);
  else if constexpr (!known<Count>::value && MOST > 0) {
    if (n == MOST) f(constant<MOST>());
    else with_constant<MOST - 1>(n, f);
  }
}

// c[R][V vectors] += sum over k of a[R][k] * b[k][V vectors], with all of c in registers. AHEAD: what stands behind these vectors of b
// is fetched, for it comes next; from memory that takes a quarter less, from a cache 2 % more. A multiply-add waits for the one before
// in its register, so few results have several sums each.
template <size_t R, size_t V, bool AHEAD, class Depth, class A, class B>
inline void columns_block(Depth K, const A* a, size_t am, size_t ak, const B* b, size_t bk, float* c, size_t cm) {
  constexpr size_t SUMS = R * V < 8 ? 8 / (R * V) : 1;
  vec s[SUMS][R][V] = {};
  const auto add = [&](size_t k, vec (&s)[R][V]) {
    vec x[V];
#pragma GCC unroll 8
    for (size_t v = 0; v < V; ++v) {
      x[v] = load(b + k * bk + v * WIDTH);
      if constexpr (AHEAD) __builtin_prefetch(b + k * bk + (V + v) * WIDTH);
      hold<R>(x[v]);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r) {
      const float f = static_cast<float>(a[r * am + k * ak]);
#pragma GCC unroll 8
      for (size_t v = 0; v < V; ++v) s[r][v] += x[v] * f;
    }
  };
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (size_t v = 0; v < V; ++v) s[0][r][v] = load(c + r * cm + v * WIDTH);
  size_t k = 0;
  for (; k + SUMS <= K; k += SUMS)
#pragma GCC unroll 8
    for (size_t i = 0; i < SUMS; ++i) add(k + i, s[i]);
  if (rest<SUMS>(K) > 0)
    for (; k < K; ++k) add(k, s[0]);
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (size_t v = 0; v < V; ++v) {
#pragma GCC unroll 8
      for (size_t i = 1; i < SUMS; ++i) s[0][r][v] += s[i][r][v];
      store(c + r * cm + v * WIDTH, s[0][r][v]);
    }
}

template <size_t R, bool AHEAD, class Columns, class Depth, class A, class B>
inline void columns_rows(Columns N, Depth K, const A* a, size_t am, size_t ak, const B* b, size_t bk, float* c, size_t cm) {
  constexpr size_t V = R >= 4 ? 4 : 8;
  size_t n = 0;
  for (; n + V * WIDTH <= N; n += V * WIDTH) columns_block<R, V, AHEAD>(K, a, am, ak, b + n, bk, c + n, cm);
  if (rest<V * WIDTH>(N) >= 2 * WIDTH)
    for (; n + 2 * WIDTH <= N; n += 2 * WIDTH) columns_block<R, 2, AHEAD>(K, a, am, ak, b + n, bk, c + n, cm);
  if (rest<2 * WIDTH>(N) >= WIDTH)
    for (; n + WIDTH <= N; n += WIDTH) columns_block<R, 1, AHEAD>(K, a, am, ak, b + n, bk, c + n, cm);
  if (rest<WIDTH>(N) > 0)
    for (size_t r = 0; r < R; ++r)
      for (size_t k = 0; k < K; ++k)
        for (size_t i = n; i < N; ++i)
          c[r * cm + i] += static_cast<float>(a[r * am + k * ak]) * static_cast<float>(b[k * bk + i]);
}

// c[M][N] += sum over k of a[M][k] * b[k][N]; the columns lie side by side in b and in c. b is read once for each 6 rows.
template <bool AHEAD = false, class Rows, class Columns, class Depth, class A, class B>
[[maybe_unused]] inline void columns_of(Rows M, Columns N, Depth K, const A* __restrict a, size_t am, size_t ak,
                                        const B* __restrict b, size_t bk, float* __restrict c, size_t cm) {
  if constexpr (mixed<Rows, Columns, Depth>) return columns_of<AHEAD>(size_t{M}, size_t{N}, size_t{K}, a, am, ak, b, bk, c, cm);
  size_t m = 0;
  for (; m + 6 <= M; m += 6) columns_rows<6, AHEAD>(N, K, a + m * am, am, ak, b, bk, c + m * cm, cm);
  with_constant<5>(rest<6>(M), [&](auto rows) { columns_rows<rows, AHEAD>(N, K, a + m * am, am, ak, b, bk, c + m * cm, cm); });
}

// One row of results from some rows of b, at most 16, which are read from end to end.
template <class Count, class Columns, class A, class B>
inline void streamed_row(Count count, Columns N, const A* a, size_t ak, const B* b, size_t bk, float* c) {
  const size_t J = count;
  float f[16];
  for (size_t j = 0; j < J; ++j) f[j] = static_cast<float>(a[j * ak]);
  size_t n = 0;
  for (; n + WIDTH <= N; n += WIDTH) {
    vec s = load(c + n);
#pragma GCC unroll 16
    for (size_t j = 0; j < J; ++j) s += load(b + j * bk + n) * f[j];
    store(c + n, s);
  }
  for (; n < N; ++n)
    for (size_t j = 0; j < J; ++j) c[n] += f[j] * static_cast<float>(b[j * bk + n]);
}

// As `columns`, where the rows of b are long and each is in pages of its own: few of them at a time, as memory likes it.
template <class Rows, class Columns, class Depth, class A, class B>
[[maybe_unused]] inline void streamed_of(Rows M, Columns N, Depth K, const A* __restrict a, size_t am, size_t ak,
                                         const B* __restrict b, size_t bk, float* __restrict c, size_t cm) {
  if constexpr (mixed<Rows, Columns, Depth>) return streamed_of(size_t{M}, size_t{N}, size_t{K}, a, am, ak, b, bk, c, cm);
  constexpr size_t J = 16;
  size_t k = 0;
  const auto some = [&](auto count) {
    if constexpr (std::is_same_v<Rows, constant<1>>) streamed_row(count, N, a + k * ak, ak, b + k * bk, bk, c);
    else columns_of<true>(M, N, count, a + k * ak, am, ak, b + k * bk, bk, c, cm);
  };
  for (; k + J <= K; k += J) some(constant<J>());
  if (rest<J>(K) > 0) some(rest<J>(K));
}

// c[R][Q] += sum over k of a[R][k] * b[Q][k], vectors along k; R * Q is 8.
template <size_t R, class Depth, class A, class B>
inline void rows_block(Depth K, const A* a, size_t am, const B* b, size_t bn, float* c, size_t cm, size_t cn) {
  constexpr size_t Q = 8 / R;
  vec s[8] = {};
  for (size_t k = 0; k + WIDTH <= K; k += WIDTH) {
    vec y[R];
#pragma GCC unroll 8
    for (size_t r = 0; r < R; ++r) y[r] = load(a + r * am + k);
#pragma GCC unroll 8
    for (size_t q = 0; q < Q; ++q) {
      vec x = load(b + q * bn + k);
      hold<R>(x);
#pragma GCC unroll 8
      for (size_t r = 0; r < R; ++r) s[r * Q + q] += x * y[r];
    }
  }
  totals<Q>(s, c, cm, cn);
  for (size_t i = 0; i < 8; ++i)
    for (size_t k = K / WIDTH * WIDTH; k < K; ++k)
      c[i / Q * cm + i % Q * cn] += static_cast<float>(a[i / Q * am + k]) * static_cast<float>(b[i % Q * bn + k]);
}

template <size_t R, class Columns, class Depth, class A, class B>
inline void rows_columns(Columns N, Depth K, const A* a, size_t am, const B* b, size_t bn, float* c, size_t cm, size_t cn) {
  constexpr size_t Q = 8 / R;
  size_t n = 0;
  for (; n + Q <= N; n += Q) rows_block<R>(K, a, am, b + n * bn, bn, c + n * cn, cm, cn);
  if (rest<Q>(N) > 0)
    for (; n < N; ++n)
      for (size_t r = 0; r < R; ++r) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (size_t k = 0; k < K; ++k) sum += static_cast<float>(a[r * am + k]) * static_cast<float>(b[n * bn + k]);
        c[r * cm + n * cn] += sum;
      }
}

// `rows` for N of the P columns of a panel, by `columns` of b transposed: panel[k][i] = b[i][k], 0 beyond its rows.
template <size_t P, size_t LONGEST, class Rows, class Columns, class Depth, class A, class B>
inline void rows_turned(Rows M, Columns N, Depth K, const A* a, size_t am, const B* b, size_t bn, float* c, size_t cm) {
  constexpr size_t R = 6;
  alignas(4 * WIDTH) float panel[LONGEST * P];
  for (size_t i = 0; i < P; ++i)
    for (size_t k = 0; k < K; ++k) panel[k * P + i] = i < N ? static_cast<float>(b[i * bn + k]) : 0.0f;
  if (N == P) return columns_of(M, constant<P>(), K, a, am, size_t{1}, panel, P, c, cm);
  alignas(4 * WIDTH) float part[R * P];
  size_t m = 0;
  const auto some = [&](auto rows) {
    for (float& each : part) each = 0.0f;
    columns_of(rows, constant<P>(), K, a + m * am, am, size_t{1}, panel, P, part, P);
    for (size_t r = 0; r < rows; ++r)
      for (size_t i = 0; i < N; ++i) c[(m + r) * cm + i] += part[r * P + i];
  };
  for (; m + R <= M; m += R) some(constant<R>());
  if (rest<R>(M) > 0) some(rest<R>(M));
}

// c[M][N] += sum over k of a[M][k] * b[N][k]; k lies side by side in a and in b. For many rows of a those of b are turned first.
template <class Rows, class Columns, class Depth, class A, class B>
[[maybe_unused]] inline void rows_of(Rows M, Columns N, Depth K, const A* __restrict a, size_t am, const B* __restrict b,
                                     size_t bn, float* __restrict c, size_t cm, size_t cn) {
  if constexpr (mixed<Rows, Columns, Depth>) return rows_of(size_t{M}, size_t{N}, size_t{K}, a, am, b, bn, c, cm, cn);
  constexpr size_t P = 4 * WIDTH, MANY = 16, LONGEST = most<Depth>(256);
  if (M >= MANY && N >= WIDTH && K <= 256 && cn == 1) {
    size_t n = 0;
    for (; n + P <= N; n += P) rows_turned<P, LONGEST>(M, constant<P>(), K, a, am, b + n * bn, bn, c + n, cm);
    with_constant<4>(rest<P, WIDTH>(N), [&](auto vectors) {
      rows_turned<vectors * WIDTH, LONGEST>(M, rest<P>(N), K, a, am, b + n * bn, bn, c + n, cm);
    });
    return;
  }
  size_t m = 0;
  for (; m + 4 <= M; m += 4) rows_columns<4>(N, K, a + m * am, am, b, bn, c + m * cm, cm, cn);
  if (rest<4>(M) >= 2) rows_columns<2>(N, K, a + m * am, am, b, bn, c + m * cm, cm, cn), m += 2;
  if (rest<2>(M) > 0) rows_columns<1>(N, K, a + m * am, am, b, bn, c + m * cm, cm, cn);
}

// The same for sizes that are all known.
template <size_t M, size_t N, size_t K, class... More>
[[maybe_unused]] inline void columns(More... more) { columns_of(constant<M>(), constant<N>(), constant<K>(), more...); }
template <size_t M, size_t N, size_t K, class... More>
[[maybe_unused]] inline void streamed(More... more) { streamed_of(constant<M>(), constant<N>(), constant<K>(), more...); }
template <size_t M, size_t N, size_t K, class... More>
[[maybe_unused]] inline void rows(More... more) { rows_of(constant<M>(), constant<N>(), constant<K>(), more...); }

}  // namespace

typedef void (*parallel_for_t)(void (*)(void*, size_t), size_t, void*, void*);

static void run(void (*kernel)(void*, size_t), size_t blocks, void** tensors, parallel_for_t parallel_for, void* pool) {
  if (parallel_for != nullptr && blocks > 1)
    parallel_for(kernel, blocks, tensors, pool);
  else
    for (size_t block = 0; block < blocks; ++block) kernel(tensors, block);
}
