// What every kernel may use. No headers: the compiler that ships with the driver's toolkit has none at hand.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __int_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float to_float(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ float to_float(i32 x) { return (float)x; }
__device__ __forceinline__ float to_float(u32 x) { return (float)x; }

template <class T> struct From;
template <> struct From<float> { static __device__ __forceinline__ float of(float x) { return x; } };
template <> struct From<bf16> {
    static __device__ __forceinline__ bf16 of(float x) {
        bf16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
    }
};
template <> struct From<f16> {
    static __device__ __forceinline__ f16 of(float x) {
        f16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
    }
};
// Towards zero and to the nearest there is, as a cast does in Rust.
template <> struct From<i32> { static __device__ __forceinline__ i32 of(float x) { return __float2int_rz(x); } };
template <> struct From<u32> { static __device__ __forceinline__ u32 of(float x) { return __float2uint_rz(x); } };
template <class T> __device__ __forceinline__ T from_float(float x) { return From<T>::of(x); }

// So many elements, read or written at once.
template <class T, int N> struct alignas(sizeof(T) * N) Vector { T at[N]; };

constexpr int WARP = 32;

// For kernels that may begin while the one before them still runs. What comes before this must touch nothing that that one
// writes; after it, all that was sent before is through. From here on, the kernel behind this one may begin.
__device__ __forceinline__ void await_earlier() {
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
}

// 2 to the power of x, within 2^-22 of it; 0 where that is below 2^-126.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
constexpr float LOG2_E = 1.44269504088896340736f;

template <class Join> __device__ __forceinline__ float warp_all(float x, Join join) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

struct Add { __device__ __forceinline__ float operator()(float a, float b) const { return a + b; } };
// A NaN stays one.
struct Max { __device__ __forceinline__ float operator()(float a, float b) const { return a > b || a != a ? a : b; } };

// What the threads of a block have, joined in a fixed order; every thread gets it. `shared` holds 32 numbers and may be
// used again after the next barrier.
template <int THREADS, class Join> __device__ __forceinline__ float block_all(float x, Join join, float *shared) {
    x = warp_all(x, join);
    if (THREADS == WARP) return x;
    __syncthreads();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    __syncthreads();
    x = shared[0];
#pragma unroll
    for (int warp = 1; warp < THREADS / WARP; warp++) x = join(x, shared[warp]);
    return x;
}

// Reports what only the data can show: the earliest step, and the smallest detail within it.
__device__ __forceinline__ void raise_fault(u64 *fault, u32 step, u32 detail) {
    atomicMin(fault, (u64)step << 32 | detail);
}

// The functions that element-wise programs are made of, where the language has none by that name. Programs are computed as
// they stand, without contraction, so that a part computed again gives the bits that it gave before.
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float tanh_slope(float x) {
    const float e = expf(-2.0f * fabsf(x)), s = 1.0f + e;
    return 4.0f * e / (s * s);
}
constexpr float GELU_SCALE = 0.79788456080286535588f, GELU_CUBIC = 0.044715f;
__device__ __forceinline__ float gelu_argument(float x) { return GELU_SCALE * (x + GELU_CUBIC * x * x * x); }
// 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)), which keeps its relative precision where tanh is near -1. A pass over many numbers takes
// half as long again with a power and a quotient that are exact to the last bit; these are within 2^-21.
__device__ __forceinline__ float gelu_share(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + power_of_two(-2.0f * LOG2_E * gelu_argument(x))));
    return y;
}
__device__ __forceinline__ float gelu_tanh(float x) { return x * gelu_share(x); }
__device__ __forceinline__ float gelu_tanh_slope(float x) {
    const float half = gelu_share(x);
    const float inner = GELU_SCALE * (1.0f + 3.0f * GELU_CUBIC * x * x);
    // Where it is flat, `inner` may be infinite.
    const float slope = half * (1.0f - half);
    return slope == 0.0f ? half : half + 2.0f * x * slope * inner;
}
__device__ __forceinline__ float gelu_erf(float x) { return 0.5f * x * erfcf(-0.70710678118654752440f * x); }
