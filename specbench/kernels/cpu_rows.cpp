// Draws, verifies and commits a step of decoding on a CPU, one operation each: cpu_rows.py describes this file.

#include "cpu_product.h"
#include "cpu_rows.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <tuple>
#include <vector>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename T>
T* numbers(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

std::tuple<Tensor, Tensor> draw(const Tensor logits, const Tensor temperature, const Tensor cutoff, const Tensor u) {
  const int64_t rows = logits.size(0), size = logits.size(1), stride = logits.stride(0);
  Tensor tokens = torch::stable::new_empty(logits, {rows}, ScalarType::Long);
  Tensor normalizers = torch::stable::new_empty(logits, {rows}, ScalarType::Double);
  std::vector<double> weights(size);
  for (int64_t row = 0; row < rows; row++) {
    const Drawn drawn = draw_one(numbers<float>(logits) + row * stride, size,
                                 numbers<double>(temperature)[row * temperature.stride(0)],
                                 numbers<double>(cutoff)[row * cutoff.stride(0)],
                                 u.size(0) > 0 ? numbers<double>(u) + row * u.stride(0) : nullptr, weights.data());
    numbers<int64_t>(tokens)[row] = drawn.token;
    numbers<double>(normalizers)[row] = drawn.normalizer;
  }
  return {tokens, normalizers};
}

Tensor inverse_cdf(const Tensor weights, const Tensor u) {
  const int64_t rows = weights.size(0), size = weights.size(1);
  Tensor tokens = torch::stable::new_empty(weights, {rows}, ScalarType::Long);
  std::vector<double> sums(size);
  for (int64_t row = 0; row < rows; row++) {
    const double* its = numbers<double>(weights) + row * weights.stride(0);
    std::partial_sum(its, its + size, sums.data());
    numbers<int64_t>(tokens)[row] = place(sums.data(), size, numbers<double>(u)[row * u.stride(0)]);
  }
  return tokens;
}

// Philox4x32-10 by (seed, position, offset, stream), as specbench/core/rng.py has it.
Tensor uniforms(const Tensor seeds, const Tensor positions, int64_t streams, int64_t width) {
  const int64_t requests = seeds.size(0);
  Tensor result = torch::stable::new_empty(seeds, {streams, requests, width}, ScalarType::Double);
  double* uniform = numbers<double>(result);
  for (int64_t stream = 0; stream < streams; stream++)
    for (int64_t request = 0; request < requests; request++)
      for (uint32_t offset = 0; offset < width; offset++) {
        const uint64_t seed = numbers<int64_t>(seeds)[request * seeds.stride(0)];
        uint32_t key[] = {uint32_t(seed), uint32_t(seed >> 32)};
        const uint64_t position = numbers<int64_t>(positions)[request * positions.stride(0)];
        uint32_t counter[] = {uint32_t(position), offset, uint32_t(stream), 0};
        for (int round = 0; round < 10; round++) {
          const uint64_t even = uint64_t(0xD2511F53) * counter[0], odd = uint64_t(0xCD9E8D57) * counter[2];
          const uint32_t next[] = {uint32_t(odd >> 32) ^ counter[1] ^ key[0], uint32_t(odd),
                                   uint32_t(even >> 32) ^ counter[3] ^ key[1], uint32_t(even)};
          std::copy_n(next, 4, counter);
          key[0] += 0x9E3779B9;
          key[1] += 0xBB67AE85;
        }
        const uint64_t bits = uint64_t(counter[0]) << 20 | counter[1] >> 12;
        *uniform++ = (double(bits) + 0.5) * 0x1p-52;
      }
  return result;
}

Tensor free_tokens(const Tensor limits, const Tensor lengths, const Tensor gammas, const Tensor finished) {
  Tensor result = torch::stable::new_empty(lengths, {lengths.size(0)});
  for (int64_t i = 0; i < lengths.size(0); i++) {
    const int64_t left = numbers<int64_t>(limits)[i] - numbers<int64_t>(lengths)[i] - 1;
    const bool running = numbers<int64_t>(finished)[i] == 0;
    numbers<int64_t>(result)[i] = running ? std::min(std::max<int64_t>(left, 0), numbers<int64_t>(gammas)[i]) : 0;
  }
  return result;
}

bool below_infinity(const Tensor values) {
  const double* its = numbers<double>(values);
  return std::all_of(its, its + values.numel(), [](double value) { return value < INFINITY; });
}

// Rows of logits with what makes distributions of them, as LogitRows has them.
struct Rows {
  const float* logits;
  int64_t count, stride, size;
  const Tensor &temperature, &cutoff, &normalizer;

  Rows(const Tensor& logits, const Tensor& temperature, const Tensor& cutoff, const Tensor& normalizer)
      : logits(numbers<float>(logits)), count(logits.size(0)), stride(logits.stride(0)), size(logits.size(1)),
        temperature(temperature), cutoff(cutoff), normalizer(normalizer) {}

  // Returns the probability of the tokens from `begin` to `end`.
  void probs(int64_t row, int64_t begin, int64_t end, double* result) const {
    const float* its = logits + row * stride;
    const double wanted = numbers<double>(temperature)[row * temperature.stride(0)];
    if (wanted > 0) {
      const double least = numbers<double>(cutoff)[row * cutoff.stride(0)];
      const double log_sum = numbers<double>(normalizer)[row * normalizer.stride(0)];
      for (int64_t i = 0; i < end - begin; i++) {
        const double prob = exponential(its[begin + i] / wanted - log_sum);
        result[i] = its[begin + i] >= least ? prob : 0.0;
      }
      if (!std::isfinite(log_sum)) std::fill(result, result + end - begin, NAN);
    } else {
      const int64_t largest = likeliest(its, size);
      const double mass = highest_of(its, size) == -INFINITY ? NAN : 1.0;  // all tokens at -inf are banned ones
      for (int64_t i = begin; i < end; i++) result[i - begin] = i == largest ? mass : 0.0;
    }
  }

  // Returns what `token` was drawn from: a row, or all of the probability on it if there are no rows.
  void probs_or_one_hot(int64_t row, int64_t token, std::vector<double>& result) const {
    if (count > 0) return probs(row, 0, size, result.data());
    std::fill(result.begin(), result.end(), 0.0);
    result[token] = 1.0;
  }
};

// What is wrong with a draft, by the order of the messages in cpu_rows.py. Nothing here throws: on some machines an exception
// out of this library ended the process.
enum { FITS, BAD_TOKENS, LONG_PATH };

bool fits(const int64_t* drafted, int64_t count, int64_t width, int64_t size) {
  return count <= width && std::all_of(drafted, drafted + count, [&](int64_t x) { return 0 <= x && x < size; });
}

// The token rule for padded trees, or for chains if there are no parents; a draft without rows is deterministic. No path has
// more than `depth` tokens. Returns the emitted tokens, the numbers of accepted ones, their paths, and what is wrong. The
// plain twins are rules/token/masked.py and rules/token/tree.py.
std::tuple<Tensor, Tensor, Tensor, int64_t> token_rule(
    const Tensor parents, int64_t depth, const Tensor drafted, const Tensor counts, const Tensor q_logits,
    const Tensor q_temperature, const Tensor q_cutoff, const Tensor q_normalizer, const Tensor p_logits,
    const Tensor p_temperature, const Tensor p_cutoff, const Tensor p_normalizer, const Tensor accept,
    const Tensor emit) {
  const int64_t requests = counts.size(0), width = drafted.size(0) / requests, size = p_logits.size(1);
  const Rows p(p_logits, p_temperature, p_cutoff, p_normalizer), q(q_logits, q_temperature, q_cutoff, q_normalizer);
  const bool samples = q_logits.size(0) > 0, chain = parents.size(0) == 0;
  Tensor tokens = torch::stable::new_empty(counts, {requests, depth + 1});
  Tensor accepted = torch::stable::new_empty(counts, {requests}), paths = torch::stable::new_empty(counts, {requests, depth});
  std::vector<double> left(size), subtracted(size);
  for (int64_t request = 0; request < requests; request++) {
    const int64_t *its = numbers<int64_t>(drafted) + request * width, count = numbers<int64_t>(counts)[request];
    int64_t *emitted = numbers<int64_t>(tokens) + request * (depth + 1), *path = numbers<int64_t>(paths) + request * depth;
    std::fill_n(emitted, depth + 1, PADDING);
    std::fill_n(path, depth, PADDING);
    if (!fits(its, count, width, size)) return {tokens, accepted, paths, BAD_TOKENS};
    int64_t length = 0, last = -1, row = request * (width + 1);  // of the path, and the row of p behind it
    double mass = 1.0;    // of p there that refused tokens have left
    bool refused = false;  // whether `left` has it
    for (int64_t i = 0; i < count; i++) {
      if ((chain ? i - 1 : numbers<int64_t>(parents)[request * width + i]) != last) continue;
      double p_of_token = left[its[i]], q_of_token = 1.0;
      if (!refused) p.probs(row, its[i], its[i] + 1, &p_of_token);
      if (samples) q.probs(request * width + i, its[i], its[i] + 1, &q_of_token);
      if (numbers<double>(accept)[request * accept.stride(0) + i] * q_of_token * mass < p_of_token) {
        if (length == depth) return {tokens, accepted, paths, LONG_PATH};
        path[length] = last = i;
        emitted[length++] = its[i];
        row = request * (width + 1) + i + 1;
        mass = 1.0;
        refused = false;
        continue;
      }
      if (!refused) p.probs(row, 0, size, left.data());
      refused = true;
      q.probs_or_one_hot(request * width + i, its[i], subtracted);
      for (int64_t j = 0; j < size; j++) {
        const double rest = left[j] - mass * subtracted[j];
        subtracted[j] = rest < 0 ? 0.0 : rest;
      }
      const bool differ = std::any_of(subtracted.begin(), subtracted.end(), [](double rest) { return rest != 0; });
      if (differ) left.swap(subtracted);  // else p equals q, and the rejection is rounding
      mass = total_of(left.data(), size);
    }
    if (!refused) p.probs(row, 0, size, left.data());
    std::partial_sum(left.begin(), left.end(), left.begin());
    emitted[length] = place(left.data(), size, numbers<double>(emit)[request * emit.stride(0)]);
    numbers<int64_t>(accepted)[request] = length;
  }
  return {tokens, accepted, paths, FITS};
}

// The block rule for padded chains. The plain twin is rules/block/masked.py; rules/block/__init__.py defines pi, S, h and tau.
// Lengths are tried from the longest down. S_i is at most pi_i, and so is h_i, so that most rows need not be read. Returns what
// token_rule does, without paths.
std::tuple<Tensor, Tensor, int64_t> block_rule(
    const Tensor drafted, const Tensor counts, const Tensor q_logits, const Tensor q_temperature, const Tensor q_cutoff,
    const Tensor q_normalizer, const Tensor p_logits, const Tensor p_temperature, const Tensor p_cutoff,
    const Tensor p_normalizer, const Tensor accept, const Tensor emit) {
  const int64_t requests = counts.size(0), width = drafted.size(0) / requests, size = p_logits.size(1);
  const Rows p(p_logits, p_temperature, p_cutoff, p_normalizer), q(q_logits, q_temperature, q_cutoff, q_normalizer);
  const bool samples = q_logits.size(0) > 0;
  Tensor tokens = torch::stable::new_empty(counts, {requests, width + 1}), accepted = torch::stable::new_empty(counts, {requests});
  std::vector<double> left(size), subtracted(size), pi(width + 1, 1.0), p_drafted(width);
  for (int64_t request = 0; request < requests; request++) {
    const int64_t *its = numbers<int64_t>(drafted) + request * width, count = numbers<int64_t>(counts)[request];
    if (!fits(its, count, width, size)) return {tokens, accepted, BAD_TOKENS};
    int64_t end = 0;  // of the block: before a row without a distribution, in which no token can follow
    for (; end < count; end++) {
      double q_of_token = 1.0;
      p.probs(request * (width + 1) + end, its[end], its[end] + 1, &p_drafted[end]);
      if (samples) q.probs(request * width + end, its[end], its[end] + 1, &q_of_token);
      const double weight = pi[end] * (p_drafted[end] / q_of_token);
      if (std::isnan(weight)) break;
      pi[end + 1] = std::min(weight, 1.0);
    }
    const auto leave_residual = [&](int64_t i) {  // max(pi_i p - q, 0), or p behind the whole draft
      p.probs(request * (width + 1) + i, 0, size, left.data());
      if (i == count) return;
      q.probs_or_one_hot(request * width + i, its[i], subtracted);
      for (int64_t j = 0; j < size; j++) {
        const double rest = pi[i] * left[j] - subtracted[j];
        left[j] = rest < 0 ? 0.0 : rest;
      }
    };
    int64_t tau = end;
    for (; tau > 0; tau--) {
      const double u = numbers<double>(accept)[request * accept.stride(0) + tau - 1];
      if (!(u < pi[tau])) continue;
      if (tau == end) break;
      if (samples) leave_residual(tau);
      const double mass = samples ? total_of(left.data(), size) : pi[tau] * (1 - p_drafted[tau]), total = mass + 1 - pi[tau];
      if (u < (total == 0 ? 1.0 : mass / total)) break;
    }
    if (tau == 0 || tau == end || !samples) leave_residual(tau);
    if (std::none_of(left.begin(), left.end(), [](double rest) { return rest != 0; }))  // the rejection is rounding
      p.probs(request * (width + 1) + tau, 0, size, left.data());
    std::partial_sum(left.begin(), left.end(), left.begin());
    int64_t* emitted = numbers<int64_t>(tokens) + request * (width + 1);
    std::fill(std::copy_n(its, tau, emitted), emitted + width + 1, PADDING);
    emitted[tau] = place(left.data(), size, numbers<double>(emit)[request * emit.stride(0)]);
    numbers<int64_t>(accepted)[request] = tau;
  }
  return {tokens, accepted, FITS};
}

// Writes the emitted tokens up to the first stop token behind the texts; the plain twin is in specbench/decoding/commit.py.
// Returns the texts, their lengths, the numbers of tokens written and how each request ended, as Batch has it.
std::tuple<Tensor, Tensor, Tensor, Tensor> commit(
    const Tensor texts, const Tensor lengths, const Tensor limits, const Tensor finished, const Tensor stop_ids,
    const Tensor emitted, const Tensor accepted, const Tensor bad) {
  enum { RUNNING, STOPPED, FULL, FAILED };
  const int64_t requests = lengths.size(0), capacity = texts.size(1), width = emitted.size(1), stops = stop_ids.size(1);
  Tensor text = torch::stable::clone(texts), length = torch::stable::clone(lengths);
  Tensor count = torch::stable::new_empty(lengths, {requests}), ended = torch::stable::clone(finished);
  for (int64_t request = 0; request < requests; request++) {
    int64_t &written = numbers<int64_t>(count)[request] = 0, &its = numbers<int64_t>(length)[request];
    int64_t& end = numbers<int64_t>(ended)[request];
    if (end != RUNNING) continue;
    const int64_t *block = numbers<int64_t>(emitted) + request * width, *stop = numbers<int64_t>(stop_ids) + request * stops;
    bool stopped = false, nothing = numbers<int64_t>(bad)[request] != 0;
    for (int64_t i = 0; i <= numbers<int64_t>(accepted)[request]; i++) {
      if (stopped) break;
      nothing |= block[i] == PADDING;
      stopped = std::find(stop, stop + stops, block[i]) != stop + stops;
      if (block[i] != PADDING) numbers<int64_t>(text)[request * capacity + its + i] = block[i];
      written++;
    }
    its += written;
    end = nothing ? FAILED : stopped ? STOPPED : its >= numbers<int64_t>(limits)[request] ? FULL : RUNNING;
  }
  return {text, length, count, ended};
}

// Copies cached tokens of each leading row to places before them in packed keys and values, as PackedLayer of
// specbench/models/cache.py has them. Sources and goals ascend. Returns the index of the first that cannot be, or -1.
int64_t shift(Tensor keys, Tensor values, const Tensor source, const Tensor goal) {
  const int64_t n = source.size(1), heads = keys.size(1), size = keys.size(3), columns = keys.size(4);
  const int64_t key_blocks = keys.size(2), value_blocks = values.size(2), tokens = values.size(3);
  for (int64_t i = 0; i < source.size(0) * n; i++) {
    const int64_t from = numbers<int64_t>(source)[i], to = numbers<int64_t>(goal)[i];
    if (to < 0 || to > from || from >= tokens) return i;
    for (int64_t head = i / n * heads; from != to && head < (i / n + 1) * heads; head++) {
      float* key = numbers<float>(keys) + head * key_blocks * size * columns;
      float* value = numbers<float>(values) + head * value_blocks * tokens * columns;
      for (int64_t j = 0; j < size; j++)
        key[(to / columns * size + j) * columns + to % columns] = key[(from / columns * size + j) * columns + from % columns];
      for (int64_t block = 0; block < value_blocks; block++)
        std::copy_n(value + (block * tokens + from) * columns, columns, value + (block * tokens + to) * columns);
    }
  }
  return -1;
}

Tensor product(const Tensor given, const Tensor weight, int64_t outputs) {
  const Tensor x = torch::stable::contiguous(given);
  Tensor y = torch::stable::new_empty(x, {x.size(0), outputs});
  const ScalarType type = weight.scalar_type();
  const int64_t bytes = type == ScalarType::Char ? 1 : type == ScalarType::BFloat16 ? 2 : 4;
  multiply(numbers<float>(x), weight.const_data_ptr(), bytes, numbers<float>(y), x.size(0), x.size(1), outputs);
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(specbench_cpu, library) {
  library.def("product(Tensor x, Tensor weight, int outputs) -> Tensor");
  library.def("draw(Tensor logits, Tensor temperature, Tensor cutoff, Tensor u) -> (Tensor, Tensor)");
  library.def("shift(Tensor(a!) keys, Tensor(b!) values, Tensor source, Tensor goal) -> int");
  library.def("inverse_cdf(Tensor weights, Tensor u) -> Tensor");
  library.def("uniforms(Tensor seeds, Tensor positions, int streams, int width) -> Tensor");
  library.def("free_tokens(Tensor limits, Tensor lengths, Tensor gammas, Tensor finished) -> Tensor");
  library.def("below_infinity(Tensor values) -> bool");
  library.def(
      "commit(Tensor texts, Tensor lengths, Tensor limits, Tensor finished, Tensor stop_ids, Tensor emitted, Tensor "
      "accepted, Tensor bad) -> (Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "token_rule(Tensor parents, int depth, Tensor drafted, Tensor counts, Tensor q_logits, Tensor q_temperature, Tensor "
      "q_cutoff, Tensor q_normalizer, Tensor p_logits, Tensor p_temperature, Tensor p_cutoff, Tensor p_normalizer, Tensor "
      "accept, Tensor emit) -> (Tensor, Tensor, Tensor, int)");
  library.def(
      "block_rule(Tensor drafted, Tensor counts, Tensor q_logits, Tensor q_temperature, Tensor q_cutoff, Tensor "
      "q_normalizer, Tensor p_logits, Tensor p_temperature, Tensor p_cutoff, Tensor p_normalizer, Tensor accept, Tensor "
      "emit) -> (Tensor, Tensor, int)");
}

STABLE_TORCH_LIBRARY_IMPL(specbench_cpu, CPU, library) {
  library.impl("product", TORCH_BOX(&product));
  library.impl("draw", TORCH_BOX(&draw));
  library.impl("shift", TORCH_BOX(&shift));
  library.impl("inverse_cdf", TORCH_BOX(&inverse_cdf));
  library.impl("uniforms", TORCH_BOX(&uniforms));
  library.impl("free_tokens", TORCH_BOX(&free_tokens));
  library.impl("below_infinity", TORCH_BOX(&below_infinity));
  library.impl("commit", TORCH_BOX(&commit));
  library.impl("token_rule", TORCH_BOX(&token_rule));
  library.impl("block_rule", TORCH_BOX(&block_rule));
}
