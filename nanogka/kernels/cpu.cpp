// Decoding on a CPU: attention of one new token per row over its cache, and products of few rows with a matrix.
//
// Every byte of a cache or matrix is fetched from memory once. The slots of a cache are shared out in chunks; a block
// of slots is small enough to stay in the core's own cache between its logits and its weighted sum. Chunks do not
// depend on the number of threads or rows, and hence no result does. Sums are float32.
//
// Plain functions of pointers, sizes and strides (in elements), called and checked by cpu.py. bfloat16 is uint16_t;
// `bfloat16` says whether untyped pointers lead to it, or to float. Features are contiguous.
//
// Shapes: B rows, S slots, H heads, D features per head.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t CHUNK = 256;     // slots of one task
constexpr int64_t BLOCK = 64;      // slots whose logits are known before they are summed
constexpr int64_t GROUP = 8;       // slots of one head after another: memory is read nearly in order
constexpr int64_t AHEAD = 32;      // slots: how far ahead of its use a slot is asked for from memory
constexpr float NEG_MAX = -FLT_MAX;  // identity of max; finite because inf − inf is NaN

inline float load(float x) { return x; }

inline float load(uint16_t x) {
    uint32_t bits = static_cast<uint32_t>(x) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
}

inline void store(float x, float* to) { *to = x; }

