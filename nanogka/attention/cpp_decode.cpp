// Decoding attention of one new token a stream on a CPU: every byte kept is fetched from memory once.
//
// The arithmetic is that of triton_decode.py, block of slots by block of slots: logits of a block while it comes in, then
// its weighted sum while it is still in the core's own cache, with a running maximum a head. Slots are shared out in
// chunks of CHUNK, whatever the number of threads: results depend neither on it nor on the other streams.
//
// No C++ headers of torch: tensors come as pointers and strides (in elements), the features contiguous, so that a compiler
// needs a second and nothing but itself. bfloat16 is uint16_t here. cpp_decode.py compiles and calls it.
//
// Shapes: B streams, S slots, H heads, D features a head, N visits (blocks of slots), b = block.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t CHUNK = 256;
constexpr float NEVER = -FLT_MAX;  // the maximum of nothing; no infinity, whose differences are not numbers

inline float wide(float x) { return x; }

inline float wide(uint16_t x) {
    uint32_t bits = static_cast<uint32_t>(x) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

inline void narrow(float x, float* to) { *to = x; }

inline void narrow(float x, uint16_t* to) {  // to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    *to = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// e^x of x <= 0, to about one unit in the last place and at least 2^-126: 2^n · 2^f with |f| <= 1/2. Compilers turn a loop
// of it into vectors.
inline float exponential(float x) {
    float y = std::max(x * 1.44269504f, -126.0f);
    float n = std::nearbyint(y);
    float f = y - n;
    float p = 1.5403530e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return p * power;
}

// What a chunk of slots leaves: of each head the maximum of its logits, the sum of weights and the weighted sum (D).
struct Part {
    float* largest;
    float* weight;
    float* sums;
};

// Take a block's logits (H, count) into the parts of its heads: logits become weights, sums so far are scaled to match.
void weigh(float* logits, int64_t heads, int64_t count, int64_t width, Part part) {
    for (int64_t h = 0; h < heads; h++) {
        float* mine = logits + h * CHUNK;
        float top = part.largest[h];
        for (int64_t r = 0; r < count; r++) top = std::max(top, mine[r]);
        if (top > part.largest[h]) {
            float shrink = exponential(part.largest[h] - top);
            part.largest[h] = top;
            part.weight[h] *= shrink;
            for (int64_t d = 0; d < width; d++) part.sums[h * width + d] *= shrink;
        }
        float total = 0;
        for (int64_t r = 0; r < count; r++) {
            mine[r] = exponential(mine[r] - top);
            total += mine[r];
        }
        part.weight[h] += total;
    }
}

// y (H, D): the mean over the parts of one stream.
template <class T>
void combine(const float* parts, int64_t count, int64_t heads, int64_t width, T* y) {
    int64_t size = heads * (width + 2);
    for (int64_t h = 0; h < heads; h++) {
        float top = NEVER, total = 0;
        for (int64_t i = 0; i < count; i++) top = std::max(top, parts[i * size + h]);
        std::vector<float> mean(width, 0.0f);
        for (int64_t i = 0; i < count; i++) {
            const float* part = parts + i * size;
            float share = exponential(part[h] - top);
            total += share * part[heads + h];
            for (int64_t d = 0; d < width; d++) mean[d] += share * part[2 * heads + h * width + d];
        }
        for (int64_t d = 0; d < width; d++) narrow(mean[d] / total, y + h * width + d);
    }
}

// Run `chunk(stream, first slot, last slot + 1, part)` for all chunks of all streams, then combine their parts.
template <class T, class Chunk>
void share_out(int64_t batch, int64_t heads, int64_t width, int64_t slots, int64_t step, T* y, Chunk chunk) {
    int64_t chunks = (slots + step - 1) / step, size = heads * (width + 2);
    std::vector<float> parts(batch * chunks * size, 0.0f);
#pragma omp parallel for schedule(dynamic) if (batch * chunks > 1)
    for (int64_t task = 0; task < batch * chunks; task++) {
        float* mine = parts.data() + task * size;
        std::fill(mine, mine + heads, NEVER);
        int64_t stream = task / chunks, first = task % chunks * step;
        chunk(stream, first, std::min(first + step, slots), Part{mine, mine + heads, mine + 2 * heads});
    }
    for (int64_t b = 0; b < batch; b++)
        combine(parts.data() + b * chunks * size, chunks, heads, width, y + b * heads * width);
}

// Slots of one block that are `back` positions away from the query in one step, for all heads.
template <class T, int FIXED>
void take_turned(const T* u, int64_t stride_t, int64_t stride_h, int64_t count, const float* query, int64_t heads,
                 int64_t half_, const float* cos, const float* sin, float eps, float* logits, Part part) {
    const int64_t half = FIXED ? FIXED : half_;
    for (int64_t r = 0; r < count; r++) {
        for (int64_t h = 0; h < heads; h++) {
            const T *first = u + r * stride_t + h * stride_h, *second = first + half;
            const float *q_1 = query + h * 2 * half, *q_2 = q_1 + half;
            float product = 0, square = 0;
            for (int64_t d = 0; d < half; d++) {
                float a = wide(first[d]), b = wide(second[d]);
                product += a * q_1[d] + b * q_2[d];
                square += a * a + b * b;
            }
            logits[h * CHUNK + r] = product / std::sqrt(square / (2 * half) + eps);
        }
    }
    weigh(logits, heads, count, 2 * half, part);
    for (int64_t h = 0; h < heads; h++) {  // sums of a width known here stay in registers
        constexpr int64_t ROOM = FIXED ? FIXED : 1;
        float kept_1[ROOM], kept_2[ROOM];
        float *y_1 = part.sums + h * 2 * half, *y_2 = y_1 + half;
        if (FIXED) {
            std::memcpy(kept_1, y_1, sizeof kept_1);
            std::memcpy(kept_2, y_2, sizeof kept_2);
        }
        for (int64_t r = 0; r < count; r++) {
            const T *first = u + r * stride_t + h * stride_h, *second = first + half;
            const float *c = cos + r * half, *s = sin + r * half;
            float p = logits[h * CHUNK + r];
            float *to_1 = FIXED ? kept_1 : y_1, *to_2 = FIXED ? kept_2 : y_2;
            for (int64_t d = 0; d < half; d++) {
                float a = p * wide(first[d]), b = p * wide(second[d]);
                to_1[d] += a * c[d] - b * s[d];
                to_2[d] += b * c[d] + a * s[d];
            }
        }
        if (FIXED) {
            std::memcpy(y_1, kept_1, sizeof kept_1);
            std::memcpy(y_2, kept_2, sizeof kept_2);
        }
    }
}

template <class T, int FIXED>
void gaussian(const T* x, const T* u, const float* bandwidth, const int64_t* positions, const float* query_cos,
              const float* query_sin, const float* back_cos, const float* back_sin, T* y, int64_t batch, int64_t heads,
              int64_t width, int64_t slots, int64_t ring, int64_t block, int64_t rows, float eps, int64_t x_stride_b,
              int64_t x_stride_h, int64_t u_stride_b, int64_t u_stride_t, int64_t u_stride_h, int64_t positions_stride,
              int64_t table_stride) {
    const int64_t half = FIXED ? FIXED : width / 2;
    int64_t step = std::max<int64_t>(CHUNK / block, 1) * block;
    share_out(batch, heads, width, slots, step, y, [&](int64_t b, int64_t low, int64_t high, Part part) {
        int64_t position = std::max<int64_t>(positions[b * positions_stride], 0);
        int64_t newest = ring ? position % ring : position, filled = std::min(position + 1, slots);
        std::vector<float> query(heads * width), turned(heads * width), logits(heads * CHUNK);
        for (int64_t h = 0; h < heads; h++) {
            const T* mine = x + b * x_stride_b + h * x_stride_h;
            float square = 0;
            for (int64_t d = 0; d < width; d++) square += wide(mine[d]) * wide(mine[d]);
            float scale = 1 / (std::sqrt(square / width + eps) * bandwidth[h] * bandwidth[h]);
            for (int64_t d = 0; d < width; d++) query[h * width + d] = wide(mine[d]) * scale;
        }
        auto visit = [&](int64_t begin, int64_t end, int64_t row) {
            const float *cos = query_cos + b * table_stride + row * half, *sin = query_sin + b * table_stride + row * half;
            for (int64_t h = 0; h < heads; h++) {
                const float *q_1 = query.data() + h * width, *q_2 = q_1 + half;
                float *t_1 = turned.data() + h * width, *t_2 = t_1 + half;
                for (int64_t d = 0; d < half; d++) {
                    t_1[d] = q_1[d] * cos[d] + q_2[d] * sin[d];
                    t_2[d] = q_2[d] * cos[d] - q_1[d] * sin[d];
                }
            }
            for (int64_t from = begin; from < end; from += CHUNK) {
                int64_t phase = from % block;
                take_turned<T, FIXED>(u + b * u_stride_b + from * u_stride_t, u_stride_t, u_stride_h,
                                      std::min(CHUNK, end - from), turned.data(), heads, half, back_cos + phase * half,
                                      back_sin + phase * half, eps, logits.data(), part);
            }
        };
        for (int64_t start = low; start < std::min(high, filled); start += block) {
            int64_t end = std::min(start + block, filled);
            // In a ring the newest entry's block holds older ones too, behind it and at another distance.
            int64_t turn = ring && start <= newest && newest < start + block ? newest + 1 : end;
            visit(start, turn, start / block);
            if (turn < end) visit(turn, end, rows - 1);
        }
    });
}

template <class T>
void softmax(const T* q, const T* k, const T* v, const int64_t* positions, T* y, int64_t batch, int64_t heads,
             int64_t width, int64_t value_width, int64_t slots, float scale, int64_t q_stride_b, int64_t q_stride_h,
             int64_t k_stride_b, int64_t k_stride_t, int64_t k_stride_h, int64_t v_stride_b, int64_t v_stride_t,
             int64_t v_stride_h, int64_t positions_stride) {
    constexpr int64_t BLOCK = 32;  // slots whose keys and values lie in the core's own cache together
    share_out(batch, heads, value_width, slots, CHUNK, y, [&](int64_t b, int64_t low, int64_t high, Part part) {
        int64_t filled = std::min(std::max<int64_t>(positions[b * positions_stride], 0) + 1, slots);
        std::vector<float> query(heads * width), logits(heads * CHUNK);
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < width; d++)
                query[h * width + d] = wide(q[b * q_stride_b + h * q_stride_h + d]) * scale;
        for (int64_t start = low; start < std::min(high, filled); start += BLOCK) {
            int64_t count = std::min(BLOCK, std::min(high, filled) - start);
            for (int64_t r = 0; r < count; r++) {
                for (int64_t h = 0; h < heads; h++) {
                    const T* key = k + b * k_stride_b + (start + r) * k_stride_t + h * k_stride_h;
                    float product = 0;
                    for (int64_t d = 0; d < width; d++) product += wide(key[d]) * query[h * width + d];
                    logits[h * CHUNK + r] = product;
                }
            }
            weigh(logits.data(), heads, count, value_width, part);
            for (int64_t r = 0; r < count; r++) {
                for (int64_t h = 0; h < heads; h++) {
                    const T* value = v + b * v_stride_b + (start + r) * v_stride_t + h * v_stride_h;
                    float* sums = part.sums + h * value_width;
                    float p = logits[h * CHUNK + r];
                    for (int64_t d = 0; d < value_width; d++) sums[d] += p * wide(value[d]);
                }
            }
        }
    });
}

}  // namespace

