// Attention on a CPU of a few queries to the cached tokens of one head; cpu_model.cpp says which.

#pragma once

#include "cpu_vectors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

// Returns the vector with each lane and the one STEP further exchanged.
template <int STEP, int... LANE>
Vector crossed(Vector x, std::integer_sequence<int, LANE...>) {
#if defined(__clang__)
  return __builtin_shufflevector(x, x, (LANE ^ STEP)...);
#else
  return __builtin_shuffle(x, Integers{(LANE ^ STEP)...});
#endif
}

// Returns a vector whose lane i is the sum of the lanes of vector i of 2 * STEP, at first LANES. Each call halves them.
template <int STEP = LANES / 2>
Vector lane_sums(Vector* x) {
  using Lanes = std::make_integer_sequence<int, LANES>;
  constexpr auto upper = []<int... LANE>(std::integer_sequence<int, LANE...>) { return Integers{-((LANE & STEP) != 0)...}; };
  for (int i = 0; i < STEP; i++) {
    const Vector low = x[i], high = x[i + STEP];
    x[i] = (upper(Lanes()) ? high : low) + crossed<STEP>(upper(Lanes()) ? low : high, Lanes());
  }
  if constexpr (STEP > 1) return lane_sums<STEP / 2>(x);
  return x[0];
}

// Returns the sum of the lanes of a vector.
inline float sum_of_lanes(Vector x) {
  typedef float Part __attribute__((vector_size(16)));
  Part parts[LANES / 4];
  std::memcpy(parts, &x, sizeof(parts));
  for (int64_t part = 1; part < LANES / 4; part++) parts[0] += parts[part];
  return (parts[0][0] + parts[0][2]) + (parts[0][1] + parts[0][3]);
}

// Returns the products of a vector with LANES rows of a matrix. What `size` has beyond whole vectors is left out.
inline Vector dots(const float* x, const float* rows, int64_t size) {
  Vector sums[LANES] = {};
  for (int64_t i = 0; i + LANES <= size; i += LANES)
    for (int row = 0; row < LANES; row++) sums[row] += load(x + i) * load(rows + row * size + i);
  return lane_sums(sums);
}

// Returns the product of two vectors.
inline float dot(const float* x, const float* y, int64_t size) {
  Vector lanes = {};
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) lanes += load(x + i) * load(y + i);
  float sum = sum_of_lanes(lanes);
  for (; i < size; i++) sum += x[i] * y[i];
  return sum;
}

// A query of one head to the cached tokens up to its own position, and what attention returns for it.
struct Query {
  const float* vector;
  float* result;
  int64_t visible;
  float* weights;  // of the tokens, with room for whole vectors
};

// y += the sum of weights[j] * values[j][size], of `COUNT` vectors.
template <int COUNT>
void combine(const float* values, const float* weights, float* y, int64_t tokens, int64_t size) {
  constexpr int PARTS = 8 / COUNT;  // sums a number, which break the chain of additions
  Vector sums[PARTS][COUNT] = {};
  std::memcpy(sums[0], y, sizeof(sums[0]));
  auto add = [&](int64_t j, int part) {
    for (int i = 0; i < COUNT; i++) sums[part][i] += load(values + j * size + i * LANES) * weights[j];
  };
  int64_t j = 0;
  for (; j + PARTS <= tokens; j += PARTS)
    for (int part = 0; part < PARTS; part++) add(j + part, part);
  for (; j < tokens; j++) add(j, 0);
  for (int part = 1; part < PARTS; part++)
    for (int i = 0; i < COUNT; i++) sums[0][i] += sums[part][i];
  std::memcpy(y, sums[0], sizeof(sums[0]));
}

inline void combine(const float* values, const float* weights, float* y, int64_t tokens, int64_t size) {
  int64_t i = 0;
  for (; i + 4 * LANES <= size; i += 4 * LANES) combine<4>(values + i, weights, y + i, tokens, size);
  for (; i + LANES <= size; i += LANES) combine<1>(values + i, weights, y + i, tokens, size);
  for (; i < size; i++)
    for (int64_t j = 0; j < tokens; j++) y[i] += values[j * size + i] * weights[j];
}

// Replaces scores by their softmax, and fills the last vector up with zeros.
inline void softmax(float* scores, int64_t count) {
  const int64_t padded = (count + LANES - 1) / LANES * LANES;
  std::fill(scores + count, scores + padded, -INFINITY);
  Vector largest = load(scores), sums = {};
  for (int64_t j = LANES; j < padded; j += LANES) largest = load(scores + j) > largest ? load(scores + j) : largest;
  float highest = largest[0];
  for (int64_t lane = 1; lane < LANES; lane++) highest = std::max(highest, largest[lane]);
  for (int64_t j = 0; j < padded; j++) scores[j] = small_exponential(scores[j] - highest);
  std::fill(scores + count, scores + padded, 0.0f);
  for (int64_t j = 0; j < padded; j += LANES) sums += load(scores + j);
  const float total = sum_of_lanes(sums);
  for (int64_t j = 0; j < padded; j++) scores[j] /= total;
}

constexpr int64_t TOKENS = 4 * LANES;  // whose values stay in the first cache while all queries use them

// Attention of queries to the same keys and values, which are read once: some tokens are used by all queries in turn.
inline void attend(const std::vector<Query>& queries, const float* keys, const float* values, int64_t size, float scale) {
  int64_t longest = 0;
  for (const Query& query : queries) longest = std::max(longest, query.visible);
  for (int64_t j = 0; j < longest; j += LANES)
    for (const Query& query : queries) {
      const float* some = keys + j * size;
      const int64_t count = std::min(query.visible - j, LANES);
      if (count == LANES && size % LANES == 0) {
        const Vector scores = dots(query.vector, some, size) * scale;
        std::memcpy(query.weights + j, &scores, sizeof(scores));
      } else {
        for (int64_t i = 0; i < count; i++) query.weights[j + i] = dot(query.vector, some + i * size, size) * scale;
      }
    }
  for (const Query& query : queries) {
    softmax(query.weights, query.visible);
    std::fill_n(query.result, size, 0.0f);
  }
  for (int64_t j = 0; j < longest; j += TOKENS)
    for (const Query& query : queries)
      combine(values + j * size, query.weights + j, query.result, std::min(query.visible - j, TOKENS), size);
}
