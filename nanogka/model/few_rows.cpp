// Products of few rows with a matrix on a CPU: the matrix is fetched from memory once, by all threads.
//
// x (B, C) rows, weight (N, C), y (B, N). Sums are float32. No result depends on the number of threads. bfloat16 is
// uint16_t here. few_rows.py has it compiled and loaded.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "native.h"

namespace {

constexpr int64_t BLOCK = 64;       // outputs that are finished together
constexpr int64_t LANES = 16;       // rows together, and
constexpr int64_t OUTPUTS = 8;      // outputs, whose sums for all lanes stay in registers
constexpr int64_t PARTS = 64;       // features in a partial sum
constexpr int64_t ALONE = 1 << 14;  // weights that are not worth a second thread
typedef float Lanes __attribute__((vector_size(LANES * sizeof(float))));

// What is done with a sum.
struct Same {
    float operator()(float z) const { return z; }
};

struct Capped {  // cap · tanh(z / cap)
    float cap;
    float operator()(float z) const {
        float e = exponential(-2 * std::fabs(z) / cap);
        return std::copysign(cap * (1 - e) / (1 + e), z);
    }
};

// Of ROWS rows at most: the weights of an output times the features of each row.
template <int ROWS, class T, class Finish, class Y>
void few_rows(const T* x, const T* weight, int64_t rows, int64_t outputs, int64_t width, Finish finish, Y* y) {
    std::vector<float> features(ROWS * width, 0.0f);
    for (int64_t i = 0; i < rows * width; i++) features[i] = wide(x[i]);
#pragma omp parallel for schedule(static) if (outputs * width > ALONE)
    for (int64_t first = 0; first < outputs; first += BLOCK) {
        int64_t count = std::min(BLOCK, outputs - first);
        const float* row = features.data();
        float products[ROWS][BLOCK];
        for (int64_t n = 0; n < count; n++) {
            const T* mine = weight + (first + n) * width;
            float sums[ROWS] = {};
            for (int64_t c = 0; c < width; c++)
                for (int b = 0; b < ROWS; b++) sums[b] += wide(mine[c]) * row[b * width + c];
            for (int b = 0; b < ROWS; b++) products[b][n] = sums[b];
        }
        for (int64_t b = 0; b < std::min<int64_t>(rows, ROWS); b++)
            for (int64_t n = 0; n < count; n++) narrow(finish(products[b][n]), y + b * outputs + first + n);
    }
}

// Of LANES rows at a time: a weight times one feature of all of them.
template <class T, class Finish, class Y>
void many_rows(const T* x, const T* weight, int64_t rows, int64_t outputs, int64_t width, Finish finish, Y* y) {
    int64_t groups = (rows + LANES - 1) / LANES;
    std::vector<float> features(groups * width * LANES, 0.0f);  // (groups, C, LANES)
    for (int64_t b = 0; b < rows; b++)
        for (int64_t c = 0; c < width; c++)
            features[(b / LANES * width + c) * LANES + b % LANES] = wide(x[b * width + c]);
#pragma omp parallel for schedule(static) if (outputs * width > ALONE)
    for (int64_t first = 0; first < outputs; first += OUTPUTS) {
        int64_t count = std::min(OUTPUTS, outputs - first);
        std::vector<float> copy;
        const float* mine = reinterpret_cast<const float*>(weight + first * width);
        if (count < OUTPUTS || !std::is_same<T, float>::value) {
            copy.assign(OUTPUTS * width, 0.0f);
            for (int64_t i = 0; i < count * width; i++) copy[i] = wide(weight[first * width + i]);
            mine = copy.data();
        }
        for (int64_t group = 0; group < groups; group++) {
            Lanes sums[OUTPUTS] = {};
            for (int64_t start = 0; start < width; start += PARTS) {  // long sums in parts, which round less
                Lanes parts[OUTPUTS] = {};
                // The next outputs' weights: eight short rows at a time are more than the hardware foresees.
                for (int64_t n = 0; n < OUTPUTS && group == 0; n++)
                    for (int64_t c = start; c < std::min(start + PARTS, width); c += 64 / sizeof(T))
                        __builtin_prefetch(weight + (first + OUTPUTS + n) * width + c);
                for (int64_t c = start; c < std::min(start + PARTS, width); c++) {
                    Lanes feature;
                    std::memcpy(&feature, features.data() + (group * width + c) * LANES, sizeof feature);
                    for (int64_t n = 0; n < OUTPUTS; n++) parts[n] += mine[n * width + c] * feature;
                }
                for (int64_t n = 0; n < OUTPUTS; n++) sums[n] += parts[n];
            }
            float products[OUTPUTS * LANES];
            std::memcpy(products, sums, sizeof products);
            for (float& z : products) z = finish(z);
            for (int64_t b = group * LANES; b < std::min(rows, (group + 1) * LANES); b++)
                for (int64_t n = 0; n < count; n++)
                    narrow(products[n * LANES + b % LANES], y + b * outputs + first + n);
        }
    }
}

template <class T, class Finish, class Y>
StableIValue product(Input& x, Input& weight, Finish finish, int32_t dtype) {
    int64_t rows = x.size(0), width = x.size(1), outputs = weight.size(0);
    Output<Y> y({rows, outputs}, dtype);
    constexpr int64_t FEW = std::is_same<T, float>::value ? 4 : 8;  // found by measurement
    auto* function = rows == 1     ? few_rows<1, T, Finish, Y>
                     : rows == 2   ? few_rows<2, T, Finish, Y>
                     : rows <= 4   ? few_rows<4, T, Finish, Y>
                     : rows <= FEW ? few_rows<8, T, Finish, Y>
                                   : many_rows<T, Finish, Y>;
    function(x.contiguous<T>(), weight.contiguous<T>(), rows, outputs, width, finish, y.data());
    return y.release();
}

// (x, weight) -> y
void linear(StableIValue* stack, uint64_t, uint64_t) {
    Input x(stack[0]), weight(stack[1]);
    stack[0] = x.is_float32() ? product<float, Same, float>(x, weight, {}, x.dtype())
                        : product<uint16_t, Same, uint16_t>(x, weight, {}, x.dtype());
}

// (x, weight, cap) -> y in float32
void logits(StableIValue* stack, uint64_t, uint64_t) {
    Input x(stack[0]), weight(stack[1]);
    Capped capped{static_cast<float>(real(stack[2]))};
    stack[0] = x.is_float32() ? product<float, Capped, float>(x, weight, capped, aoti_torch_dtype_float32())
                        : product<uint16_t, Capped, float>(x, weight, capped, aoti_torch_dtype_float32());
}

}  // namespace

extern "C" int32_t register_operators() {
    return register_on_cpu({{"few_rows_linear_cpp", linear}, {"few_rows_logits_cpp", logits}});
}
