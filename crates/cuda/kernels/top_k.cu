// The first of each row in order, and where they were. Of equal elements, the first comes first.
__device__ __forceinline__ u32 rank_of(x_t x) { return DESCENDING ? ~rising(x) : rising(x); }

#if FIRST_ONLY
// One of each row: a block has a row, and looks for the smallest rank and place.
extern "C" __global__ void __launch_bounds__(THREADS) top_one(const x_t *x, x_t *values, i32 *indices) {
    __shared__ u64 warps[THREADS / WARP];
    const x_t *row = x + blockIdx.x * COLUMNS;
    u64 first = ~0ull;
    for (index_t column = threadIdx.x; column < COLUMNS; column += THREADS) {
        const u64 key = (u64)rank_of(row[column]) << 32 | column;
        if (key < first) first = key;
    }
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        const u64 other = __shfl_xor_sync(0xffffffffu, first, offset);
        if (other < first) first = other;
    }
    if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = first;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int warp = 1; warp < THREADS / WARP; warp++)
        if (warps[warp] < first) first = warps[warp];
    const u32 place = (u32)first;
    values[blockIdx.x] = row[place];
    indices[blockIdx.x] = (i32)place;
}
#else
// Rows are sorted by row and rank, all at once.
extern "C" __global__ void __launch_bounds__(THREADS) top_keys(const x_t *x, word_t *keys, word_t *positions) {
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= ELEMENTS) return;
    keys[i] = (word_t)((u64)(i / COLUMNS) << 32 | rank_of(x[i]));
    positions[i] = i;
}

extern "C" __global__ void __launch_bounds__(THREADS) top_values(
    const x_t *x, const word_t *positions, x_t *values, i32 *indices) {
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= COUNT) return;
    const index_t row = i / FIRST, position = positions[row * COLUMNS + i % FIRST];
    values[i] = x[position];
    indices[i] = (i32)(position - row * COLUMNS);
}
#endif
