// Attention of a tile of queries of one head, on tensor cores: scores with a tile of keys after another, each row's largest
// score and sum of exponentials carried along. Probabilities are rounded for the product with the values, and not for the sum.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_mma(const q_t *q, const k_t *k, const v_t *v, o_t *o, float *log_sum) {
    extern __shared__ __align__(128) u8 shared[];
    number_t *const queries = (number_t *)shared, *const stages = queries + ROWS * LINE;
    const Block at = block_of<ROWS>(QUERIES, HEADS);
    const Range range = keys_of(at.first, ROWS);
    const int begin = range.begin / COLUMNS, end = (range.end + COLUMNS - 1) / COLUMNS;
    const auto keys_at = [&](int tile) { return stages + tile % 2 * 2 * COLUMNS * LINE; };
    const auto begin_tile = [&](int tile) {
        const int first = tile * COLUMNS;
        const index_t key_head = at.head / GROUP;
        begin_rows<COLUMNS>(keys_at(tile), k + k_row(at.batch, key_head, first), K_PLACE, KEYS - first);
        begin_rows<COLUMNS>(keys_at(tile) + COLUMNS * LINE, v + v_row(at.batch, key_head, first), V_PLACE, KEYS - first);
    };

    u32 left_queries[FRAGMENTS][STEPS][4];
    float results[FRAGMENTS][PARTS][4] = {}, highest[FRAGMENTS][2], sums[FRAGMENTS][2] = {};
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) highest[f][0] = highest[f][1] = -INFINITE;

    begin_rows<ROWS>(queries, q + q_row(at.batch, at.head, at.first), Q_PLACE, QUERIES - at.first);
    begin_tile(begin);
    for (int tile = begin; tile < end; tile++) {
        // After the barrier this tile is there, and what was computed with the one before is done.
        finish_copies();
        __syncthreads();
        if (tile + 1 < end) begin_tile(tile + 1);
        if (tile == begin) {
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
                for (int step = 0; step < STEPS; step++) left(left_queries[f][step], queries, warp_row() + f * 16, step * 16);
        }
        const int first = tile * COLUMNS, query = at.first + warp_row();
        if (!some_seen(query, WARP_ROWS, first, COLUMNS)) continue;
        const number_t *keys = keys_at(tile), *values = keys + COLUMNS * LINE;

        float scores[FRAGMENTS][COLUMNS / 8][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int c = 0; c < COLUMNS / 16; c++) {
                u32 right[4];
                right_rows(right, keys, c * 16, step * 16);
#pragma unroll
                for (int f = 0; f < FRAGMENTS; f++) {
                    multiply_add(number_t(), scores[f][c * 2], left_queries[f][step], right[0], right[1]);
                    multiply_add(number_t(), scores[f][c * 2 + 1], left_queries[f][step], right[2], right[3]);
                }
            }

        if (!all_seen(query, WARP_ROWS, first, COLUMNS)) {
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
                for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int row = query + f * 16 + e / 2 * 8 + lane_row();
                        if (!sees(row, first + c * 8 + lane_column() + e % 2)) scores[f][c][e] = -INFINITE;
                    }
        }
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float most = highest[f][half];
#pragma unroll
                for (int c = 0; c < COLUMNS / 8; c++) most = fmaxf(most, fmaxf(scores[f][c][half * 2], scores[f][c][half * 2 + 1]));
                most = row_all(most, Most());
                // A row that has seen nothing yet has nothing to scale.
                const float base = most == -INFINITE ? 0.0f : most * BINARY_SCALE;
                const float factor = power_of_two(fmaf(highest[f][half], BINARY_SCALE, -base));
                highest[f][half] = most;
                float sum = sums[f][half] * factor;
#pragma unroll
                for (int c = 0; c < COLUMNS / 8; c++)
#pragma unroll
                    for (int e = half * 2; e < half * 2 + 2; e++) {
                        scores[f][c][e] = power_of_two(fmaf(scores[f][c][e], BINARY_SCALE, -base));
                        sum += scores[f][c][e];
                    }
                sums[f][half] = sum;
#pragma unroll
                for (int part = 0; part < PARTS; part++)
                    results[f][part][half * 2] *= factor, results[f][part][half * 2 + 1] *= factor;
            }

#pragma unroll
        for (int c = 0; c < COLUMNS / 16; c++) {
            u32 weights[FRAGMENTS][4];
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++) as_left(weights[f], scores[f][c * 2], scores[f][c * 2 + 1]);
#pragma unroll
            for (int part = 0; part < PARTS; part += 2) {
                u32 right[4];
                right_columns(right, values, c * 16, part * 8);
#pragma unroll
                for (int f = 0; f < FRAGMENTS; f++) {
                    multiply_add(number_t(), results[f][part], weights[f], right[0], right[1]);
                    multiply_add(number_t(), results[f][part + 1], weights[f], right[2], right[3]);
                }
            }
        }
    }

    float factors[FRAGMENTS][2];
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = at.first + warp_row() + f * 16 + half * 8 + lane_row();
            const float sum = row_all(sums[f][half], Add());
            factors[f][half] = 1.0f / sum;
            if (query < QUERIES && lane() % 4 == 0)
                log_sum[(at.batch * HEADS + at.head) * QUERIES + query] = fmaf(highest[f][half], BINARY_SCALE, log2f(sum));
        }
    // Only this warp has read its rows of the queries, and it is done with them.
    put_rows(queries, results, factors);
    store_rows(o + o_row(at.batch, at.head, at.first), O_PLACE, QUERIES - at.first, queries);
}
