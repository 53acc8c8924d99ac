// Products of several rows with a matrix of bfloat16 by tiles, on processors that have them (AMX) and lend them.
//
// A float is the sum of three bfloat16, its digits, so that the products are exact and their sums float32. The rows of a
// tile are the digits of up to five rows of numbers: a pass over five tokens then takes as long as reading the weights.

#pragma once

#include "cpu_vectors.h"

typedef uint16_t Half;  // the upper half of a float
constexpr int64_t PAIR = 2;  // inputs whose weights lie together, for each column

#if !defined(__AMX_BF16__) || !defined(__linux__)
constexpr int64_t DEPTH = PAIR;
inline bool multiply_tiles(const float*, const Half*, float*, int64_t, int64_t, int64_t) { return false; }
#else
constexpr int64_t DEPTH = 32;  // inputs of a tile, to which matrices are filled up

#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

constexpr int64_t PARTS_OF_FLOAT = 3, TILE_ROWS = 16, MOST_TOGETHER = TILE_ROWS / PARTS_OF_FLOAT;
constexpr int64_t BYTES_AHEAD = 4096;  // that are read ahead, two of a block's tiles

// Tiles of this thread, as PyTorch's own libraries may have set them up; they are given back.
class Tiles {
  struct alignas(64) Setup {
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  };
  Setup before;

 public:
  // Tiles 0 and 1 hold sums, 2 the digits, 3 and 4 weights.
  explicit Tiles(int64_t digits) {
    _tile_storeconfig(&before);
    Setup setup;
    for (int tile = 0; tile < 5; tile++) {
      setup.bytes[tile] = 64;
      setup.rows[tile] = tile < 3 ? digits : TILE_ROWS;
    }
    _tile_loadconfig(&setup);
  }
  ~Tiles() { before.palette ? _tile_loadconfig(&before) : _tile_release(); }
};

// Writes the digits of each number of a row, [PARTS_OF_FLOAT][size].
inline void write_digits(const float* x, int64_t inputs, Half* __restrict digits, int64_t size) {
  constexpr uint32_t UPPER = 0xffff0000u;
  for (int64_t i = 0; i < inputs; i++) {
    const uint32_t first = std::bit_cast<uint32_t>(x[i]) & UPPER;
    const float rest = x[i] - std::bit_cast<float>(first);  // NaN of infinity
    const uint32_t second = std::bit_cast<uint32_t>(rest) & UPPER;
    digits[i] = first >> 16;
    digits[size + i] = second >> 16;
    digits[2 * size + i] = std::bit_cast<uint32_t>(rest - std::bit_cast<float>(second)) >> 16;
  }
}

// One block of columns of up to MOST_TOGETHER rows.
inline void tile_block(const Half* digits, const Half* weight, float* y, int64_t size, int64_t rows, int64_t outputs,
                       int64_t columns) {
  _tile_zero(0);
  _tile_zero(1);
  for (int64_t k = 0; k < size; k += DEPTH) {
    const Half* from = weight + k * COLUMNS;
    for (int64_t line = 0; line < DEPTH * COLUMNS; line += 32) __builtin_prefetch(from + line + BYTES_AHEAD / sizeof(Half));
    _tile_loadd(2, digits + k, size * sizeof(Half));
    _tile_loadd(3, from, PAIR * COLUMNS * sizeof(Half));
    _tile_dpbf16ps(0, 2, 3);
    _tile_loadd(4, from + PAIR * LANES, PAIR * COLUMNS * sizeof(Half));
    _tile_dpbf16ps(1, 2, 4);
  }
  Vector sums[2][TILE_ROWS];
  _tile_stored(0, sums[0], sizeof(Vector));
  _tile_stored(1, sums[1], sizeof(Vector));
  for (int64_t row = 0; row < rows; row++) {
    Vector total[2];
    for (int side = 0; side < 2; side++) {
      const Vector* parts = sums[side] + row * PARTS_OF_FLOAT;
      total[side] = parts[0] + (parts[1] + parts[2]);
    }
    std::memcpy(y + row * outputs, total, columns * sizeof(float));
  }
}

// As multiply in cpu_product.h. Returns false, having done nothing, if the system lends no tiles or they do not pay.
inline bool multiply_tiles(const float* x, const Half* packed, float* y, int64_t rows, int64_t inputs, int64_t outputs) {
  constexpr int64_t REQUEST = 0x1023, TILE_DATA = 18, GRAIN = 8;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool lent = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  if (rows == 1 || !lent) return false;
  const int64_t size = (inputs + DEPTH - 1) / DEPTH * DEPTH, row_size = PARTS_OF_FLOAT * size;
  const int64_t passes = (rows + MOST_TOGETHER - 1) / MOST_TOGETHER, together = (rows + passes - 1) / passes;
  std::vector<Half> digits(passes * together * row_size);  // further rows are zeros
  for (int64_t row = 0; row < rows; row++) write_digits(x + row * inputs, inputs, digits.data() + row * row_size, size);
  torch::stable::parallel_for(0, (outputs + COLUMNS - 1) / COLUMNS, GRAIN, [&](int64_t begin, int64_t end) {
    const Tiles tiles(together * PARTS_OF_FLOAT);
    for (int64_t block = begin; block < end; block++)
      for (int64_t row = 0; row < rows; row += together)
        tile_block(digits.data() + row * row_size, packed + block * size * COLUMNS, y + row * outputs + block * COLUMNS,
                   size, std::min(rows - row, together), outputs, std::min(outputs - block * COLUMNS, COLUMNS));
  });
  return true;
}
#endif
