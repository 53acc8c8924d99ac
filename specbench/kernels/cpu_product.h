// Products of a few rows with a large matrix on a CPU; cpu_model.py describes their use.
//
// A step of decoding reads every weight once and multiplies it with few rows, so that its speed is that of reading. The
// weights of a block of columns lie behind one another, [outputs / COLUMNS][inputs][COLUMNS], and the sums of all rows
// and of the block's columns stay in registers while its weights are read once, from the first byte to the last.
// Weights that bfloat16 holds exactly, as those of most checkpoints, take two bytes: products are the same numbers. They
// take one byte if all of a row are whole multiples, up to 127, of one power of two: the scales, a float a column, lie
// behind the weights of their block. cpu_bytes.h has a faster product with bytes for some processors.

#pragma once

#include "cpu_bytes.h"

#if defined(__AVX512F__)
constexpr int64_t ROWS = 10;  // 20 of 32 registers hold sums
#else
constexpr int64_t ROWS = 6;  // 12 of 16
#endif

typedef uint16_t Half;  // the upper half of a float
typedef int8_t Byte;    // a multiple of its column's scale

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

// What else a product has read ahead while it multiplies, a call for each input.
struct Nothing {
  void operator()(int64_t) const {}
};

// One block of columns of ROW_COUNT rows, which are `x_stride` and `y_stride` numbers apart. PARTS sums a number break
// the chain of additions if there are few rows.
template <typename Weight, int ROW_COUNT, int PARTS, typename Other>
void block(const float* x, int64_t x_stride, const Weight* weight, float* y, int64_t y_stride, int64_t inputs,
           int64_t columns, Other other) {
  constexpr int64_t ahead = sizeof(Weight) == 4 ? std::min<int64_t>(AHEAD, 4096) : AHEAD;  // keys and values end soon
  Vector sums[PARTS][ROW_COUNT][2] = {};
  auto add = [&](int64_t k, int part) {
    for (size_t byte = 0; byte < COLUMNS * sizeof(Weight); byte += LINE)
      __builtin_prefetch(reinterpret_cast<const char*>(weight + k * COLUMNS) + ahead + byte);
    other(k);
    Vector columns[2];
    load_columns(weight + k * COLUMNS, columns);
    for (int row = 0; row < ROW_COUNT; row++)
      for (int side = 0; side < 2; side++) sums[part][row][side] += columns[side] * x[row * x_stride + k];
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
    store(total, y + row * y_stride, columns);
  }
}

template <typename W, typename O>
using Block = void (*)(const float*, int64_t, const W*, float*, int64_t, int64_t, int64_t, O);
template <typename W, typename O = Nothing>
constexpr Block<W, O> BLOCKS[] = {nullptr,           block<W, 1, 4, O>, block<W, 2, 2, O>, block<W, 3, 2, O>,
                                  block<W, 4, 1, O>, block<W, 5, 1, O>, block<W, 6, 1, O>, block<W, 7, 1, O>,
                                  block<W, 8, 1, O>, block<W, 9, 1, O>, block<W, 10, 1, O>};

// y[rows][outputs] = x[rows][inputs] times the transposed matrix that was packed.
template <typename Weight>
void multiply(const float* x, const Weight* packed, float* y, int64_t rows, int64_t inputs, int64_t outputs) {
  const int64_t block_size = (inputs + (sizeof(Weight) == 1 ? sizeof(float) : 0)) * COLUMNS;
  for_blocks(rows, ROWS, outputs, [&](int64_t block, int64_t row, int64_t count, int64_t columns) {
    BLOCKS<Weight>[count](x + row * inputs, inputs, packed + block * block_size, y + row * outputs + block * COLUMNS,
                          outputs, inputs, columns, Nothing());
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
