// What the blocks of a norm's gradient have of sums over all rows, [SHARES, SUMS, COLUMNS], added up over the blocks: for each of
// the sums its own result. A block has 32 columns of one of them; its ROWS warps share the shares, and are joined in order.
constexpr int ROWS = 16;

template <class T> __device__ __forceinline__ void give(T *y, float sum, bool accumulates) {
    *y = from_float<T>(accumulates ? to_float(*y) + sum : sum);
}

extern "C" __global__ void __launch_bounds__(32 * ROWS) share_sums(const float *shares, a_t *a
#if SUMS > 1
    , b_t *b
#endif
#if SUMS > 2
    , c_t *c
#endif
) {
    __shared__ float shared[ROWS][32];
    await_earlier();
    const u32 lane = threadIdx.x % 32, row = threadIdx.x / 32, number = blockIdx.y;
    const index_t column = (index_t)blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (column < COLUMNS) {
        const float *from = shares + number * COLUMNS + column;
#pragma unroll 8
        for (index_t share = row; share < SHARES; share += ROWS) sum += from[share * (SUMS * COLUMNS)];
    }
    shared[row][lane] = sum;
    __syncthreads();
    if (row > 0 || column >= COLUMNS) return;
    for (int other = 1; other < ROWS; other++) sum += shared[other][lane];
    const bool accumulates = ACCUMULATES >> number & 1;
    if (number == 0) give(a + column, sum, accumulates);
#if SUMS > 1
    if (number == 1) give(b + column, sum, accumulates);
#endif
#if SUMS > 2
    if (number == 2) give(c + column, sum, accumulates);
#endif
}
