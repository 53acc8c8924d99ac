// Draws from rows of logits on a CPU, one pass for each: cpu_rows.py describes this file.
//
// Weights and their sums are float64 and are added up in the order of the vocabulary, as PyTorch's cumsum does.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr double NONE = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t PADDING = -1, LANES = 16;

template <typename T>
const T* numbers(const Tensor& tensor) {
  return static_cast<const T*>(tensor.data_ptr());
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

// The weight of every token, exp(logit / temperature - highest), and its normaliser without log(sum of weights). The
// normaliser is -inf for a row of -inf alone and NaN for a row with NaN or +inf, which have no weights.
double weigh(const float* logits, int64_t size, double temperature, double cutoff, double* weights) {
  float highest = -INFINITY;
  int64_t unusual = 0;
  for (int64_t i = 0; i < size; i++) unusual += !(logits[i] < INFINITY);
  float lanes[LANES];
  std::fill_n(lanes, LANES, highest);
  for (int64_t i = 0; i + LANES <= size; i += LANES)
    for (int64_t lane = 0; lane < LANES; lane++)
      lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
  for (int64_t i = size - size % LANES; i < size; i++) highest = std::max(highest, logits[i]);
  highest = std::max(highest, *std::max_element(lanes, lanes + LANES));
  if (unusual) return NONE;
  if (highest == -INFINITY) return -INFINITY;
  const double scaled = highest / temperature;
  for (int64_t i = 0; i < size; i++) {
    const double weight = exponential(logits[i] / temperature - scaled);
    weights[i] = logits[i] >= cutoff ? weight : 0.0;
  }
  return scaled;
}

struct Sum {
  double total = 0.0;
  int64_t last = 0;  // the first place at which the sum is whole
};

Sum sum_of(const double* weights, int64_t size) {
  Sum sum;
  for (int64_t i = 0; i < size; i++) {
    const double next = sum.total + weights[i];
    sum.last = next > sum.total ? i : sum.last;
    sum.total = next;
  }
  return sum;
}

int64_t place(const double* weights, const Sum& sum, double u) {
  if (!std::isfinite(sum.total)) return PADDING;
  const double wanted = u * sum.total;
  double before = 0.0;
  for (int64_t i = 0; i < sum.last; i++)
    if ((before += weights[i]) > wanted) return i;
  return sum.last;
}

std::tuple<Tensor, Tensor> draw(const Tensor logits, const Tensor temperature, const Tensor cutoff, const Tensor u) {
  const int64_t rows = logits.size(0), size = logits.size(1), stride = logits.stride(0);
  Tensor tokens = torch::stable::new_empty(logits, {rows}, ScalarType::Long);
  Tensor normalizers = torch::stable::new_empty(logits, {rows}, ScalarType::Double);
  int64_t* token = static_cast<int64_t*>(tokens.data_ptr());
  double* normalizer = static_cast<double*>(normalizers.data_ptr());
  std::vector<double> weights(size);
  const bool draws = u.size(0) > 0;
  for (int64_t row = 0; row < rows; row++) {
    const float* its = numbers<float>(logits) + row * stride;
    const double wanted = numbers<double>(temperature)[row * temperature.stride(0)];
    const double least = numbers<double>(cutoff)[row * cutoff.stride(0)];
    normalizer[row] = weigh(its, size, wanted > 0 ? wanted : 1.0, least, weights.data());
    token[row] = PADDING;
    if (!std::isfinite(normalizer[row])) continue;
    const Sum sum = sum_of(weights.data(), size);
    normalizer[row] += std::log(sum.total);
    if (!draws) continue;
    token[row] = wanted > 0 ? place(weights.data(), sum, numbers<double>(u)[row * u.stride(0)])
                            : std::max_element(its, its + size) - its;
  }
  return {tokens, normalizers};
}

Tensor inverse_cdf(const Tensor weights, const Tensor u) {
  const int64_t rows = weights.size(0), size = weights.size(1);
  Tensor tokens = torch::stable::new_empty(weights, {rows}, ScalarType::Long);
  for (int64_t row = 0; row < rows; row++) {
    const double* its = numbers<double>(weights) + row * weights.stride(0);
    static_cast<int64_t*>(tokens.data_ptr())[row] =
        place(its, sum_of(its, size), numbers<double>(u)[row * u.stride(0)]);
  }
  return tokens;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(specbench_cpu, library) {
  library.def("draw(Tensor logits, Tensor temperature, Tensor cutoff, Tensor u) -> (Tensor, Tensor)");
  library.def("inverse_cdf(Tensor weights, Tensor u) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(specbench_cpu, CPU, library) {
  library.impl("draw", TORCH_BOX(&draw));
  library.impl("inverse_cdf", TORCH_BOX(&inverse_cdf));
}
