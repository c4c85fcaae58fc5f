// A function of integers a, b and c: RESULT.
extern "C" __global__ void __launch_bounds__(THREADS) integers(const y_t *as, const y_t *bs, const y_t *cs, y_t *y) {
    await_earlier();
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= COUNT) return;
    const y_t a = as[i], b = bs[i], c = cs[i];
    y[i] = RESULT;
}
