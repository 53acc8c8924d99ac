// Products of a few rows with a large matrix on a CPU, and the exponential function; cpu_model.py describes their use.
//
// A step of decoding reads every weight once and multiplies it with few rows, so that its speed is that of reading. The
// weights of a block of columns lie behind one another, [outputs / COLUMNS][inputs][COLUMNS], and the sums of all rows
// and of the block's columns stay in registers while its weights are read once, from the first byte to the last.
// Weights that bfloat16 holds exactly, as those of most checkpoints, take two bytes: products are the same numbers.

#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int64_t LANES = 16, ROWS = 10;  // 20 of 32 registers hold sums
#elif defined(__AVX__)
constexpr int64_t LANES = 8, ROWS = 6;  // 12 of 16
#else
constexpr int64_t LANES = 4, ROWS = 6;
#endif
constexpr int64_t COLUMNS = 2 * LANES;
typedef float Vector __attribute__((vector_size(4 * LANES)));

typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Narrow;  // the upper half of a float

inline Vector load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

// Reads the weights of a block's two vectors of columns: floats one vector after the other, narrow ones in turn.
inline void load_columns(const float* from, Vector& left, Vector& right) {
  left = load(from);
  right = load(from + LANES);
}

inline void load_columns(const Narrow* from, Vector& left, Vector& right) {
  Words words;
  std::memcpy(&words, from, sizeof(words));
  left = std::bit_cast<Vector>(words << 16);
  right = std::bit_cast<Vector>(words & 0xffff0000u);
}

// One block of columns of ROW_COUNT rows. PARTS sums a number break the chain of additions if there are few rows.
template <typename Weight, int ROW_COUNT, int PARTS>
void block(const float* x, const Weight* weight, float* y, int64_t inputs, int64_t outputs, int64_t columns) {
  Vector sums[PARTS][ROW_COUNT][2] = {};
  auto add = [&](int64_t k, int part) {
    // Arithmetic on several rows keeps the processor from running ahead of memory by itself.
    if (ROW_COUNT > 2) __builtin_prefetch(weight + k * COLUMNS + 2048 / sizeof(Weight));
    Vector left, right;
    load_columns(weight + k * COLUMNS, left, right);
    for (int row = 0; row < ROW_COUNT; row++) {
      sums[part][row][0] += left * x[row * inputs + k];
      sums[part][row][1] += right * x[row * inputs + k];
    }
  };
  int64_t k = 0;
  for (; k + PARTS <= inputs; k += PARTS)
    for (int part = 0; part < PARTS; part++) add(k + part, part);
  for (; k < inputs; k++) add(k, 0);
  for (int row = 0; row < ROW_COUNT; row++) {
    Vector total[2] = {sums[0][row][0], sums[0][row][1]};
    for (int part = 1; part < PARTS; part++) {
      total[0] += sums[part][row][0];
      total[1] += sums[part][row][1];
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
  torch::stable::parallel_for(0, (outputs + COLUMNS - 1) / COLUMNS, GRAIN, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      for (int64_t row = 0; row < rows; row += ROWS)
        BLOCKS<Weight>[std::min(rows - row, ROWS)](x + row * inputs, packed + i * inputs * COLUMNS,
                                                   y + row * outputs + i * COLUMNS, inputs, outputs,
                                                   std::min(outputs - i * COLUMNS, COLUMNS));
  });
}

inline void multiply(const float* x, const void* packed, bool narrow, float* y, int64_t rows, int64_t inputs,
                     int64_t outputs) {
  if (narrow)
    multiply(x, static_cast<const Narrow*>(packed), y, rows, inputs, outputs);
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