inline void store(float x, uint16_t* to) {  // to nearest, ties to even; NaN stays NaN
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bool nan = (bits & 0x7fffffff) > 0x7f800000;
    *to = static_cast<uint16_t>(nan ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
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

// (B, S, H, D), D contiguous.
template <class T>
struct Cache {
    const T* data;
    int64_t stride_b, stride_s, stride_h;

    const T* at(int64_t b, int64_t slot, int64_t h) const { return data + b * stride_b + slot * stride_s + h * stride_h; }
};

template <class T>
inline void prefetch(const T* data, int64_t width) {
    for (int64_t d = 0; d < width; d += 64 / sizeof(T)) __builtin_prefetch(data + d, 0, 2);
}

// The sums of some slots, of all heads: largest logit, sum of weights exp(logit − largest), weighted values (H, D).
struct Partial {
    float *largest, *weight, *values;

    static int64_t size(int64_t heads, int64_t width) { return heads * (width + 2); }
    Partial(float* data, int64_t heads) : largest(data), weight(data + heads), values(data + 2 * heads) {}
};

// Take logits (H, BLOCK) of `count` further slots into the sums of their heads. Logits become weights, and sums so far
// are scaled to match.
void accumulate(float* logits, int64_t heads, int64_t count, int64_t width, Partial sums) {
    for (int64_t h = 0; h < heads; h++) {
        float* mine = logits + h * BLOCK;
        float top = sums.largest[h];
        for (int64_t r = 0; r < count; r++) top = std::max(top, mine[r]);
        if (top > sums.largest[h]) {
            float shrink = exponential(sums.largest[h] - top);
            sums.largest[h] = top;
            sums.weight[h] *= shrink;
            for (int64_t d = 0; d < width; d++) sums.values[h * width + d] *= shrink;
        }
        float total = 0;
        for (int64_t r = 0; r < count; r++) {
            mine[r] = exponential(mine[r] - top);
            total += mine[r];
        }
        sums.weight[h] += total;
    }
}

// Add the values of `count` slots from `start` on, times weights (H, BLOCK), to `sums`. WIDTH is D where the compiler
// shall know it, which keeps a head's sums in registers, else 0.
template <int WIDTH, class T>
void add_values(Cache<T> v, int64_t b, int64_t start, int64_t count, const float* weights, int64_t heads,
                int64_t any_width, Partial sums) {
    const int64_t width = WIDTH ? WIDTH : any_width;
    for (int64_t h = 0; h < heads; h++) {
        float fixed[WIDTH ? WIDTH : 1];
        float *to = sums.values + h * width, *total = WIDTH ? fixed : to;
        if (WIDTH) std::copy(to, to + width, total);
        for (int64_t r = 0; r < count; r++) {
            const T* value = v.at(b, start + r, h);
            float p = weights[h * BLOCK + r];
            for (int64_t d = 0; d < width; d++) total[d] += p * load(value[d]);
        }
        if (WIDTH) std::copy(total, total + width, to);
    }
}

// y (H, D) of one row from the partial sums of its chunks.
template <class T>
void combine(float* partials, int64_t chunks, int64_t heads, int64_t width, T* y) {
    int64_t size = Partial::size(heads, width);
    std::vector<float> mean(width);
    for (int64_t h = 0; h < heads; h++) {
        float top = NEG_MAX, total = 0;
        for (int64_t i = 0; i < chunks; i++) top = std::max(top, Partial(partials + i * size, heads).largest[h]);
        std::fill(mean.begin(), mean.end(), 0.0f);
        for (int64_t i = 0; i < chunks; i++) {
            Partial part(partials + i * size, heads);
            float share = exponential(part.largest[h] - top);
            total += share * part.weight[h];
            for (int64_t d = 0; d < width; d++) mean[d] += share * part.values[h * width + d];
        }
        for (int64_t d = 0; d < width; d++) store(total == 0 ? 0 : mean[d] / total, y + h * width + d);
    }
}

// A second part of each slot's values: a table's row of its token, times a gate per head.
template <class T>
struct ValueEmbedding {
    const T* table;        // (V, H, D), nullptr for none
    const int32_t* ids;    // (B, S)
    const float* gates;    // (B, S, H)

    void add(int64_t row, int64_t count, const float* weights, int64_t heads, int64_t width, Partial sums) const {
        for (int64_t r = 0; r < count; r++) {
            const T* embedded = table + ids[row + r] * heads * width;
            if (r + 1 < count) prefetch(table + ids[row + r + 1] * heads * width, heads * width);
            for (int64_t h = 0; h < heads; h++) {
                float p = weights[h * BLOCK + r] * gates[(row + r) * heads + h];
                float* to = sums.values + h * width;
                for (int64_t d = 0; d < width; d++) to[d] += p * load(embedded[h * width + d]);
            }
        }
    }
};

// Softmax attention (the paper's equations 5 and 7) of one query per row over its filled slots.
// `logits(b, start, count, out)` fills (H, BLOCK) for `count` slots from `start` on.
template <int WIDTH, class T, class Logits>
void attend(Cache<T> v, const int64_t* positions, T* y, int64_t batch, int64_t slots, int64_t heads, int64_t width,
            Logits logits, ValueEmbedding<T> more) {
    int64_t chunks = (slots + CHUNK - 1) / CHUNK, size = Partial::size(heads, width);
    std::vector<float> partials(batch * chunks * size, 0.0f);
#pragma omp parallel for schedule(dynamic) if (batch * chunks > 1)
    for (int64_t task = 0; task < batch * chunks; task++) {
        int64_t b = task / chunks, low = task % chunks * CHUNK;
        int64_t high = std::min({low + CHUNK, slots, positions[b] + 1});
        Partial sums(partials.data() + task * size, heads);
        std::fill(sums.largest, sums.largest + heads, NEG_MAX);
        std::vector<float> weights(heads * BLOCK);
        for (int64_t start = low; start < high; start += BLOCK) {
            int64_t count = std::min(BLOCK, high - start);
            logits(b, start, count, weights.data());
            accumulate(weights.data(), heads, count, width, sums);
            add_values<WIDTH>(v, b, start, count, weights.data(), heads, width, sums);
            if (more.table) more.add(b * slots + start, count, weights.data(), heads, width, sums);
        }
    }
    for (int64_t b = 0; b < batch; b++)
        combine(partials.data() + b * chunks * size, chunks, heads, width, y + b * heads * width);
}

// Rotations by any number of positions below `limit`, in double precision as angles grow with the position: the
// rotations by 1, 2, 4, … positions, multiplied as the number's bits say, far quicker than cosines are computed.
class Rotations {
  public:
    Rotations(const float* frequencies, int64_t half, int64_t limit) : half_(half), powers_(2 * half) {
        for (int64_t d = 0; d < half; d++) {
            powers_[d] = std::cos(static_cast<double>(frequencies[d]));
            powers_[half + d] = std::sin(static_cast<double>(frequencies[d]));
        }
        for (int64_t bit = 1; limit >> bit; bit++) {
            powers_.insert(powers_.end(), 2 * half, 0.0);
            double *power = &powers_[2 * half * bit], *previous = power - 2 * half;
            std::copy(previous, power, power);
            multiply(previous, power);
        }
    }

    // cos and sin (2, D / 2) of one position, and of `distance` positions.
    const double* one() const { return powers_.data(); }
    void by(int64_t distance, double* to) const {
        std::fill(to, to + half_, 1.0);
        std::fill(to + half_, to + 2 * half_, 0.0);
        for (int64_t bit = 0; distance >> bit; bit++)
            if (distance >> bit & 1) multiply(&powers_[2 * half_ * bit], to);
    }

  private:
    int64_t half_;
    std::vector<double> powers_;  // (bits, 2, D / 2)

    void multiply(const double* by, double* to) const {
        for (int64_t d = 0; d < half_; d++) {
            double cos = to[d] * by[d] - to[half_ + d] * by[half_ + d];
            to[half_ + d] = to[half_ + d] * by[d] + to[d] * by[half_ + d];
            to[d] = cos;
        }
    }
};

// A scale and a shift of each channel (H, D) that make keys of features.
struct KeyAffine {
    const float *scale, *shift;  // nullptr for none
};

// Logits of `count` slots from `slot` on, of one head: their keys' products with a query (D) over the keys' norms. The
// query is rotated for the first of them; from one to the next it is turned by `step` (cos and sin), and is left so.
template <int HALF, bool AFFINE, class T>
void products(Cache<T> cache, int64_t b, int64_t slot, int64_t count, int64_t h, int64_t any_half, const float* step,
              KeyAffine affine, float* query, float eps, float* out) {
    const int64_t half = HALF ? HALF : any_half;
    float fixed[HALF ? 2 * HALF : 1];  // of a width known here it stays in registers
    float *q_1 = HALF ? fixed : query, *q_2 = q_1 + half;
    const float *cos = step, *sin = step + half;
    const float *scale = affine.scale + (AFFINE ? 2 * half * h : 0), *shift = affine.shift + (AFFINE ? 2 * half * h : 0);
    if (HALF) std::copy(query, query + 2 * half, fixed);
    for (int64_t r = 0; r < count; r++) {
        const T *first = cache.at(b, slot + r, h), *second = first + half;
        prefetch(cache.at(b, slot + r + AHEAD, h), 2 * half);
        float product = 0, square = 0;
        for (int64_t d = 0; d < half; d++) {
            float x_1 = load(first[d]), x_2 = load(second[d]), old_1 = q_1[d], old_2 = q_2[d];
            if (AFFINE) {
                x_1 = x_1 * scale[d] + shift[d];
                x_2 = x_2 * scale[half + d] + shift[half + d];
            }
            product += x_1 * old_1 + x_2 * old_2;
            square += x_1 * x_1 + x_2 * x_2;
            q_1[d] = old_1 * cos[d] - old_2 * sin[d];
            q_2[d] = old_2 * cos[d] + old_1 * sin[d];
        }
        out[r] = product / std::sqrt(square / (2 * half) + eps);
    }
    if (HALF) std::copy(fixed, fixed + 2 * half, query);
}

// The Gaussian mixer's decoding attention over un-rotated features; see decode_features in cpu.py. Rotations compose,
// so a slot's logit is the product of its features with the query rotated by the distance between them. From slot to
// slot the query is turned back by one position; each block starts with an exact turn. With successor keys a slot's
// logit is that of the slot before it.
template <int HALF, bool AFFINE, class T>
void features(const T* x, Cache<T> cache, const float* bandwidth, const int64_t* positions, const float* frequencies,
              T* y, int64_t batch, int64_t slots, int64_t heads, int64_t width, int64_t ring, bool successor,
              float eps, KeyAffine affine, ValueEmbedding<T> more) {
    const int64_t half = HALF ? HALF : width / 2;
    const int64_t limit = std::max(slots, *std::max_element(positions, positions + batch));
    const Rotations rotations(frequencies, half, limit);
    const std::vector<float> step(rotations.one(), rotations.one() + width);
    std::vector<float> queries(batch * heads * width);  // divided by rms and σ²; not rotated
    for (int64_t i = 0; i < batch * heads; i++) {
        float square = 0;
        for (int64_t d = 0; d < width; d++) square += load(x[i * width + d]) * load(x[i * width + d]);
        float scale = 1 / (std::sqrt(square / width + eps) * bandwidth[i % heads] * bandwidth[i % heads]);
        for (int64_t d = 0; d < width; d++) queries[i * width + d] = load(x[i * width + d]) * scale;
    }
    auto logits = [&](int64_t b, int64_t start, int64_t count, float* out) {
        const int64_t newest = ring ? positions[b] % ring : positions[b];
        std::vector<double> turn(width);
        std::vector<float> rotated(heads * width);
        auto rotate = [&](int64_t distance) {
            rotations.by(distance, turn.data());
            for (int64_t i = 0; i < heads * width; i += width) {
                const float* q = queries.data() + b * heads * width + i;
                for (int64_t d = 0; d < half; d++) {
                    rotated[i + d] = q[d] * turn[d] + q[half + d] * turn[half + d];
                    rotated[i + half + d] = q[half + d] * turn[d] - q[d] * turn[half + d];
                }
            }
        };
        bool reanchor_rotation = true;
        for (int64_t r = 0, next; r < count; r = next) {
            int64_t slot = start + r, distance = slot <= newest ? newest - slot : newest - slot + ring;
            reanchor_rotation |= slot == newest + 1;  // behind the newest slot of a ring lies the oldest
            next = std::min(r + GROUP, count);
            if (slot <= newest) next = std::min(next, newest + 1 - start);
            int64_t key = slot;
            bool first = false;
            if (successor) {
                if (ring && distance == ring - 1) {  // outside the window: the key of the next slot, no more
                    for (int64_t h = 0; h < heads; h++) out[h * BLOCK + r] = NEG_MAX;
                    next = r + 1;
                    reanchor_rotation = true;
                    continue;
                }
                first = slot == 0;  // its key lies at the ring's end, or position 0 is its own
                bool own = first && !(ring && positions[b] >= ring);
                key = own ? 0 : first ? ring - 1 : slot - 1;
                distance += own ? 0 : 1;
                if (first) next = r + 1;
            }
            if (reanchor_rotation) rotate(distance);
            reanchor_rotation = first;
            for (int64_t h = 0; h < heads; h++)
                products<HALF, AFFINE>(cache, b, key, next - r, h, half, step.data(), affine,
                                       rotated.data() + h * width, eps, out + h * BLOCK + r);
        }
    };
    attend<2 * HALF>(cache, positions, y, batch, slots, heads, width, logits, more);
}

template <class T>
void softmax(const T* q, Cache<T> k, Cache<T> v, const int64_t* positions, T* y, int64_t batch, int64_t slots,
             int64_t heads, int64_t width, int64_t value_width, float scale) {
    auto logits = [&](int64_t b, int64_t start, int64_t count, float* out) {
        std::vector<float> query(heads * width);
        for (int64_t i = 0; i < heads * width; i++) query[i] = load(q[b * heads * width + i]) * scale;
        for (int64_t r = 0; r < count; r++) {
            for (int64_t h = 0; h < heads; h++) {
                const T* key = k.at(b, start + r, h);
                prefetch(k.at(b, start + r + AHEAD, h), width);
                float product = 0;
                for (int64_t d = 0; d < width; d++) product += load(key[d]) * query[h * width + d];
                out[h * BLOCK + r] = product;
            }
        }
    };
    (value_width == 128 ? attend<128, T, decltype(logits)> : attend<0, T, decltype(logits)>)(
        v, positions, y, batch, slots, heads, value_width, logits, {});
}

template <class T>
Cache<T> cache(const void* data, const int64_t* strides) {
    return {static_cast<const T*>(data), strides[0], strides[1], strides[2]};
}

template <class T>
void call_features(const void* x, const void* cached, const int64_t* strides, const float* bandwidth,
                   const int64_t* positions, const float* frequencies, KeyAffine affine, const void* table,
                   const int32_t* ids, const float* gates, void* y, const int64_t* sizes, float eps) {
    auto* plain = sizes[3] == 128 ? features<64, false, T> : features<0, false, T>;
    auto* affined = sizes[3] == 128 ? features<64, true, T> : features<0, true, T>;
    (affine.scale ? affined : plain)(
        static_cast<const T*>(x), cache<T>(cached, strides), bandwidth, positions, frequencies, static_cast<T*>(y),
        sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], eps, affine,
        ValueEmbedding<T>{static_cast<const T*>(table), ids, gates});
}

template <class T>
void call_softmax(const void* q, const void* k, const void* v, const int64_t* strides, const int64_t* positions,
                  void* y, const int64_t* sizes, float scale) {
    softmax(static_cast<const T*>(q), cache<T>(k, strides), cache<T>(v, strides + 3), positions, static_cast<T*>(y),
            sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], scale);
}

