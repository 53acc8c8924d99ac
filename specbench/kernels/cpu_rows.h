// Draws from a row of logits on a CPU: cpu_rows.py describes this file.
//
// Weights and their sums are float64. To draw, they are added up in the order of the vocabulary, as PyTorch's cumsum does.

#pragma once

#include "cpu_vectors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

constexpr int64_t PADDING = -1;

// Returns the largest number that is not NaN, by vectors.
inline float highest_of(const float* logits, int64_t size) {
  constexpr int64_t PARTS = 16;
  float lanes[PARTS];
  std::fill_n(lanes, PARTS, -INFINITY);
  for (int64_t i = 0; i + PARTS <= size; i += PARTS)
    for (int64_t lane = 0; lane < PARTS; lane++)
      lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
  for (int64_t i = size - size % PARTS; i < size; i++) lanes[0] = std::max(lanes[0], logits[i]);
  return *std::max_element(lanes, lanes + PARTS);
}

// Returns the first token with the largest logit.
inline int64_t likeliest(const float* logits, int64_t size) {
  return std::find(logits, logits + size, highest_of(logits, size)) - logits;
}

// The weight of every token, exp(logit / temperature - highest), and its normaliser without log(sum of weights). The
// normaliser is -inf for a row of -inf alone and NaN for a row with NaN or +inf, which have no weights.
inline double weigh(const float* logits, int64_t size, double temperature, double cutoff, double* weights) {
  int64_t unusual = 0;
  for (int64_t i = 0; i < size; i++) unusual += !(logits[i] < INFINITY);
  const float highest = highest_of(logits, size);
  if (unusual) return std::numeric_limits<double>::quiet_NaN();
  if (highest == -INFINITY) return -INFINITY;
  const double scaled = highest / temperature;
  for (int64_t i = 0; i < size; i++) {
    const double weight = exponential(logits[i] / temperature - scaled);
    weights[i] = logits[i] >= cutoff ? weight : 0.0;
  }
  return scaled;
}

// The sum of the weights in any order, which is faster than in theirs.
inline double total_of(const double* weights, int64_t size) {
  constexpr int64_t PARTS = 16;
  double lanes[PARTS] = {}, total = 0.0;
  int64_t i = 0;
  for (; i + PARTS <= size; i += PARTS)
    for (int64_t lane = 0; lane < PARTS; lane++) lanes[lane] += weights[i + lane];
  for (; i < size; i++) total += weights[i];
  for (double lane : lanes) total += lane;
  return total;
}

// The first token at which sums of weights, in the order of the vocabulary, exceed u times the last of them.
inline int64_t place(const double* sums, int64_t size, double u) {
  const double total = sums[size - 1];
  if (!std::isfinite(total)) return PADDING;
  const double* last = std::lower_bound(sums, sums + size, total);  // later weights are 0, or too small to count
  return std::upper_bound(sums, last, u * total) - sums;
}

struct Drawn {
  int64_t token = PADDING;
  double normalizer;
};

// The token that *u draws, if there is one, and the normaliser of the row. Temperature 0 takes the largest logit.
inline Drawn draw_one(const float* logits, int64_t size, double temperature, double cutoff, const double* u,
                      double* weights) {
  Drawn drawn;
  drawn.normalizer = weigh(logits, size, temperature > 0 ? temperature : 1.0, cutoff, weights);
  if (!std::isfinite(drawn.normalizer)) return drawn;
  if (u && temperature > 0) {
    std::partial_sum(weights, weights + size, weights);
    drawn.normalizer += std::log(weights[size - 1]);
    drawn.token = place(weights, size, *u);
  } else {
    drawn.normalizer += std::log(total_of(weights, size));
    if (u) drawn.token = likeliest(logits, size);
  }
  return drawn;
}

// The entropy of a row of that normaliser, in nats; NaN if it is.
inline double entropy(const float* logits, int64_t size, double temperature, double normalizer) {
  double nats = 0.0;
  for (int64_t i = 0; i < size; i++) {
    const double log_prob = logits[i] / temperature - normalizer, prob = exponential(log_prob);
    nats -= log_prob > -INFINITY ? prob * log_prob : 0.0;
  }
  return nats;
}
