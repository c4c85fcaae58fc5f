// The shares of every row of an attention over a cache, joined in their order: the numbers [SHARES, RESULTS, DEPTH], and for
// each row the largest score and the sum of exponentials, relative to which they are. A share whose sum is 0 saw nothing, and
// its numbers are not there.
extern "C" __global__ void __launch_bounds__(THREADS) cached_attention_join(const float *parts, const float *statistics, o_t *o) {
    await_earlier();
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x, row = i / DEPTH;
    if (row >= RESULTS) return;
    const auto statistics_of = [&](int share) { return *(const Vector<float, 2> *)(statistics + (share * RESULTS + row) * 2); };
    float most = -__int_as_float(0x7f800000), sum = 0, x = 0;
    for (int share = 0; share < SHARES; share++) most = fmaxf(most, statistics_of(share).at[0]);
#pragma unroll 4
    for (int share = 0; share < SHARES; share++) {
        const Vector<float, 2> own = statistics_of(share);
        if (own.at[1] == 0) continue;
        const float factor = exp2f(own.at[0] - most);
        sum += own.at[1] * factor;
        x += parts[share * RESULTS * DEPTH + i] * factor;
    }
    o[i] = from_float<o_t>(sum == 0 ? 0.0f : x / sum);
}