// y (rows, N) = x (rows, C) Wᵀ of ROWS rows at most, W (N, C): the features of all rows are in reach of each weight that
// comes in.
template <int ROWS>
void multiply(const uint16_t* x, const uint16_t* weight, uint16_t* y, int64_t rows, int64_t outputs, int64_t width) {
    constexpr int64_t TOGETHER = 64;         // outputs of one task
    constexpr int64_t WORTHWHILE = 1 << 14;  // weights, for a second thread
    std::vector<float> inputs(ROWS * width, 0.0f);
    for (int64_t i = 0; i < rows * width; i++) inputs[i] = load(x[i]);
#pragma omp parallel for schedule(static) if (outputs * width > WORTHWHILE)
    for (int64_t first = 0; first < outputs; first += TOGETHER) {
        const float* input = inputs.data();
        for (int64_t n = first; n < std::min(first + TOGETHER, outputs); n++) {
            const uint16_t* row = weight + n * width;
            float sums[ROWS] = {};
            for (int64_t c = 0; c < width; c++)
                for (int b = 0; b < ROWS; b++) sums[b] += load(row[c]) * input[b * width + c];
            for (int64_t b = 0; b < std::min<int64_t>(rows, ROWS); b++) store(sums[b], y + b * outputs + n);
        }
    }
}

}  // namespace

