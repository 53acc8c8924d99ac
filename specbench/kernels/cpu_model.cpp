// A forward pass of a Llama-like model over few new tokens, and a draft of several tokens: cpu_model.py describes it.
//
// One call computes a pass, so that nothing but the arithmetic takes time. Sums are float32, as PyTorch's are.

#include "cpu_attention.h"
#include "cpu_product.h"
#include "cpu_rows.h"

#include <cmath>
#include <vector>

namespace {

using Floats = std::vector<float>;

// The order of a layer's tensors, and of those of the model behind its layers; as in cpu_model.py. A bias may be null.
struct Layer {
  const float* input_norm;
  const void* qkv;
  const float *qkv_bias, *query_norm, *key_norm;
  const void* output;
  const float *output_bias, *inner_norm;
  const void *gate_up, *down;
  float *keys, *values;  // [requests, kv_heads], each as Memory has it
};

struct Model {
  int64_t num_layers, hidden, heads, kv_heads, head_dim, inner, vocabulary, embedded, capacity;
  int64_t weight_bytes;  // 4, 2 or 1, of the numbers of packed matrices
  double epsilon, scale;
  const Layer* layers;
  const float *embeddings, *norm;
  const void* unembeddings;
  const float *cos, *sin;  // [capacity, head_dim]
};

// A row of a pass: a token that is cached at `place` of its request. Its position is smaller if it is part of a tree.
struct Row {
  int64_t request, place, token, position;
  Sight sight;
};

Row row_of_chain(int64_t request, int64_t place, int64_t token) {
  return {request, place, token, place, {place + 1, place + 1, 0}};
}

void normalize(const float* x, const float* weight, float* y, int64_t size, double epsilon) {
  float lanes[16] = {}, square = 0;
  int64_t i = 0;
  for (; i + 16 <= size; i += 16)
    for (int64_t lane = 0; lane < 16; lane++) lanes[lane] += x[i + lane] * x[i + lane];
  for (; i < size; i++) square += x[i] * x[i];
  for (float lane : lanes) square += lane;
  const float factor = 1.0f / std::sqrt(square / size + float(epsilon));
  for (i = 0; i < size; i++) y[i] = weight[i] * (x[i] * factor);
}

void add(float* y, const float* x, int64_t size) {
  for (int64_t i = 0; i < size; i++) y[i] += x[i];
}

void rotate(float* x, const float* cos, const float* sin, int64_t size) {
  const int64_t half = size / 2;
  for (int64_t i = 0; i < half; i++) {
    const float left = x[i], right = x[i + half];
    x[i] = left * cos[i] - right * sin[i];
    x[i + half] = right * cos[i + half] + left * sin[i + half];
  }
}

// Whether tokens and places lie inside of the model's tables and its cache.
bool valid(const Model& model, const std::vector<Row>& rows) {
  return std::all_of(rows.begin(), rows.end(), [&](const Row& row) {
    return 0 <= row.token && row.token < model.embedded && 0 <= row.sight.tree && 0 <= row.place &&
           row.place < model.capacity;
  });
}

// Rows of one request that attend together.
constexpr int64_t PIECE = 8;
struct Piece {
  int64_t begin, end;
};

std::vector<Piece> pieces_of(const std::vector<Row>& rows) {
  std::vector<Piece> pieces;
  for (int64_t row = 0; row < int64_t(rows.size()); row++)
    if (row > 0 && rows[row].request == rows[row - 1].request && row - pieces.back().begin < PIECE)
      pieces.back().end++;
    else
      pieces.push_back({row, row + 1});
  return pieces;
}

// Writes the logits of some rows; those of all rows if `wanted` is empty. A null pointer has keys and values cached alone.
void pass(const Model& model, const std::vector<Row>& rows, const std::vector<int64_t>& wanted, float* logits) {
  const int64_t n = rows.size(), hidden = model.hidden, dim = model.head_dim, inner = model.inner;
  const int64_t own = model.heads * dim, shared = model.kv_heads * dim, joined = own + 2 * shared;
  thread_local Floats memory[5];  // kept, since a pass of a small model is short
  Floats &state = memory[0], &x = memory[1], &y = memory[2], &qkv = memory[3], &gate_up = memory[4];
  state.resize(n * hidden);
  x.resize(n * std::max(hidden, std::max(own, inner)));
  y.resize(n * hidden);
  qkv.resize(n * joined);
  gate_up.resize(n * 2 * inner);
  constexpr int64_t GRAIN = 8;  // pieces of a head that are worth a thread
  const std::vector<Piece> pieces = pieces_of(rows);
  auto memory_of = [&](const Layer& layer, int64_t request, int64_t kv_head) {
    const int64_t place = (request * model.kv_heads + kv_head) * filled_up(model.capacity);
    return Memory{layer.keys + place * dim, layer.values + place * filled_up(dim), dim, model.capacity};
  };
  for (int64_t row = 0; row < n; row++)
    std::copy_n(model.embeddings + rows[row].token * hidden, hidden, state.data() + row * hidden);
  auto normalize_all = [&](const float* weight) {
    for (int64_t row = 0; row < n; row++)
      normalize(state.data() + row * hidden, weight, x.data() + row * hidden, hidden, model.epsilon);
  };
  for (int64_t i = 0; i < model.num_layers; i++) {
    const Layer& layer = model.layers[i];
    normalize_all(layer.input_norm);
    multiply(x.data(), layer.qkv, model.weight_bytes, qkv.data(), n, hidden, joined);
    for (int64_t row = 0; row < n; row++) {
      float* its = qkv.data() + row * joined;
      const int64_t position = rows[row].position;
      if (layer.qkv_bias) add(its, layer.qkv_bias, joined);
      for (int64_t head = 0; head < model.heads + model.kv_heads; head++) {
        const float* norm = head < model.heads ? layer.query_norm : layer.key_norm;
        if (norm) normalize(its + head * dim, norm, its + head * dim, dim, model.epsilon);
        rotate(its + head * dim, model.cos + position * dim, model.sin + position * dim, dim);
      }
      for (int64_t head = 0; head < model.kv_heads; head++)
        memory_of(layer, rows[row].request, head)
            .write(rows[row].place, its + own + head * dim, its + own + shared + head * dim);
    }
    if (!logits && i + 1 == model.num_layers) return;  // all that later tokens read is written
    torch::stable::parallel_for(0, pieces.size() * model.kv_heads, GRAIN, [&](int64_t begin, int64_t end) {
      const int64_t group = model.heads / model.kv_heads, width = group * dim;  // queries of a row that share keys
      thread_local Floats queries, results, scores;
      thread_local std::vector<Sight> sights;
      queries.resize(PIECE * width);
      results.resize(PIECE * width);
      sights.resize(PIECE * group);
      for (int64_t i = begin; i < end; i++) {
        const Piece& piece = pieces[i / model.kv_heads];
        const int64_t kv_head = i % model.kv_heads, count = piece.end - piece.begin;
        for (int64_t row = 0; row < count; row++) {
          const float* its = qkv.data() + (piece.begin + row) * joined + kv_head * width;
          for (int64_t j = 0; j < width; j++) queries[row * width + j] = its[j] * float(model.scale);
          std::fill_n(sights.data() + row * group, group, rows[piece.begin + row].sight);
        }
        const int64_t longest = rows[piece.end - 1].place + 1;
        scores.resize(count * group * filled_up(longest));
        const int64_t after = std::min(i + 1, end - 1);
        attend(queries.data(), sights.data(), count * group, longest,
               memory_of(layer, rows[piece.begin].request, kv_head),
               memory_of(layer, rows[pieces[after / model.kv_heads].begin].request, after % model.kv_heads),
               scores.data(), results.data());
        for (int64_t row = 0; row < count; row++)
          std::copy_n(results.data() + row * width, width, x.data() + (piece.begin + row) * own + kv_head * width);
      }
    });
    multiply(x.data(), layer.output, model.weight_bytes, y.data(), n, own, hidden);
    for (int64_t row = 0; layer.output_bias && row < n; row++) add(y.data() + row * hidden, layer.output_bias, hidden);
    add(state.data(), y.data(), n * hidden);
    normalize_all(layer.inner_norm);
    multiply(x.data(), layer.gate_up, model.weight_bytes, gate_up.data(), n, hidden, 2 * inner);
    for (int64_t row = 0; row < n; row++) {
      const float *gate = gate_up.data() + row * 2 * inner, *up = gate + inner;
      for (int64_t j = 0; j < inner; j++) {
        const float small = small_exponential(-std::abs(gate[j]));
        x[row * inner + j] = gate[j] * ((gate[j] < 0 ? small : 1.0f) / (1.0f + small)) * up[j];
      }
    }
    multiply(x.data(), layer.down, model.weight_bytes, y.data(), n, inner, hidden);
    add(state.data(), y.data(), n * hidden);
  }
  const int64_t count = wanted.empty() ? n : wanted.size();
  for (int64_t i = 0; i < count; i++)
    normalize(state.data() + (wanted.empty() ? i : wanted[i]) * hidden, model.norm, x.data() + i * hidden, hidden,
              model.epsilon);
  multiply(x.data(), model.unembeddings, model.weight_bytes, logits, count, hidden, model.vocabulary);
}

}  // namespace

