// What the project's C++ sources share: numbers, and the tensors of an operator's call. native.py compiles and loads
// them.
//
// Of torch only the C interface that the code of its compiler uses: a C++ compiler reads it in a second, and it stays
// the same from version to version. bfloat16 is uint16_t. Strides in elements.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <stdexcept>
#include <utility>
#include <vector>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

namespace {

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

inline void check(AOTITorchError error) {
    if (error) throw std::runtime_error("torch refuses what a C++ operator of nanogka asks of it");
}

inline int64_t integer(StableIValue value) {
    int64_t result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

inline double real(StableIValue value) {
    double result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

// A tensor that a call was given, and owns.
class Input {
  public:
    explicit Input(StableIValue value) {
        std::memcpy(&handle_, &value, sizeof handle_);
        check(aoti_torch_get_data_ptr(handle_, &data_));
        check(aoti_torch_get_sizes(handle_, &sizes_));
        check(aoti_torch_get_strides(handle_, &strides_));
        check(aoti_torch_get_dim(handle_, &dimensions_));
        check(aoti_torch_get_dtype(handle_, &dtype_));
    }
    Input(const Input&) = delete;
    ~Input() { aoti_torch_delete_tensor_object(handle_); }

    int64_t dimensions() const { return dimensions_; }
    int64_t size(int64_t dimension) const { return sizes_[dimension]; }
    int64_t stride(int64_t dimension) const { return strides_[dimension]; }
    int32_t dtype() const { return dtype_; }
    bool is_float32() const { return dtype_ == aoti_torch_dtype_float32(); }

    // The data, the last dimension without gaps; the strides of the others are those above, afterwards.
    template <class T>
    const T* rows() {
        if (sizes_[dimensions_ - 1] > 1 && strides_[dimensions_ - 1] != 1) copy<T>();
        return static_cast<const T*>(data_);
    }

    // The data, without gaps.
    template <class T>
    const T* contiguous() {
        int64_t expected = 1;
        for (int64_t i = dimensions_ - 1; i >= 0; expected *= sizes_[i--]) {
            if (sizes_[i] == 1 || strides_[i] == expected) continue;
            copy<T>();
            break;
        }
        return static_cast<const T*>(data_);
    }

  private:
    AtenTensorHandle handle_;
    void* data_;
    int64_t *sizes_, *strides_, dimensions_;
    int32_t dtype_;
    std::vector<char> copy_;
    std::vector<int64_t> copy_strides_;

    template <class T>
    void copy() {
        copy_strides_.resize(dimensions_);
        int64_t count = 1;
        for (int64_t i = dimensions_ - 1; i >= 0; count *= sizes_[i--]) copy_strides_[i] = count;
        copy_.resize(count * sizeof(T));
        T* to = reinterpret_cast<T*>(copy_.data());
        for (int64_t n = 0; n < count; n++) {
            int64_t from = 0;
            for (int64_t i = 0; i < dimensions_; i++) from += n / copy_strides_[i] % sizes_[i] * strides_[i];
            to[n] = static_cast<const T*>(data_)[from];
        }
        data_ = to;
        strides_ = copy_strides_.data();
    }
};

// A new tensor without gaps, of a call's result.
template <class T>
class Output {
  public:
    Output(std::initializer_list<int64_t> sizes, int32_t dtype) {
        std::vector<int64_t> strides(sizes.size());
        int64_t count = 1;
        for (int64_t i = sizes.size() - 1; i >= 0; count *= sizes.begin()[i--]) strides[i] = count;
        check(aoti_torch_empty_strided(sizes.size(), sizes.begin(), strides.data(), dtype,
                                       aoti_torch_device_type_cpu(), 0, &handle_));
        void* data;
        check(aoti_torch_get_data_ptr(handle_, &data));
        data_ = static_cast<T*>(data);
    }
    Output(const Output&) = delete;
    ~Output() {
        if (handle_) aoti_torch_delete_tensor_object(handle_);
    }

    T* data() { return data_; }

    // To the caller, who owns it.
    StableIValue release() {
        StableIValue value = 0;
        std::memcpy(&value, &handle_, sizeof handle_);
        handle_ = nullptr;
        return value;
    }

  private:
    AtenTensorHandle handle_ = nullptr;
    T* data_;
};

using Boxed = void (*)(StableIValue* stack, uint64_t inputs, uint64_t outputs);

// Make these what torch.ops.nanogka runs on a CPU, for as long as the process lives; 0 if that is done.
inline int32_t register_on_cpu(std::initializer_list<std::pair<const char*, Boxed>> operators) {
    TorchLibraryHandle library;
    int32_t error = aoti_torch_library_init_impl("nanogka", "CPU", __FILE__, __LINE__, &library);
    for (auto [name, function] : operators)
        if (!error) error = aoti_torch_library_impl(library, name, function);
    return error;
}

}  // namespace