// strides: of cached without D; sizes: B, S, H, D, ring, successor; scale and shift may be null,
// and so may table, ids and gates.
extern "C" void decode_features(bool bfloat16, const void* x, const void* cached, const int64_t* strides,
                                const float* bandwidth, const int64_t* positions, const float* frequencies,
                                const float* scale, const float* shift, const void* table, const int32_t* ids,
                                const float* gates, void* y, const int64_t* sizes, float eps) {
    (bfloat16 ? call_features<uint16_t> : call_features<float>)(
        x, cached, strides, bandwidth, positions, frequencies, {scale, shift}, table, ids, gates, y, sizes, eps);
}

// strides: of k and v without D; sizes: B, S, H, D, D_v.
extern "C" void decode_softmax(bool bfloat16, const void* q, const void* k, const void* v, const int64_t* strides,
                               const int64_t* positions, void* y, const int64_t* sizes, float scale) {
    (bfloat16 ? call_softmax<uint16_t> : call_softmax<float>)(q, k, v, strides, positions, y, sizes, scale);
}

// bfloat16, 1 to 8 rows.
extern "C" void linear(const uint16_t* x, const uint16_t* weight, uint16_t* y, int64_t rows, int64_t outputs,
                       int64_t width) {
    auto* function = rows == 1 ? multiply<1> : rows == 2 ? multiply<2> : rows <= 4 ? multiply<4> : multiply<8>;
    function(x, weight, y, rows, outputs, width);
}