// The functions return false, having done nothing, if a token or a position is not valid.
extern "C" {

// How packed matrices lie: the columns of a block, and inputs of which bytes lie together.
int64_t specbench_columns() { return COLUMNS; }
int64_t specbench_group() { return GROUP; }

// Feeds `width` tokens [requests, width] behind `lengths` [requests] and writes the logits after each. They are a chain, or
// the last ones of a tree of `nodes` tokens, at most 64; `seen` [requests, width, nodes] are those on the path to each.
bool specbench_extend(const Model* model, const int64_t* tokens, const int64_t* lengths, int64_t requests, int64_t width,
                      const bool* seen, int64_t nodes, float* logits) {
  std::vector<Row> rows;
  const int64_t last = model->capacity - 1;  // of rows without a request, which may have no room
  for (int64_t request = 0; request < requests; request++)
    for (int64_t i = 0; i < width; i++) {
      Row row = row_of_chain(request, std::min(lengths[request] + i, last), tokens[request * width + i]);
      if (seen) {
        const bool* its = seen + (request * width + i) * nodes;
        row.sight.tree = std::min(lengths[request] + width - nodes, last);
        row.sight.path = uint64_t(1) << (nodes - width + i);
        for (int64_t node = 0; node < nodes; node++) row.sight.path |= uint64_t(its[node]) << node;
        row.position = std::min(row.sight.tree + __builtin_popcountll(row.sight.path) - 1, last);
      }
      rows.push_back(row);
    }
  return valid(*model, rows) && (pass(*model, rows, {}, logits), true);
}

// Feeds the tokens of a request from position `first` on, as part of a prompt.
bool specbench_feed(const Model* model, const int64_t* tokens, int64_t count, int64_t request, int64_t first) {
  std::vector<Row> rows;
  for (int64_t i = 0; i < count; i++) rows.push_back(row_of_chain(request, first + i, tokens[i]));
  return valid(*model, rows) && (pass(*model, rows, {}, nullptr), true);
}

// Feeds what is not cached of each text, at most two tokens, and drafts `counts` tokens behind it: `width` at most, each
// drawn from its logits [requests, width, vocabulary] by its uniform. Lowers the counts of drafts that end before, as
// core/draft_lengths.py says: behind a token less probable than `least`, and before one from an entropy above `most`.
bool specbench_draft(const Model* model, const int64_t* texts, int64_t stride, const int64_t* text_lengths,
                     int64_t* lengths, int64_t* counts, int64_t requests, int64_t width, const double* temperature,
                     const double* uniforms, int64_t uniforms_stride, double least, double most, int64_t* drafted,
                     float* logits, double* normalizers) {
  const int64_t vocabulary = model->vocabulary;
  Floats fresh(requests * vocabulary);
  std::vector<double> weights(vocabulary);
  for (int64_t i = 0; i < width; i++) {
    std::vector<Row> rows;
    std::vector<int64_t> wanted, owners;
    for (int64_t request = 0; request < requests; request++) {
      if (i > 0 && counts[request] <= i) continue;
      if (i > 0)
        rows.push_back(row_of_chain(request, lengths[request]++, drafted[request * width + i - 1]));
      else
        for (; lengths[request] < text_lengths[request]; lengths[request]++)
          rows.push_back(row_of_chain(request, lengths[request], texts[request * stride + lengths[request]]));
      if (rows.empty() || rows.back().request != request) continue;  // a row without a request
      wanted.push_back(rows.size() - 1);
      owners.push_back(request);
    }
    if (rows.empty()) break;
    if (!valid(*model, rows)) return false;
    pass(*model, rows, wanted, fresh.data());
    for (size_t j = 0; j < owners.size(); j++) {
      const int64_t request = owners[j], at = request * width + i;
      const float* its = fresh.data() + j * vocabulary;
      std::copy_n(its, vocabulary, logits + at * vocabulary);
      const Drawn drawn = draw_one(its, vocabulary, temperature[request], -INFINITY,
                                   uniforms + request * uniforms_stride + i, weights.data());
      normalizers[at] = drawn.normalizer;
      drafted[at] = std::max<int64_t>(drawn.token, 0);  // a row with NaN has no token to feed
      const double scale = temperature[request] > 0 ? temperature[request] : 1.0;
      if (most < INFINITY && entropy(its, vocabulary, scale, drawn.normalizer) > most)
        counts[request] = std::min(counts[request], i);
      else if (least > 0 && !(exponential(its[drafted[at]] / scale - drawn.normalizer) >= least))
        counts[request] = std::min(counts[request], i + 1);
    }
  }
  return true;
}
}
