#if OF_PARTS
// The sums of WIDTH columns a lane over the rows of one part: every WARPS-th row a warp, then the warps in order.
extern "C" __global__ void __launch_bounds__(32 * WARPS) column_sums_of_parts(const x_t *x, float *y) {
    __shared__ float shared[WARPS][32 * WIDTH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const index_t column = ((index_t)blockIdx.x * 32 + lane) * WIDTH;
    const index_t first = blockIdx.y * PART_ROWS, end = first + PART_ROWS < ROWS ? first + PART_ROWS : ROWS;
    float sums[WIDTH] = {};
    if (column < COLUMNS) {
        for (index_t row = first + warp; row < end; row += WARPS) {
            const Vector<x_t, WIDTH> numbers = *(const Vector<x_t, WIDTH> *)(x + x_at(row * COLUMNS + column));
#pragma unroll
            for (int v = 0; v < WIDTH; v++) sums[v] += to_float(numbers.at[v]);
        }
    }
#pragma unroll
    for (int v = 0; v < WIDTH; v++) shared[warp][v * 32 + lane] = sums[v];
    __syncthreads();
    for (int at = threadIdx.x; at < 32 * WIDTH; at += 32 * WARPS) {
        const index_t target = ((index_t)blockIdx.x * 32 + at % 32) * WIDTH + at / 32;
        if (target >= COLUMNS) continue;
        float sum = 0;
#pragma unroll
        for (int other = 0; other < WARPS; other++) sum += shared[other][at];
        y[blockIdx.y * COLUMNS + target] = sum;
    }
}
#else
// The parts in order, after what is there.
extern "C" __global__ void __launch_bounds__(256) column_sums_over_parts(const float *x, y_t *y) {
    const index_t column = (index_t)blockIdx.x * 256 + threadIdx.x;
    if (column >= COLUMNS) return;
    float sum = 0;
    for (int part = 0; part < PARTS; part++) sum += x[part * COLUMNS + column];
    y[column] = from_float<y_t>(ACCUMULATES ? to_float(y[column]) + sum : sum);
}
#endif
