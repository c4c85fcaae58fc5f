// Attention of a tile of queries of one head: scores with a tile of keys after another, each row's largest score and sum of
// exponentials carried along.
extern "C" __global__ void __launch_bounds__(THREADS)
attention(const q_t *q, const k_t *k, const v_t *v, o_t *o, float *log_sum) {
    extern __shared__ Tile tiles[];
    Tile &a = tiles[0], &b = tiles[1], &weights = tiles[2];
    const Block at = block_of<TILE>(QUERIES, HEADS);
    const index_t key_head = at.head / GROUP;
    const q_t *queries = q + q_row(at.batch, at.head, at.first);
    float results[CHUNKS][EACH][PART] = {}, highest[EACH], sums[EACH] = {};
    for (int i = 0; i < EACH; i++) highest[i] = -INFINITE;

    const Range range = keys_of(at.first, TILE);
    for (int first = range.begin / TILE * TILE; first < range.end; first += TILE) {
        float scores[EACH][EACH] = {};
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            __syncthreads();
            load(a, queries, Q_PLACE, QUERIES - at.first, chunk);
            load(b, k + k_row(at.batch, key_head, first), K_PLACE, KEYS - first, chunk);
            __syncthreads();
            multiply(scores, a, b);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int query = at.first + thread_row(i);
            float most = highest[i];
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const bool seen = sees(query, first + thread_column(j));
                scores[i][j] = seen ? scores[i][j] * BINARY_SCALE : -INFINITE;
                most = fmaxf(most, scores[i][j]);
            }
            most = row_all(most, Most());
            // A row that has seen nothing yet has nothing to scale.
            const float base = most == -INFINITE ? 0.0f : most, factor = exp2f(highest[i] - base);
            highest[i] = most;
            sums[i] *= factor;
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const float weight = exp2f(scores[i][j] - base);
                sums[i] += weight;
                weights.at[thread_row(i)][thread_column(j)] = weight;
            }
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
                for (int p = 0; p < PART; p++) results[chunk][i][p] *= factor;
        }
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            __syncthreads();
            load(b, v + v_row(at.batch, key_head, first), V_PLACE, KEYS - first, chunk);
            __syncthreads();
            weigh(results[chunk], weights, b);
        }
    }

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int query = at.first + thread_row(i);
        const float sum = row_all(sums[i], Add());
        if (query >= QUERIES) continue;
        o_t *row = o + o_row(at.batch, at.head, query);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) store(row, chunk, results[chunk][i], 1.0f / sum);
        if (threadIdx.x % SIDE == 0) log_sum[(at.batch * HEADS + at.head) * QUERIES + query] = highest[i] + log2f(sum);
    }
}
