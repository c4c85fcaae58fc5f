// Pairs of element `i` and `i + HALF` of each row turned by the angles of the row's place, VECTOR pairs a thread. A thread
// reads its pairs before it writes them, so that y may lie over x.
extern "C" __global__ void __launch_bounds__(THREADS) rotary(const x_t *x, const float *cosines, const float *sines, y_t *y) {
    typedef Vector<x_t, VECTOR> Elements;
    typedef Vector<float, VECTOR> Angles;
    const index_t i = ((index_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    if (i >= COUNT) return;
    const index_t row = i / HALF, pair = i % HALF, angle = row % PLACES * HALF + pair;
    const index_t first = row * 2 * HALF + pair, second = first + HALF;
    const Elements a = *(const Elements *)(x + x_at(first)), b = *(const Elements *)(x + x_at(second));
    const Angles cos = *(const Angles *)(cosines + angle), sin = *(const Angles *)(sines + angle);
    Elements turned_a, turned_b;
#pragma unroll
    for (int v = 0; v < VECTOR; v++) {
        const float s = INVERSE ? -sin.at[v] : sin.at[v];
        turned_a.at[v] = from_float<x_t>(to_float(a.at[v]) * cos.at[v] - to_float(b.at[v]) * s);
        turned_b.at[v] = from_float<x_t>(to_float(b.at[v]) * cos.at[v] + to_float(a.at[v]) * s);
    }
    *(Elements *)(y + first) = turned_a;
    *(Elements *)(y + second) = turned_b;
}
