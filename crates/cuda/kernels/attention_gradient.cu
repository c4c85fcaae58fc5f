// The gradient of attention: of a tile of queries, from the keys that they see, or, if FOR_KEYS, of a tile of keys and their
// values, from the queries that see them, of one head after another. Either way the tile's rows are walked past the others'
// in order, and the probabilities are computed again from the logarithms of the sums.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_gradient(const q_t *q, const k_t *k, const v_t *v, const g_t *g, const float *log_sum, const float *delta, joint_t *joint) {
    extern __shared__ Tile tiles[];
    Tile &a = tiles[0], &b = tiles[1], &slopes = tiles[2], &probabilities = tiles[3];
    const Block at = block_of<TILE>(PLACES, FOR_KEYS ? KEY_HEADS : HEADS);
    const int rows = (FOR_KEYS ? KEYS : QUERIES) - at.first;
    float results[CHUNKS][EACH][PART] = {}, values[FOR_KEYS ? CHUNKS : 1][EACH][PART] = {};

    for (int member = 0; member < (FOR_KEYS ? GROUP : 1); member++) {
        const index_t head = FOR_KEYS ? at.head * GROUP + member : at.head, key_head = FOR_KEYS ? at.head : at.head / GROUP;
        const index_t statistics = (at.batch * HEADS + head) * QUERIES;
        const Range range = FOR_KEYS ? queries_of(at.first, TILE) : keys_of(at.first, TILE);
        for (int first = range.begin / TILE * TILE; first < range.end; first += TILE) {
            const int query = FOR_KEYS ? first : at.first, key = FOR_KEYS ? at.first : first;
            const int columns = (FOR_KEYS ? QUERIES : KEYS) - first;
            const q_t *queries = q + q_row(at.batch, head, query);
            const g_t *gradients = g + g_row(at.batch, head, query);
            const k_t *keys = k + k_row(at.batch, key_head, key);
            const v_t *key_values = v + v_row(at.batch, key_head, key);

            float scores[EACH][EACH] = {}, products[EACH][EACH] = {};
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                __syncthreads();
                load(FOR_KEYS ? b : a, queries, Q_PLACE, FOR_KEYS ? columns : rows, chunk);
                load(FOR_KEYS ? a : b, keys, K_PLACE, FOR_KEYS ? rows : columns, chunk);
                __syncthreads();
                multiply(scores, a, b);
                __syncthreads();
                load(FOR_KEYS ? b : a, gradients, G_PLACE, FOR_KEYS ? columns : rows, chunk);
                load(FOR_KEYS ? a : b, key_values, V_PLACE, FOR_KEYS ? rows : columns, chunk);
                __syncthreads();
                multiply(products, a, b);
            }
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    const int row = thread_row(i), column = thread_column(j);
                    const int of_query = query + (FOR_KEYS ? column : row), of_key = key + (FOR_KEYS ? row : column);
                    float probability = 0, slope = 0;
                    if (sees(of_query, of_key)) {
                        probability = exp2f(fmaf(scores[i][j], BINARY_SCALE, -log_sum[statistics + of_query]));
                        slope = probability * (products[i][j] - delta[statistics + of_query]);
                    }
                    slopes.at[row][column] = slope;
                    if (FOR_KEYS) probabilities.at[row][column] = probability;
                }
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; chunk++) {
                __syncthreads();
                if (FOR_KEYS) load(a, gradients, G_PLACE, columns, chunk), load(b, queries, Q_PLACE, columns, chunk);
                else load(b, keys, K_PLACE, columns, chunk);
                __syncthreads();
                weigh(results[chunk], slopes, b);
                if (FOR_KEYS) weigh(values[FOR_KEYS ? chunk : 0], probabilities, a);
            }
        }
    }

#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int place = at.first + thread_row(i);
        if (place >= PLACES) continue;
        joint_t *row = joint + (at.batch * PLACES + place) * (HEADS + 2 * KEY_HEADS) * DEPTH;
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            store(row + ((FOR_KEYS ? HEADS : 0) + at.head) * DEPTH, chunk, results[chunk][i], SCALE);
            if (FOR_KEYS) store(row + (HEADS + KEY_HEADS + at.head) * DEPTH, chunk, values[FOR_KEYS ? chunk : 0][i], 1.0f);
        }
    }
}
