// Decoding attention of one new token a stream on a CPU: every byte kept is fetched from memory once.
//
// The arithmetic is that of triton_decode.py. Slots are shared out in chunks: a chunk's logits while it comes in, then
// its weighted sum while it is still in the core's own cache. Their size does not depend on the number of threads or
// streams, and hence no result does.
//
// bfloat16 is uint16_t here. cpp_decode.py has it compiled and loaded.
//
// Shapes: B streams, S slots, H heads, D features a head, N visits (blocks of slots), b = block. Strides in elements.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <vector>

#include "native.h"

namespace {

constexpr int64_t CHUNK = 256;          // slots in a chunk at most, and in a block
constexpr int64_t OWN_CACHE = 1 << 19;  // bytes of a chunk, if they hold a block
constexpr float NEVER = -FLT_MAX;       // the maximum of nothing; no infinity, whose differences are not numbers

// Of each slot a vector for each head, its features contiguous.
template <class T>
struct Slots {
    const T* data;
    int64_t stride_b, stride_t, stride_h;

    Slots at(int64_t stream, int64_t slot) const {
        return {data + stream * stride_b + slot * stride_t, stride_b, stride_t, stride_h};
    }
    const T* head(int64_t slot, int64_t h) const { return data + slot * stride_t + h * stride_h; }
};

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
void products(Slots<T> u, int64_t count, const float* query, int64_t heads, int64_t any_half, float eps,
              float* logits) {
    const int64_t half = FIXED ? FIXED : any_half;
    for (int64_t r = 0; r < count; r++) {
        for (int64_t h = 0; h < heads; h++) {
            const T *first = u.head(r, h), *second = first + half;
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

// Add the weighted sum of slots u (count, H, D), turned back by their phases, to `sums` (H, D). With R the turn of one
// phase and s_r the sum at phase r, that is s_0 + R⁻¹ (s_1 + R⁻¹ (s_2 + …)); cos and sin (D / 2) are R's.
template <class T, int FIXED>
void add_turned_back(Slots<T> u, int64_t count, const float* weights, int64_t heads, int64_t any_half, int64_t block,
                     const float* cos, const float* sin, float* sums) {
    const int64_t half = FIXED ? FIXED : any_half;
    float fixed[4 * (FIXED ? FIXED : 1)];  // of a width known here it stays in registers
    std::vector<float> any(FIXED ? 0 : 4 * half);
    float *total_1 = FIXED ? fixed : any.data(), *total_2 = total_1 + half;
    float *turned_1 = total_2 + half, *turned_2 = turned_1 + half;
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t d = 0; d < 2 * half; d++) total_1[d] = 0;
        for (int64_t r = std::min(block, count) - 1; r >= 0; r--) {
            for (int64_t d = 0; d < half; d++) {
                turned_1[d] = total_1[d] * cos[d] - total_2[d] * sin[d];
                turned_2[d] = total_2[d] * cos[d] + total_1[d] * sin[d];
            }
            for (int64_t slot = r; slot < count; slot += block) {
                const T *first = u.head(slot, h), *second = first + half;
                float p = weights[h * CHUNK + slot];
                for (int64_t d = 0; d < half; d++) {
                    turned_1[d] += p * wide(first[d]);
                    turned_2[d] += p * wide(second[d]);
                }
            }
            for (int64_t d = 0; d < 2 * half; d++) total_1[d] = turned_1[d];
        }
        for (int64_t d = 0; d < 2 * half; d++) sums[h * 2 * half + d] += total_1[d];
    }
}

// Rotations of the queries, float32: cos and sin (B, N, D / 2), one for each block of slots. In a ring the last is for
// the older entries of the block in which the newest lies. stride_b is 0 where all streams are at one position.
struct Rotations {
    const float *cos, *sin;
    int64_t stride_b, rows;
};

template <class T, int FIXED>
void gaussian(Slots<T> x, Slots<T> u, const float* bandwidth, const int64_t* positions, const float* frequencies,
              Rotations rotations, T* y, int64_t batch, int64_t heads, int64_t width,
              int64_t slots, int64_t block, int64_t ring, float eps) {
    const int64_t half = FIXED ? FIXED : width / 2;
    if (slots < ring) ring = 0;  // it has not gone round, nor can it
    int64_t fit = std::min<int64_t>(CHUNK, OWN_CACHE / (heads * width * sizeof(T)));
    int64_t step = std::max<int64_t>(fit / block, 1) * block;
    std::vector<float> cos(half), sin(half);  // of one phase
    for (int64_t d = 0; d < half; d++) {
        cos[d] = std::cos(static_cast<double>(frequencies[d]));
        sin[d] = std::sin(static_cast<double>(frequencies[d]));
    }
    share_out(batch, heads, width, slots, step, y, [&](int64_t b, int64_t low, int64_t high, Part part) {
        int64_t position = std::max<int64_t>(positions[b], 0);
        int64_t newest = ring ? position % ring : position;
        high = std::min({high, position + 1, slots});
        if (low >= high) return;
        std::vector<float> query(heads * width), turned(heads * width), logits(heads * CHUNK);
        for (int64_t h = 0; h < heads; h++) {
            const T* mine = x.at(b, 0).head(0, h);
            float square = 0;
            for (int64_t d = 0; d < width; d++) square += wide(mine[d]) * wide(mine[d]);
            float scale = 1 / (std::sqrt(square / width + eps) * bandwidth[h] * bandwidth[h]);
            for (int64_t d = 0; d < width; d++) query[h * width + d] = wide(mine[d]) * scale;
        }
        auto visit = [&](int64_t begin, int64_t end, int64_t row) {
            const float *c = rotations.cos + b * rotations.stride_b + row * half;
            const float *s = rotations.sin + b * rotations.stride_b + row * half;
            for (int64_t h = 0; h < heads; h++) {
                const float *q_1 = query.data() + h * width, *q_2 = q_1 + half;
                float *t_1 = turned.data() + h * width, *t_2 = t_1 + half;
                for (int64_t d = 0; d < half; d++) {
                    t_1[d] = q_1[d] * c[d] + q_2[d] * s[d];
                    t_2[d] = q_2[d] * c[d] - q_1[d] * s[d];
                }
            }
            products<T, FIXED>(u.at(b, begin), end - begin, turned.data(), heads, half, eps,
                               logits.data() + begin - low);
        };
        for (int64_t start = low; start < high; start += block) {
            int64_t end = std::min(start + block, high);
            // In a ring the newest entry's block holds older ones too, behind it and at another distance.
            int64_t turn = ring && start <= newest && newest < end ? newest + 1 : end;
            visit(start, turn, start / block);
            if (turn < end) visit(turn, end, rotations.rows - 1);
        }
        weigh(logits.data(), heads, high - low, width, part);
        add_turned_back<T, FIXED>(u.at(b, low), high - low, logits.data(), heads, half, block, cos.data(), sin.data(),
                                  part.sums);
    });
}

template <class T>
void softmax(Slots<T> q, Slots<T> k, Slots<T> v, const int64_t* positions, T* y, int64_t batch,
             int64_t heads, int64_t width, int64_t value_width, int64_t slots, float scale) {
    constexpr int64_t BLOCK = 32;  // slots whose keys and values lie in the core's own cache together
    share_out(batch, heads, value_width, slots, CHUNK, y, [&](int64_t b, int64_t low, int64_t high, Part part) {
        int64_t filled = std::min(std::max<int64_t>(positions[b], 0) + 1, slots);
        std::vector<float> query(heads * width), logits(heads * CHUNK);
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < width; d++) query[h * width + d] = wide(q.at(b, 0).head(0, h)[d]) * scale;
        for (int64_t start = low; start < std::min(high, filled); start += BLOCK) {
            int64_t count = std::min(BLOCK, std::min(high, filled) - start);
            Slots<T> keys = k.at(b, start), values = v.at(b, start);
            for (int64_t r = 0; r < count; r++) {
                for (int64_t h = 0; h < heads; h++) {
                    const T* key = keys.head(r, h);
                    float product = 0;
                    for (int64_t d = 0; d < width; d++) product += wide(key[d]) * query[h * width + d];
                    logits[h * CHUNK + r] = product;
                }
            }
            weigh(logits.data(), heads, count, value_width, part);
            for (int64_t r = 0; r < count; r++) {
                for (int64_t h = 0; h < heads; h++) {
                    const T* value = values.head(r, h);
                    float* sums = part.sums + h * value_width;
                    float p = logits[h * CHUNK + r];
                    for (int64_t d = 0; d < value_width; d++) sums[d] += p * wide(value[d]);
                }
            }
        }
    });
}

// --- As operators of torch -------------------------------------------------------------------------------------------

// (B, S, H, D), or (B, H, D) with S = 1.
template <class T>
Slots<T> slots(Input& tensor) {
    const T* data = tensor.rows<T>();
    bool one = tensor.dimensions() == 3;
    return {data, tensor.stride(0), one ? 0 : tensor.stride(1), tensor.stride(one ? 1 : 2)};
}

// (x, u, bandwidth, positions, frequencies, query_cos, query_sin, block, ring, eps) -> y
template <class T>
void call_gaussian(StableIValue* stack, Input& x) {
    Input u(stack[1]), bandwidth(stack[2]), positions(stack[3]), frequencies(stack[4]), cos(stack[5]), sin(stack[6]);
    int64_t batch = x.size(0), heads = x.size(1), width = x.size(2);
    Rotations rotations{cos.contiguous<float>(), sin.contiguous<float>(), 0, cos.size(1)};
    if (cos.size(0) > 1) rotations.stride_b = rotations.rows * width / 2;
    Output<T> y({batch, heads, width}, x.dtype());
    (width == 128 ? gaussian<T, 64> : gaussian<T, 0>)(
        slots<T>(x), slots<T>(u), bandwidth.contiguous<float>(), positions.contiguous<int64_t>(),
        frequencies.contiguous<float>(), rotations, y.data(), batch, heads, width,
        u.size(1), integer(stack[7]), integer(stack[8]), real(stack[9]));
    stack[0] = y.release();
}

// (q, k, v, positions, scale) -> y
template <class T>
void call_softmax(StableIValue* stack, Input& q) {
    Input k(stack[1]), v(stack[2]), positions(stack[3]);
    int64_t batch = q.size(0), heads = q.size(1), width = q.size(2), value_width = v.size(3);
    Output<T> y({batch, heads, value_width}, q.dtype());
    softmax(slots<T>(q), slots<T>(k), slots<T>(v), positions.contiguous<int64_t>(), y.data(), batch, heads, width,
            value_width, k.size(1), real(stack[4]));
    stack[0] = y.release();
}

void boxed_gaussian(StableIValue* stack, uint64_t, uint64_t) {
    Input x(stack[0]);
    x.is_float32() ? call_gaussian<float>(stack, x) : call_gaussian<uint16_t>(stack, x);
}

void boxed_softmax(StableIValue* stack, uint64_t, uint64_t) {
    Input q(stack[0]);
    q.is_float32() ? call_softmax<float>(stack, q) : call_softmax<uint16_t>(stack, q);
}

}  // namespace

extern "C" int32_t register_operators() {
    return register_on_cpu({{"decode_gaussian_cpp", boxed_gaussian}, {"decode_softmax_cpp", boxed_softmax}});
}
