// Softmax over rows of COLUMNS numbers, one block a row: the maximum, the sum, then the quotients.
extern "C" __global__ void __launch_bounds__(THREADS) softmax(const x_t *x, y_t *y) {
    __shared__ float shared[32];
    const index_t first = blockIdx.x * COLUMNS;
    float highest = -__int_as_float(0x7f800000);
    for (index_t c = threadIdx.x; c < COLUMNS; c += THREADS) highest = Max()(to_float(x[x_at(first + c)]), highest);
    highest = block_all<THREADS>(highest, Max(), shared);
    float sum = 0;
    for (index_t c = threadIdx.x; c < COLUMNS; c += THREADS) sum += expf(to_float(x[x_at(first + c)]) - highest);
    sum = block_all<THREADS>(sum, Add(), shared);
    for (index_t c = threadIdx.x; c < COLUMNS; c += THREADS) {
        const float shifted = to_float(x[x_at(first + c)]) - highest;
        y[first + c] = from_float<y_t>(LOGARITHM ? shifted - logf(sum) : expf(shifted) / sum);
    }
}
