// Rows of g summed by number. Numbers were sorted, with their positions in rising order: a block sums CHUNK of them, one
// after another. What lies in one chunk is written; where a number goes on in the next chunk, the sums of the chunks are left
// aside, for the number that came from the chunk before and for the one that goes on, and added in order afterwards.
// A number out of range has become TABLE_ROWS, and comes last.
#if KEYS
extern "C" __global__ void __launch_bounds__(THREADS) embedding_keys(const ids_t *ids, word_t *keys, word_t *positions, u64 *fault) {
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= COUNT) return;
    const u32 id = (u32)ids[i];
    if (id >= TABLE_ROWS) raise_fault(fault, FAULT_STEP, id);
    keys[i] = id < TABLE_ROWS ? id : TABLE_ROWS;
    positions[i] = i;
}
#else
__device__ __forceinline__ void write_row(y_t *y, const float *sums) {
    typedef Vector<y_t, VECTOR> Results;
    Results results;
    if (ACCUMULATES) results = *(const Results *)y;
#pragma unroll
    for (int v = 0; v < VECTOR; v++) results.at[v] = from_float<y_t>(ACCUMULATES ? to_float(results.at[v]) + sums[v] : sums[v]);
    *(Results *)y = results;
}

extern "C" __global__ void __launch_bounds__(THREADS) embedding_sums(
    const y_t *__restrict__ g, const word_t *__restrict__ keys, const word_t *__restrict__ positions, y_t *__restrict__ y,
    float *__restrict__ shares) {
    const index_t column = ((index_t)blockIdx.y * THREADS + threadIdx.x) * VECTOR;
    if (column >= COLUMNS) return;
    const index_t begin = (index_t)blockIdx.x * CHUNK, end = COUNT - begin < CHUNK ? COUNT : begin + CHUNK;
    float sums[VECTOR] = {};
    bool came = begin > 0 && keys[begin - 1] == keys[begin];
#pragma unroll 4
    for (index_t i = begin; i < end; i++) {
        const word_t key = keys[i];
        if (key == TABLE_ROWS) return;
        const Vector<y_t, VECTOR> elements = *(const Vector<y_t, VECTOR> *)(g + (index_t)positions[i] * COLUMNS + column);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) sums[v] += to_float(elements.at[v]);
        const bool goes_on = i + 1 < COUNT && keys[i + 1] == key;
        if (goes_on && i + 1 < end) continue;
        if (!came && !goes_on) {
            write_row(y + (index_t)key * COLUMNS + column, sums);
        } else {
            float *share = shares + ((index_t)blockIdx.x * 2 + (came ? 0 : 1)) * COLUMNS + column;
#pragma unroll
            for (int v = 0; v < VECTOR; v++) share[v] = sums[v];
        }
#pragma unroll
        for (int v = 0; v < VECTOR; v++) sums[v] = 0;
        came = false;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) embedding_joins(const word_t *keys, y_t *y, const float *shares) {
    const index_t column = ((index_t)blockIdx.y * THREADS + threadIdx.x) * VECTOR;
    if (column >= COLUMNS) return;
    const index_t begin = (index_t)blockIdx.x * CHUNK, end = begin + CHUNK;
    // The number that begins in this chunk and goes on in the next, if there is one.
    if (end >= COUNT) return;
    const word_t key = keys[end - 1];
    if (key == TABLE_ROWS || keys[end] != key || (begin > 0 && keys[begin - 1] == key)) return;
    float sums[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; v++) sums[v] = shares[((index_t)blockIdx.x * 2 + 1) * COLUMNS + column + v];
    for (index_t chunk = (index_t)blockIdx.x + 1; chunk * CHUNK < COUNT && keys[chunk * CHUNK] == key; chunk++)
#pragma unroll
        for (int v = 0; v < VECTOR; v++) sums[v] += shares[chunk * 2 * COLUMNS + column + v];
    write_row(y + (index_t)key * COLUMNS + column, sums);
}
#endif
