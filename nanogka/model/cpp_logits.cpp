// Logits of few hidden states on a CPU: the matrix of all tokens is fetched from memory once, by all threads.
//
// B rows of hidden states, V tokens, C features. Sums are float32. No result depends on the number of threads. bfloat16
// is uint16_t here. logits.py has it compiled and loaded.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "native.h"

namespace {

constexpr int64_t BLOCK = 64;  // tokens whose logits are capped together
constexpr int64_t LANES = 16;  // rows of hidden states together
constexpr int64_t TOKENS = 8;  // tokens together, whose sums for all lanes stay in registers
constexpr int64_t PARTS = 64;  // features in a partial sum
typedef float Lanes __attribute__((vector_size(LANES * sizeof(float))));

// cap · tanh(z / cap).
inline float capped(float z, float cap) {
    float e = exponential(-2 * std::fabs(z) / cap);
    return std::copysign(cap * (1 - e) / (1 + e), z);
}

// Of ROWS rows at most, a token's weights times the features of each row.
template <class T, int ROWS>
void few_rows(const T* x, const T* weight, int64_t rows, int64_t tokens, int64_t width, float cap, float* y) {
    std::vector<float> hidden(ROWS * width, 0.0f);
    for (int64_t i = 0; i < rows * width; i++) hidden[i] = wide(x[i]);
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < tokens; first += BLOCK) {
        int64_t count = std::min(BLOCK, tokens - first);
        const float* h = hidden.data();
        float logits[ROWS][BLOCK];
        for (int64_t v = 0; v < count; v++) {
            const T* mine = weight + (first + v) * width;
            float sums[ROWS] = {};
            for (int64_t c = 0; c < width; c++)
                for (int b = 0; b < ROWS; b++) sums[b] += wide(mine[c]) * h[b * width + c];
            for (int b = 0; b < ROWS; b++) logits[b][v] = sums[b];
        }
        for (int64_t b = 0; b < rows; b++)
            for (int64_t v = 0; v < count; v++) y[b * tokens + first + v] = capped(logits[b][v], cap);
    }
}

// Of LANES rows at a time, a weight times one feature of all of them.
template <class T>
void many_rows(const T* x, const T* weight, int64_t rows, int64_t tokens, int64_t width, float cap, float* y) {
    int64_t groups = (rows + LANES - 1) / LANES;
    std::vector<float> hidden(groups * width * LANES, 0.0f);  // (groups, C, LANES)
    for (int64_t b = 0; b < rows; b++)
        for (int64_t c = 0; c < width; c++)
            hidden[(b / LANES * width + c) * LANES + b % LANES] = wide(x[b * width + c]);
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < tokens; first += TOKENS) {
        int64_t count = std::min(TOKENS, tokens - first);
        std::vector<float> copy;
        const float* mine = reinterpret_cast<const float*>(weight + first * width);
        if (count < TOKENS || !std::is_same<T, float>::value) {
            copy.assign(TOKENS * width, 0.0f);
            for (int64_t i = 0; i < count * width; i++) copy[i] = wide(weight[first * width + i]);
            mine = copy.data();
        }
        for (int64_t group = 0; group < groups; group++) {
            Lanes sums[TOKENS] = {};
            for (int64_t start = 0; start < width; start += PARTS) {  // long sums in parts, which round less
                Lanes parts[TOKENS] = {};
                for (int64_t c = start; c < std::min(start + PARTS, width); c++) {
                    Lanes feature;
                    std::memcpy(&feature, hidden.data() + (group * width + c) * LANES, sizeof feature);
                    for (int64_t v = 0; v < TOKENS; v++) parts[v] += mine[v * width + c] * feature;
                }
                for (int64_t v = 0; v < TOKENS; v++) sums[v] += parts[v];
            }
            float logits[TOKENS * LANES];
            std::memcpy(logits, sums, sizeof logits);
            for (float& z : logits) z = capped(z, cap);
            for (int64_t b = group * LANES; b < std::min(rows, (group + 1) * LANES); b++)
                for (int64_t v = 0; v < count; v++) y[b * tokens + first + v] = logits[v * LANES + b % LANES];
        }
    }
}

// (x, weight, cap) -> y
template <class T>
void call(StableIValue* stack, Input& x) {
    Input weight(stack[1]);
    float cap = real(stack[2]);
    int64_t rows = x.size(0), width = x.size(1), tokens = weight.size(0);
    Output<float> y({rows, tokens}, aoti_torch_dtype_float32());
    const T *hidden = x.contiguous<T>(), *matrix = weight.contiguous<T>();
    auto* function = rows == 1   ? few_rows<T, 1>
                     : rows == 2 ? few_rows<T, 2>
                     : rows <= 4 ? few_rows<T, 4>
                     : rows <= 8 ? few_rows<T, 8>
                                 : many_rows<T>;
    function(hidden, matrix, rows, tokens, width, cap, y.data());
    stack[0] = y.release();
}

void boxed(StableIValue* stack, uint64_t, uint64_t) {
    Input x(stack[0]);
    x.wide() ? call<float>(stack, x) : call<uint16_t>(stack, x);
}

}  // namespace

extern "C" int32_t register_operators() { return register_on_cpu({{"capped_logits_cpp", boxed}}); }
