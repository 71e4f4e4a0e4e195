// Decoding attention of one new token a stream on a CPU: every byte kept is fetched from memory once.
//
// The arithmetic is that of triton_decode.py. Slots are shared out in chunks: a chunk's logits while it comes in, then
// its weighted sum while it is still in the core's own cache. Their size does not depend on the number of threads or
// streams, and hence no result does.
//
// No C++ headers of torch: tensors come as pointers and strides (in elements), the features contiguous, so that a
// compiler needs seconds and nothing but itself. bfloat16 is uint16_t here. cpp_decode.py compiles and calls it.
//
// Shapes: B streams, S slots, H heads, D features a head, N visits (blocks of slots), b = block.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t CHUNK = 256;          // slots in a chunk at most, and in a block
constexpr int64_t OWN_CACHE = 1 << 19;  // bytes of a chunk, if they hold a block
constexpr float NEVER = -FLT_MAX;       // the maximum of nothing; no infinity, whose differences are not numbers

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

// e^x of x <= 0, to about one unit in the last place and at least 2^-126: 2^n · 2^f with |f| <= 1/2. Compilers turn a
// loop of it into vectors.
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

// Take logits (H, count) of further slots into the parts of their heads: logits become weights, sums so far are scaled
// to match.
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

// Products of slots u (count, H, D) with the queries (H, D), over the norms of the slots: logits (H, CHUNK).
template <class T, int FIXED>
void products(const T* u, int64_t stride_t, int64_t stride_h, int64_t count, const float* query, int64_t heads,
              int64_t any_half, float eps, float* logits) {
    const int64_t half = FIXED ? FIXED : any_half;
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
}

// Add the weighted sum of slots u (count, H, D) to `sums` (H, D): summed by phase, then turned back by it.
template <class T, int FIXED>
void add_by_phase(const T* u, int64_t stride_t, int64_t stride_h, int64_t count, const float* weights, int64_t heads,
                  int64_t any_half, int64_t block, const float* cos, const float* sin, float* sums) {
    const int64_t half = FIXED ? FIXED : any_half;
    float fixed[4 * (FIXED ? FIXED : 1)];  // of a width known here it stays in registers
    std::vector<float> any(FIXED ? 0 : 4 * half);
    float *total_1 = FIXED ? fixed : any.data(), *total_2 = total_1 + half;
    float *phase_1 = total_2 + half, *phase_2 = phase_1 + half;
    for (int64_t h = 0; h < heads; h++) {
        float* mine = sums + h * 2 * half;
        for (int64_t d = 0; d < 2 * half; d++) total_1[d] = mine[d];
        for (int64_t r = 0; r < std::min(block, count); r++) {
            for (int64_t d = 0; d < 2 * half; d++) phase_1[d] = 0;
            for (int64_t slot = r; slot < count; slot += block) {
                const T *first = u + slot * stride_t + h * stride_h, *second = first + half;
                float p = weights[h * CHUNK + slot];
                for (int64_t d = 0; d < half; d++) {
                    phase_1[d] += p * wide(first[d]);
                    phase_2[d] += p * wide(second[d]);
                }
            }
            const float *c = cos + r * half, *s = sin + r * half;
            for (int64_t d = 0; d < half; d++) {
                total_1[d] += phase_1[d] * c[d] - phase_2[d] * s[d];
                total_2[d] += phase_2[d] * c[d] + phase_1[d] * s[d];
            }
        }
        for (int64_t d = 0; d < 2 * half; d++) mine[d] = total_1[d];
    }
}

template <class T, int FIXED>
void gaussian(const T* x, const T* u, const float* bandwidth, const int64_t* positions, const float* query_cos,
              const float* query_sin, const float* back_cos, const float* back_sin, T* y, int64_t batch, int64_t heads,
              int64_t width, int64_t slots, int64_t ring, int64_t block, int64_t rows, float eps, int64_t x_stride_b,
              int64_t x_stride_h, int64_t u_stride_b, int64_t u_stride_t, int64_t u_stride_h, int64_t positions_stride,
              int64_t table_stride) {
    const int64_t half = FIXED ? FIXED : width / 2;
    int64_t fit = std::min<int64_t>(CHUNK, OWN_CACHE / (heads * width * sizeof(T)));
    int64_t step = std::max<int64_t>(fit / block, 1) * block;
    share_out(batch, heads, width, slots, step, y, [&](int64_t b, int64_t low, int64_t high, Part part) {
        int64_t position = std::max<int64_t>(positions[b * positions_stride], 0);
        int64_t newest = ring ? position % ring : position;
        high = std::min({high, position + 1, slots});
        if (low >= high) return;
        std::vector<float> query(heads * width), turned(heads * width), logits(heads * CHUNK);
        for (int64_t h = 0; h < heads; h++) {
            const T* mine = x + b * x_stride_b + h * x_stride_h;
            float square = 0;
            for (int64_t d = 0; d < width; d++) square += wide(mine[d]) * wide(mine[d]);
            float scale = 1 / (std::sqrt(square / width + eps) * bandwidth[h] * bandwidth[h]);
            for (int64_t d = 0; d < width; d++) query[h * width + d] = wide(mine[d]) * scale;
        }
        auto visit = [&](int64_t begin, int64_t end, int64_t row) {
            const float *c = query_cos + b * table_stride + row * half, *s = query_sin + b * table_stride + row * half;
            for (int64_t h = 0; h < heads; h++) {
                const float *q_1 = query.data() + h * width, *q_2 = q_1 + half;
                float *t_1 = turned.data() + h * width, *t_2 = t_1 + half;
                for (int64_t d = 0; d < half; d++) {
                    t_1[d] = q_1[d] * c[d] + q_2[d] * s[d];
                    t_2[d] = q_2[d] * c[d] - q_1[d] * s[d];
                }
            }
            products<T, FIXED>(u + b * u_stride_b + begin * u_stride_t, u_stride_t, u_stride_h, end - begin,
                               turned.data(), heads, half, eps, logits.data() + begin - low);
        };
        for (int64_t start = low; start < high; start += block) {
            int64_t end = std::min(start + block, high);
            // In a ring the newest entry's block holds older ones too, behind it and at another distance.
            int64_t turn = ring && start <= newest && newest < end ? newest + 1 : end;
            visit(start, turn, start / block);
            if (turn < end) visit(turn, end, rows - 1);
        }
        weigh(logits.data(), heads, high - low, width, part);
        add_by_phase<T, FIXED>(u + b * u_stride_b + low * u_stride_t, u_stride_t, u_stride_h, high - low, logits.data(),
                               heads, half, block, back_cos, back_sin, part.sums);
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
