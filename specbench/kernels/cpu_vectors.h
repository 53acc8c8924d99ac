// What products and attention share: vectors as wide as this processor's, blocks of columns, and exponential functions.

#pragma once

#include <torch/csrc/stable/ops.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

// AHEAD: bytes that a product has read ahead, since processors do less by themselves, the less the more rows there are.
#if defined(__AVX512F__) && (defined(__znver3__) || defined(__znver4__) || defined(__znver5__))
constexpr int64_t LANES = 16, AHEAD = 12288;  // AMD; the oldest name stands for processors newer than the compiler
#elif defined(__AVX512F__)
constexpr int64_t LANES = 16, AHEAD = 2048;
#elif defined(__AVX__)
constexpr int64_t LANES = 8, AHEAD = 4096;
#else
constexpr int64_t LANES = 4, AHEAD = 4096;
#endif
constexpr int64_t COLUMNS = 2 * LANES;  // of a block
constexpr int64_t LINE = 64;            // bytes that a processor reads at once
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));

template <typename Result>
Result load_as(const void* from) {
  Result vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

inline Vector load(const float* from) { return load_as<Vector>(from); }

// Writes the first `columns` numbers of a block; of a whole block without a call.
inline void store(const Vector* from, float* to, int64_t columns) {
  if (columns == COLUMNS)
    std::memcpy(to, from, COLUMNS * sizeof(float));
  else
    std::memcpy(to, from, columns * sizeof(float));
}

// Calls compute(block, row, rows, columns) for every block of columns, spread over threads, and for `most` rows at a time.
template <typename Function>
void for_blocks(int64_t rows, int64_t most, int64_t outputs, Function compute) {
  constexpr int64_t GRAIN = 8;  // blocks that are worth a thread
  torch::stable::parallel_for(0, (outputs + COLUMNS - 1) / COLUMNS, GRAIN, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; block++)
      for (int64_t row = 0; row < rows; row += most)
        compute(block, row, std::min(rows - row, most), std::min(outputs - block * COLUMNS, COLUMNS));
  });
}

// exp(x) for -708 < x <= 0, and 0 for what is less: compilers make vectors of loops over it.
inline double exponential(double x) {
  constexpr double SHIFT = 0x1.8p52, LOG2E = 0x1.71547652b82fep0, HIGH = 0x1.62e42fefa39efp-1, LOW = 0x1.abc9e3b39803fp-56;
  constexpr double TERMS[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                              1.0 / 40320,      1.0 / 5040,      1.0 / 720,      1.0 / 120,     1.0 / 24,
                              1.0 / 6,          1.0 / 2,         1.0,            1.0};
  const double bounded = x > -708.0 ? x : -708.0;
  const double shifted = bounded * LOG2E + SHIFT, k = shifted - SHIFT;
  const double rest = (bounded - k * HIGH) - k * LOW;  // at most half of log 2
  double sum = TERMS[0];
  for (int i = 1; i < 14; i++) sum = sum * rest + TERMS[i];
  const double power = std::bit_cast<double>(std::bit_cast<int64_t>(sum) + (std::bit_cast<int64_t>(shifted) << 52));
  return x > -708.0 ? power : 0.0;
}

// exp(x) for -87 < x <= 0 to the last bits of a float, exp(-87) for what is less, and NaN for NaN: scores that
// overflow have to be seen in the logits. Compilers make vectors of loops over it.
inline float small_exponential(float x) {
  constexpr float SHIFT = 0x1.8p23f, LOG2E = 0x1.715476p0f, HIGH = 0x1.62e4p-1f, LOW = 0x1.7f7d1cp-20f;
  constexpr float TERMS[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  const float bounded = x < -87.0f ? -87.0f : x;
  const float shifted = bounded * LOG2E + SHIFT, k = shifted - SHIFT;
  const float rest = (bounded - k * HIGH) - k * LOW;
  float sum = TERMS[0];
  for (int i = 1; i < 8; i++) sum = sum * rest + TERMS[i];
  return std::bit_cast<float>(std::bit_cast<int32_t>(sum) + (std::bit_cast<int32_t>(shifted) << 23));
}
