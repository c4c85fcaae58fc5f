// Attention with the products of warpgroups: a block has two, and each of these 64 rows.
typedef q_t number_t;
constexpr int GROUPS = 2, THREADS = GROUPS * GROUP_THREADS;

// Begins to copy 64 rows that lie `stride` apart into a tile, by so many threads; rows beyond the first `there` are zero. The first
// must be a good address all the same.
template <int COUNT = THREADS>
__device__ __forceinline__ void begin_tile(number_t *tile, const number_t *rows, index_t stride, int there, int member = threadIdx.x) {
#pragma unroll
    for (int n = 0; n < 64 * 8 / COUNT; n++) {
        const int i = n * COUNT + member, row = i / 8, column = i % 8 * 8;
        begin_copy<16>(tile + tile_at(row, column), rows + (row < there ? row : 0) * stride + column, row < there);
    }
}

// Stores the sums of a warpgroup, times a factor, as 64 rows that lie `stride` apart, as far as there are such. The four
// lanes of a row exchange pairs of numbers for eight neighbors each.
__device__ __forceinline__ void store_sums(number_t *to, index_t stride, int there, const float (&sums)[32], float factor) {
    const int lane = threadIdx.x % WARP, member = lane % 4, first = threadIdx.x % GROUP_THREADS / WARP * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int part = 0; part < 2; part++) {
            Vector<u32, 4> x;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *pair = &sums[(part * 4 + j) * 4 + half * 2];
                x.at[j] = pack(number_t(), pair[0] * factor, pair[1] * factor);
            }
#pragma unroll
            for (int offset = 1; offset <= 2; offset *= 2)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    if (j & offset) continue;
                    const bool upper = member & offset;
                    const u32 other = __shfl_xor_sync(0xffffffffu, upper ? x.at[j] : x.at[j + offset], offset);
                    if (upper) x.at[j] = other;
                    else x.at[j + offset] = other;
                }
            const int row = first + half * 8;
            if (row < there) *(Vector<u32, 4> *)(to + row * stride + part * 32 + member * 8) = x;
        }
}
