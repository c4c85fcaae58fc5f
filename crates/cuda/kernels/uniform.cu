// Numbers of equal likelihood, multiples of 2^-24 below 1: a thread has the four of one counter.
extern "C" __global__ void __launch_bounds__(THREADS) uniform(const u32 *key, float *y) {
    await_earlier();
    const index_t counter = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (index_of(counter, 0) >= COUNT) return;
    const Words words = philox(counter, STREAM, key[0], key[1]);
#pragma unroll
    for (int word = 0; word < 4; word++) {
        const index_t i = index_of(counter, word);
        if (i < COUNT) y[i] = (float)(words.at[word] >> 8) * (1.0f / 16777216.0f);
    }
}