#define GAUSSIAN_ARGUMENTS                                                                                             \
    x, u, bandwidth, positions, query_cos, query_sin, back_cos, back_sin, y, batch, heads, width, slots, ring, block,  \
        rows, eps, x_stride_b, x_stride_h, u_stride_b, u_stride_t, u_stride_h, positions_stride, table_stride

#define EXPORT(SUFFIX, T)                                                                                              \
    extern "C" void gaussian_##SUFFIX(                                                                                 \
        const T* x, const T* u, const float* bandwidth, const int64_t* positions, const float* query_cos,              \
        const float* query_sin, const float* back_cos, const float* back_sin, T* y, int64_t batch, int64_t heads,      \
        int64_t width, int64_t slots, int64_t ring, int64_t block, int64_t rows, float eps, int64_t x_stride_b,        \
        int64_t x_stride_h, int64_t u_stride_b, int64_t u_stride_t, int64_t u_stride_h, int64_t positions_stride,      \
        int64_t table_stride) {                                                                                        \
        (width == 128 ? gaussian<T, 64> : gaussian<T, 0>)(GAUSSIAN_ARGUMENTS);                                         \
    }                                                                                                                  \
    extern "C" void softmax_##SUFFIX(                                                                                  \
        const T* q, const T* k, const T* v, const int64_t* positions, T* y, int64_t batch, int64_t heads,              \
        int64_t width, int64_t value_width, int64_t slots, float scale, int64_t q_stride_b, int64_t q_stride_h,        \
        int64_t k_stride_b, int64_t k_stride_t, int64_t k_stride_h, int64_t v_stride_b, int64_t v_stride_t,            \
        int64_t v_stride_h, int64_t positions_stride) {                                                                \
        softmax(q, k, v, positions, y, batch, heads, width, value_width, slots, scale, q_stride_b, q_stride_h,         \
                k_stride_b, k_stride_t, k_stride_h, v_stride_b, v_stride_t, v_stride_h, positions_stride);             \
    }

EXPORT(float32, float)
EXPORT(bfloat16, uint16_t)
