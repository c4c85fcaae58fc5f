// The sum of all elements up to each one along an axis of AXIS elements that lie INNER apart, or from it on: in f64, rounded
// for each result.
__device__ __forceinline__ index_t place_of(index_t line, index_t step) {
    return (line / INNER * AXIS + (REVERSE ? AXIS - 1 - step : step)) * INNER + line % INNER;
}

// Where lines lie side by side: a thread has a line.
extern "C" __global__ void __launch_bounds__(THREADS) cumulative_lines(const x_t *x, x_t *y) {
    const index_t line = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (line >= LINES) return;
    double sum = 0;
    for (index_t step = 0; step < AXIS; step++) {
        const index_t place = place_of(line, step);
        sum += to_float(x[place]);
        y[place] = from_float<x_t>((float)sum);
    }
}

// Where the elements of a line do: a block has a line, THREADS elements after another.
extern "C" __global__ void __launch_bounds__(THREADS) cumulative_blocks(const x_t *x, x_t *y) {
    __shared__ double warps[THREADS / WARP];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    double before = 0;
    for (index_t start = 0; start < AXIS; start += THREADS) {
        const index_t step = start + threadIdx.x;
        const index_t place = place_of(blockIdx.x, step < AXIS ? step : 0);
        double up_to = step < AXIS ? to_float(x[place]) : 0.0f;
        for (u32 offset = 1; offset < WARP; offset *= 2) {
            const double other = __shfl_up_sync(0xffffffffu, up_to, offset);
            if (lane >= offset) up_to += other;
        }
        if (lane == WARP - 1) warps[warp] = up_to;
        __syncthreads();
        double sum = before;
        for (u32 other = 0; other < THREADS / WARP; other++) {
            if (other == warp) sum = before + up_to;
            before += warps[other];
        }
        if (step < AXIS) y[place] = from_float<x_t>((float)sum);
        __syncthreads();
    }
}
