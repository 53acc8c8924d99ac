// Products of a few rows with a matrix of bytes by dot products of whole numbers, on processors that have them (VNNI).
//
// Each number of a row becomes DIGITS digits of base 256, in units so small that the largest one just fits. Sums of digits
// times weights are exact, and rounded once. The instruction multiplies unsigned bytes with signed ones: weights have 128
// added, which the sums take back in advance.

#pragma once

#include "cpu_vectors.h"

#if !defined(__AVX512VNNI__)
constexpr int64_t GROUP = 1;
#else
constexpr int64_t GROUP = 4;  // inputs whose weights lie together, for each column

#include <cmath>
#include <vector>

constexpr int DIGITS = 4;

// The digits of a row, and the number of which it is whole multiples.
struct Digits {
  std::vector<int32_t> groups[DIGITS];  // a digit of GROUP inputs in each
  std::vector<uint32_t> memory;
  int32_t sums[DIGITS];
  float unit;

  void take(const float* x, int64_t inputs) {
    constexpr uint32_t HIGHEST = 127u << 24, MIDDLE = 0x80808080u;
    uint32_t largest = 0;  // the bits of numbers without a sign are in their order
    for (int64_t i = 0; i < inputs; i++) largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
    unit = std::bit_cast<float>(largest) / HIGHEST;  // not finite if a number of the row is not
    const float scale = unit > 1e-37f ? 1.0f / unit : 0.0f;  // a row of smaller numbers counts as 0
    const int64_t size = (inputs + GROUP - 1) / GROUP * GROUP;
    memory.assign(size, MIDDLE);
    uint32_t* __restrict whole = memory.data();
    for (int64_t i = 0; i < inputs; i++) whole[i] = uint32_t(int32_t(std::nearbyint(x[i] * scale))) + MIDDLE;
    for (int digit = 0; digit < DIGITS; digit++) {
      groups[digit].resize(size / GROUP);
      int8_t* __restrict its = reinterpret_cast<int8_t*>(groups[digit].data());
      int32_t sum = 0;
      for (int64_t i = 0; i < size; i++) {
        its[i] = int8_t((whole[i] >> 8 * digit) ^ 128);
        sum += its[i];
      }
      sums[digit] = sum;
    }
  }
};

// One block of columns of ROW_COUNT rows, with PARTS sums a number.
template <int ROW_COUNT, int PARTS>
void whole_block(const Digits* rows, const int8_t* weight, float* y, int64_t groups, int64_t outputs, int64_t columns) {
  __m512i sums[PARTS][ROW_COUNT][DIGITS][2];
  for (int part = 0; part < PARTS; part++)
    for (int row = 0; row < ROW_COUNT; row++)
      for (int digit = 0; digit < DIGITS; digit++)
        for (__m512i& sum : sums[part][row][digit]) sum = _mm512_set1_epi32(part == 0 ? -128 * rows[row].sums[digit] : 0);
  auto add = [&](int64_t k, int part) {
    const int8_t* from = weight + k * GROUP * COLUMNS;
    __m512i weights[2];
    for (int side = 0; side < 2; side++) {
      __builtin_prefetch(from + side * GROUP * LANES + AHEAD);
      weights[side] = load_as<__m512i>(from + side * GROUP * LANES);
    }
    for (int row = 0; row < ROW_COUNT; row++)
      for (int digit = 0; digit < DIGITS; digit++) {
        const __m512i digits = _mm512_set1_epi32(rows[row].groups[digit][k]);
        for (int side = 0; side < 2; side++)
          sums[part][row][digit][side] = _mm512_dpbusd_epi32(sums[part][row][digit][side], weights[side], digits);
      }
  };
  int64_t k = 0;
  for (; k + PARTS <= groups; k += PARTS)
    for (int part = 0; part < PARTS; part++) add(k + part, part);
  for (; k < groups; k++) add(k, 0);
  for (int row = 0; row < ROW_COUNT; row++) {
    Vector total[2] = {};
    for (int side = 0; side < 2; side++) {
      for (int digit = DIGITS - 1; digit >= 0; digit--) {
        Integers sum = {};
        for (int part = 0; part < PARTS; part++) sum += std::bit_cast<Integers>(sums[part][row][digit][side]);
        total[side] = total[side] * 256.0f + __builtin_convertvector(sum, Vector);
      }
      total[side] *= rows[row].unit * load_as<Vector>(weight + groups * GROUP * COLUMNS + side * sizeof(Vector));
    }
    store(total, y + row * outputs, columns);
  }
}

inline void multiply(const float* x, const int8_t* packed, float* y, int64_t rows, int64_t inputs, int64_t outputs) {
  constexpr int64_t MOST = 3;  // rows: 24 of 32 registers hold sums
  constexpr decltype(&whole_block<1, 1>) BLOCKS[] = {nullptr, whole_block<1, 2>, whole_block<2, 1>, whole_block<MOST, 1>};
  const int64_t groups = (inputs + GROUP - 1) / GROUP, block_size = (groups * GROUP + sizeof(float)) * COLUMNS;
  thread_local std::vector<Digits> memory;  // kept, since a draft takes hundreds of small products
  if (int64_t(memory.size()) < rows) memory.resize(rows);
  const std::vector<Digits>& digits = memory;  // of this thread, for others too
  for (int64_t row = 0; row < rows; row++) memory[row].take(x + row * inputs, inputs);
  for_blocks(rows, MOST, outputs, [&](int64_t block, int64_t row, int64_t count, int64_t columns) {
    BLOCKS[count](digits.data() + row, packed + block * block_size, y + row * outputs + block * COLUMNS, groups, outputs,
                  columns);
  });
}
#endif
