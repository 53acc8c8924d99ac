// Products of a few rows with a large matrix on a CPU, and exponential functions; cpu_model.py describes their use.
//
// A step of decoding reads every weight once and multiplies it with few rows, so that its speed is that of reading. The
// weights of a block of columns lie behind one another, [outputs / COLUMNS][inputs][COLUMNS], and the sums of all rows
// and of the block's columns stay in registers while its weights are read once, from the first byte to the last.
// Weights that bfloat16 holds exactly, as those of most checkpoints, take two bytes: products are the same numbers. They
// take one byte if all of a row are whole multiples, up to 127, of one power of two: the scales, a float a column, lie
// behind the weights of their block.

#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

// AHEAD: bytes that a product has read ahead, since processors do less by themselves, the less the more rows there are.
#if defined(__AVX512F__)
constexpr int64_t LANES = 16, ROWS = 10, AHEAD = 2048;  // 20 of 32 registers hold sums
#elif defined(__AVX__)
constexpr int64_t LANES = 8, ROWS = 6, AHEAD = 4096;  // 12 of 16
#else
constexpr int64_t LANES = 4, ROWS = 6, AHEAD = 4096;
#endif
constexpr int64_t COLUMNS = 2 * LANES;
typedef float Vector __attribute__((vector_size(4 * LANES)));

typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef int32_t Integers __attribute__((vector_size(4 * LANES)));
typedef uint16_t Half;  // the upper half of a float
typedef int8_t Byte;    // a multiple of its column's scale

template <typename Result>
Result load_as(const void* from) {
  Result vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

inline Vector load(const float* from) { return load_as<Vector>(from); }

// Reads the weights of a block's two vectors of columns. Two bfloat16 share a word, that of the first vector below.
inline void load_columns(const float* from, Vector* columns) {
  columns[0] = load(from);
  columns[1] = load(from + LANES);
}

inline void load_columns(const Half* from, Vector* columns) {
  const Words words = load_as<Words>(from);
  columns[0] = std::bit_cast<Vector>(words << 16);
  columns[1] = std::bit_cast<Vector>(words & 0xffff0000u);
}

inline void load_columns(const Byte* from, Vector* columns) {
  for (int side = 0; side < 2; side++) {
    const Byte* its = from + side * LANES;
    // GCC makes scalars of the loop on these processors.
#if defined(__AVX512F__)
    const Integers numbers = std::bit_cast<Integers>(_mm512_cvtepi8_epi32(load_as<__m128i>(its)));
#elif defined(__AVX2__)
    const Integers numbers = std::bit_cast<Integers>(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(load_as<int64_t>(its))));
#else
    Integers numbers;
    for (int lane = 0; lane < LANES; lane++) numbers[lane] = its[lane];
#endif
    columns[side] = __builtin_convertvector(numbers, Vector);
  }
}

// One block of columns of ROW_COUNT rows. PARTS sums a number break the chain of additions if there are few rows.
template <typename Weight, int ROW_COUNT, int PARTS>
void block(const float* x, const Weight* weight, float* y, int64_t inputs, int64_t outputs, int64_t columns) {
  Vector sums[PARTS][ROW_COUNT][2] = {};
  auto add = [&](int64_t k, int part) {
    __builtin_prefetch(weight + k * COLUMNS + AHEAD / sizeof(Weight));
    Vector columns[2];
    load_columns(weight + k * COLUMNS, columns);
    for (int row = 0; row < ROW_COUNT; row++)
      for (int side = 0; side < 2; side++) sums[part][row][side] += columns[side] * x[row * inputs + k];
  };
  int64_t k = 0;
  for (; k + PARTS <= inputs; k += PARTS)
    for (int part = 0; part < PARTS; part++) add(k + part, part);
  for (; k < inputs; k++) add(k, 0);
  for (int row = 0; row < ROW_COUNT; row++) {
    Vector total[2] = {sums[0][row][0], sums[0][row][1]};
    for (int side = 0; side < 2; side++) {
      for (int part = 1; part < PARTS; part++) total[side] += sums[part][row][side];
      if constexpr (sizeof(Weight) == 1) total[side] *= load_as<Vector>(weight + inputs * COLUMNS + side * sizeof(Vector));
    }
    std::memcpy(y + row * outputs, total, columns * sizeof(float));
  }
}

template <typename Weight>
using Block = void (*)(const float*, const Weight*, float*, int64_t, int64_t, int64_t);
template <typename W>
constexpr Block<W> BLOCKS[] = {nullptr,        block<W, 1, 4>, block<W, 2, 2>, block<W, 3, 2>,
                               block<W, 4, 1>, block<W, 5, 1>, block<W, 6, 1>, block<W, 7, 1>,
                               block<W, 8, 1>, block<W, 9, 1>, block<W, 10, 1>};

// y[rows][outputs] = x[rows][inputs] times the transposed matrix that was packed.
template <typename Weight>
void multiply(const float* x, const Weight* packed, float* y, int64_t rows, int64_t inputs, int64_t outputs) {
  constexpr int64_t GRAIN = 8;  // blocks that are worth a thread
  const int64_t block_size = (inputs + (sizeof(Weight) == 1 ? sizeof(float) : 0)) * COLUMNS;
  torch::stable::parallel_for(0, (outputs + COLUMNS - 1) / COLUMNS, GRAIN, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      for (int64_t row = 0; row < rows; row += ROWS)
        BLOCKS<Weight>[std::min(rows - row, ROWS)](x + row * inputs, packed + i * block_size,
                                                   y + row * outputs + i * COLUMNS, inputs, outputs,
                                                   std::min(outputs - i * COLUMNS, COLUMNS));
  });
}

// As above, of weights that take `bytes` each.
inline void multiply(const float* x, const void* packed, int64_t bytes, float* y, int64_t rows, int64_t inputs,
                     int64_t outputs) {
  if (bytes == 1)
    multiply(x, static_cast<const Byte*>(packed), y, rows, inputs, outputs);
  else if (bytes == 2)
    multiply(x, static_cast<const Half*>(packed), y, rows, inputs, outputs);
  else
    multiply(x, static_cast<const float*>(packed), y, rows, inputs, outputs);
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
