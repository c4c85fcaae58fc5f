// One step of an optimizer for every weight, each over its own bytes or elsewhere. The rule, before this text, says what is
// the same for all weights, `factors_of`, and how one weight moves, `moved`.
extern "C" __global__ void __launch_bounds__(THREADS) update(
    const float *weight, const g_t *gradient, const float *first, const float *second, const float *learning_rate,
    const float *step, const float *scale, float *new_weight, float *new_first, float *new_second) {
    typedef Vector<float, VECTOR> Numbers;
    __shared__ Factors shared;
    if (threadIdx.x == 0) shared = factors_of(*learning_rate, *step);
    __syncthreads();
    const Factors factors = shared;
    const float factor = *scale;
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const index_t i = (((index_t)blockIdx.x * ITEMS + item) * THREADS + threadIdx.x) * VECTOR;
        if (i >= COUNT) return;
        Numbers w = *(const Numbers *)(weight + i), m = *(const Numbers *)(first + i), s = {};
        if (MOMENTS == 2) s = *(const Numbers *)(second + i);
        const Vector<g_t, VECTOR> g = *(const Vector<g_t, VECTOR> *)(gradient + i);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) moved(factors, to_float(g.at[v]) * factor, w.at[v], m.at[v], s.at[v]);
        *(Numbers *)(new_weight + i) = w;
        *(Numbers *)(new_first + i) = m;
        if (MOMENTS == 2) *(Numbers *)(new_second + i) = s;
    }
}
