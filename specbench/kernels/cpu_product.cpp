// Products of a few rows with a large matrix on a CPU: cpu_product.py builds and describes this file.
//
// A step of decoding reads every weight once and multiplies it with few rows, so that its speed is that of reading. The
// weights of a block of columns lie behind one another, [columns / 32][inputs][32], and the sums of all rows and of the
// block's columns stay in registers while its weights are read once, from the first byte to the last.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstring>

namespace {

using torch::stable::Tensor;
typedef float Vector __attribute__((vector_size(64)));  // 16 numbers; compilers split it where registers are shorter

constexpr int64_t LANES = 16, COLUMNS = 32, GRAIN = 4;  // GRAIN: blocks that are worth a thread
#ifdef __AVX512F__
constexpr int64_t ROWS = 10;  // 20 of 32 registers hold sums
#else
constexpr int64_t ROWS = 3;
#endif

// One block of columns of ROW_COUNT rows. PARTS sums a number break the chain of additions if there are few rows.
template <int ROW_COUNT, int PARTS>
void block(const float* x, const float* weight, float* y, int64_t inputs, int64_t outputs, int64_t columns) {
  Vector sums[PARTS][ROW_COUNT][2] = {};
  int64_t k = 0;
  auto add = [&](int part) {
    Vector left, right;
    std::memcpy(&left, weight + (k + part) * COLUMNS, sizeof(left));
    std::memcpy(&right, weight + (k + part) * COLUMNS + LANES, sizeof(right));
    for (int row = 0; row < ROW_COUNT; row++) {
      sums[part][row][0] += left * x[row * inputs + k + part];
      sums[part][row][1] += right * x[row * inputs + k + part];
    }
  };
  for (; k + PARTS <= inputs; k += PARTS)
    for (int part = 0; part < PARTS; part++) add(part);
  for (; k < inputs; k++) add(0);
  for (int row = 0; row < ROW_COUNT; row++) {
    Vector total[2] = {sums[0][row][0], sums[0][row][1]};
    for (int part = 1; part < PARTS; part++) {
      total[0] += sums[part][row][0];
      total[1] += sums[part][row][1];
    }
    std::memcpy(y + row * outputs, total, columns * sizeof(float));
  }
}

using Block = void (*)(const float*, const float*, float*, int64_t, int64_t, int64_t);
constexpr Block BLOCKS[] = {nullptr,     block<1, 4>, block<2, 2>, block<3, 2>, block<4, 2>, block<5, 1>,
                            block<6, 1>, block<7, 1>, block<8, 1>, block<9, 1>, block<10, 1>};

Tensor product(const Tensor x, const Tensor weight, int64_t outputs) {
  STD_TORCH_CHECK(x.is_contiguous() && weight.is_contiguous(), "specbench::cpu_product: contiguous tensors needed");
  const int64_t rows = x.size(0), inputs = x.size(1);
  Tensor y = torch::stable::new_empty(x, {rows, outputs});
  const float* from = static_cast<const float*>(x.data_ptr());
  const float* weights = static_cast<const float*>(weight.data_ptr());
  float* to = static_cast<float*>(y.data_ptr());
  torch::stable::parallel_for(0, weight.size(0), GRAIN, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      for (int64_t row = 0; row < rows; row += ROWS)
        BLOCKS[std::min(rows - row, ROWS)](
            from + row * inputs, weights + i * inputs * COLUMNS, to + row * outputs + i * COLUMNS, inputs, outputs,
            std::min(outputs - i * COLUMNS, COLUMNS));
  });
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(specbench_cpu, library) {
  library.def("product(Tensor x, Tensor weight, int outputs) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(specbench_cpu, CPU, library) { library.impl("product", TORCH_BOX(&product)); }
