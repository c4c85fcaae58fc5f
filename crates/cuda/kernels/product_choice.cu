// What products are tried on before anything is computed, and what their results come to. Sizes are parameters, so that
// one kernel serves all products. A matrix is `outer` rows of `inner` numbers; there are `batch`.

__device__ __forceinline__ u32 mixed(u32 x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

// Numbers within `scale` of zero. Where an axis is the depth of the product, and `half` of it is stated, its second half is
// the first again, with its sign turned if that is asked for, and what is left over is zero.
extern "C" __global__ void __launch_bounds__(256)
fill(u64 address, u64 size, u64 is_bf16, u64 inner, u64 outer, u64 stride, u64 batch, u64 batch_stride, u64 seed,
     u64 scale, u64 depth_is_inner, u64 half, u64 turned) {
    for (u64 matrix = blockIdx.z; matrix < batch; matrix += gridDim.z)
        for (u64 row = blockIdx.y; row < outer; row += gridDim.y)
            for (u64 column = blockIdx.x * 256u + threadIdx.x; column < inner; column += gridDim.x * 256u) {
                const u64 along = depth_is_inner ? column : row;
                const bool again = half && along >= half, rest = half && along >= 2 * half;
                const u32 i = (u32)(again && depth_is_inner ? column - half : column);
                const u32 j = (u32)(again && !depth_is_inner ? row - half : row);
                const u32 bits = mixed(i + mixed(j + mixed((u32)matrix + (u32)seed * 0x9e3779b9u)));
                float x = ((float)(bits >> 8) * (1.0f / 8388608.0f) - 1.0f) * __int_as_float((u32)scale);
                if (again && turned) x = -x;
                if (rest) x = 0.0f;
                const u64 at = matrix * batch_stride + row * stride + column;
                if (size == 4) ((float *)address)[at] = x;
                else if (is_bf16) ((bf16 *)address)[at] = from_float<bf16>(x);
                else ((f16 *)address)[at] = from_float<f16>(x);
            }
}

// Adds to the cell what the bits of all numbers come to, each mixed with its place: integers, so in whatever order.
extern "C" __global__ void __launch_bounds__(256)
checksum(u64 address, u64 size, u64 inner, u64 outer, u64 stride, u64 batch, u64 batch_stride, u64 seed, u64 *cell) {
    u64 sum = 0;
    for (u64 matrix = blockIdx.z; matrix < batch; matrix += gridDim.z)
        for (u64 row = blockIdx.y; row < outer; row += gridDim.y)
            for (u64 column = blockIdx.x * 256u + threadIdx.x; column < inner; column += gridDim.x * 256u) {
                const u64 at = matrix * batch_stride + row * stride + column;
                const u32 bits = size == 4 ? ((const u32 *)address)[at] : ((const u16 *)address)[at];
                u64 x = ((u64)bits << 32 | bits) + at * 0x9e3779b97f4a7c15ull + seed;
                x ^= x >> 30;
                x *= 0xbf58476d1ce4e5b9ull;
                x ^= x >> 27;
                x *= 0x94d049bb133111ebull;
                sum += x ^ (x >> 31);
            }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % WARP == 0 && sum) atomicAdd(cell, sum);
}
