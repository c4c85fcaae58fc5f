// Elements scaled up where their random word is at least THRESHOLD, else zero: a thread has the four of one counter.
extern "C" __global__ void __launch_bounds__(THREADS) dropout(const x_t *x, const u32 *key, y_t *y) {
    const index_t counter = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (index_of(counter, 0) >= COUNT) return;
    const Words words = philox(counter, STREAM, key[0], key[1]);
#pragma unroll
    for (int word = 0; word < 4; word++) {
        const index_t i = index_of(counter, word);
        if (i < COUNT) y[i] = from_float<y_t>(words.at[word] >= THRESHOLD ? to_float(x[i]) * SCALE : 0.0f);
    }
}
