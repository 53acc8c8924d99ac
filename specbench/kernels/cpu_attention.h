// Attention on a CPU of a few queries to the cached tokens of one head; cpu_model.cpp says which.
//
// Keys and values lie in memory as packed matrices do (cpu_product.h): a token is a column of the keys, and an input of
// the values. Scores are a product of queries and keys, and results are a product of weights and values.

#pragma once

#include "cpu_product.h"

#include <cmath>
#include <vector>

// Returns the size up to the end of its last block.
inline int64_t filled_up(int64_t size) { return (size + COLUMNS - 1) / COLUMNS * COLUMNS; }

// The cached tokens of one head: keys [blocks of tokens][size][COLUMNS], values [blocks of numbers][tokens][COLUMNS].
struct Memory {
  float *keys, *values;
  int64_t size, capacity;

  void write(int64_t token, const float* key, const float* value) const {
    float* column = keys + token / COLUMNS * size * COLUMNS + token % COLUMNS;
    for (int64_t i = 0; i < size; i++) column[i * COLUMNS] = key[i];
    for (int64_t i = 0; i < size; i += COLUMNS)
      std::copy_n(value + i, std::min(size - i, COLUMNS), values + i * filled_up(capacity) + token * COLUMNS);
  }
};

// Returns the sum of the lanes of a vector.
inline float sum_of_lanes(Vector x) {
  typedef float Part __attribute__((vector_size(16)));
  Part parts[LANES / 4];
  std::memcpy(parts, &x, sizeof(parts));
  for (int64_t part = 1; part < LANES / 4; part++) parts[0] += parts[part];
  return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}

// What a query sees: the tokens before `tree`, and of those from there on, up to `end`, the ones whose bits are in `path`.
struct Sight {
  int64_t end, tree;
  uint64_t path;

  void hide(float* scores, int64_t padded, float filling) const {
    for (int64_t i = tree; i < end; i++)
      if (!(path >> (i - tree) & 1)) scores[i] = filling;
    std::fill(scores + end, scores + padded, filling);
  }
};

// Replaces scores by their exponentials, the largest of which is 1, and those of hidden tokens by 0. Returns their sum.
inline float exponentials(float* scores, const Sight& sight, int64_t padded) {
  sight.hide(scores, padded, -INFINITY);
  Vector largest = load(scores), sums = {};
  for (int64_t j = LANES; j < padded; j += LANES) largest = load(scores + j) > largest ? load(scores + j) : largest;
  float highest = largest[0];
  for (int64_t lane = 1; lane < LANES; lane++) highest = std::max(highest, largest[lane]);
  for (int64_t j = 0; j < padded; j++) scores[j] = small_exponential(scores[j] - highest);
  sight.hide(scores, padded, 0.0f);
  for (int64_t j = 0; j < padded; j += LANES) sums += load(scores + j);
  return sum_of_lanes(sums);
}

// Keys or values that come next: a product of enough queries, which waits for arithmetic, reads an input of them ahead for
// each of its own. COLUMNS inputs lie together.
constexpr int64_t BUSY = 4;
struct Next {
  const float* from;
  int64_t stride;

  void operator()(int64_t k) const {
    const float* at = from + k / COLUMNS * stride + k % COLUMNS * COLUMNS;
    for (int64_t i = 0; i < COLUMNS; i += LINE / sizeof(float)) __builtin_prefetch(at + i);
  }
};

// Attention of scaled queries [count][size]. `scores` has room for [count][filled_up(longest)] numbers, where no query sees
// more than the first `longest` tokens. Reads the keys of `next` ahead.
inline void attend(const float* queries, const Sight* sights, int64_t count, int64_t longest, const Memory& memory,
                   const Memory& next, float* scores, float* results) {
  const int64_t size = memory.size, padded = filled_up(longest), column_size = filled_up(memory.capacity) * COLUMNS;
  auto product = [&](const float* x, int64_t x_stride, const float* packed, int64_t block_size, float* y,
                     int64_t inputs, int64_t outputs, auto next_of) {
    auto blocks = [&](const auto& of_rows, auto other_of) {
      for (int64_t column = 0; column < outputs; column += COLUMNS)
        for (int64_t row = 0; row < count; row += ROWS)
          of_rows[std::min(count - row, ROWS)](x + row * x_stride, x_stride, packed + column / COLUMNS * block_size,
                                               y + row * outputs + column, outputs, inputs,
                                               std::min(outputs - column, COLUMNS), other_of(column));
    };
    if (count >= BUSY)
      blocks(BLOCKS<float, Next>, next_of);
    else
      blocks(BLOCKS<float>, [](int64_t) { return Nothing(); });
  };
  product(queries, size, memory.keys, size * COLUMNS, scores, size, padded,
          [&](int64_t token) { return Next{memory.values + token * COLUMNS, column_size}; });
  thread_local std::vector<float> sums;
  sums.resize(count);
  for (int64_t query = 0; query < count; query++)
    sums[query] = exponentials(scores + query * padded, sights[query], padded);
  product(scores, padded, memory.values, column_size, results, longest, size, [&](int64_t number) {
    return Next{next.keys + number / COLUMNS * longest * COLUMNS, COLUMNS * COLUMNS};
  });
  for (int64_t query = 0; query < count; query++)
    for (int64_t i = 0; i < size; i++) results[query * size + i] /= sums[query];
}
