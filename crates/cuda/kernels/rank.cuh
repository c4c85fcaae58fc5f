// A number as an integer that rises with it: NaN is the largest, and the two zeros are equal.
__device__ __forceinline__ u32 rising(float x) {
    const u32 bits = x == 0.0f ? 0 : __float_as_uint(x);
    return x != x ? 0xffffffffu : x < 0.0f ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ u32 rising(bf16 x) { return rising(to_float(x)); }
__device__ __forceinline__ u32 rising(f16 x) { return rising(to_float(x)); }
__device__ __forceinline__ u32 rising(i32 x) { return (u32)x ^ 0x80000000u; }
__device__ __forceinline__ u32 rising(u32 x) { return x; }
// The number of a rank.
__device__ __forceinline__ float number_of(u32 rank) { return __uint_as_float(rank >> 31 ? rank ^ 0x80000000u : ~rank); }
