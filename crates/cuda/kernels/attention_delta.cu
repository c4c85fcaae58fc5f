// What the gradient of attention subtracts in each row: the sum of result times gradient. LANES threads have a row.
extern "C" __global__ void __launch_bounds__(THREADS) attention_delta(const o_t *o, const g_t *g, float *delta) {
    const index_t row = (index_t)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    // Rows beyond the last compute it again, for the threads of a warp stay together.
    const index_t at = row < ROWS ? row : ROWS - 1, query = at % QUERIES, rest = at / QUERIES;
    const o_t *results = o + o_row(rest / HEADS, rest % HEADS, query);
    const g_t *gradients = g + g_row(rest / HEADS, rest % HEADS, query);
    float sum = 0;
    for (int d = threadIdx.x % LANES * WIDTH; d < DEPTH; d += LANES * WIDTH) {
        const Vector<o_t, WIDTH> x = *(const Vector<o_t, WIDTH> *)(results + d);
        const Vector<g_t, WIDTH> y = *(const Vector<g_t, WIDTH> *)(gradients + d);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) sum += to_float(x.at[i]) * to_float(y.at[i]);
    }
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % LANES == 0 && row < ROWS) delta[row] = sum;
}
