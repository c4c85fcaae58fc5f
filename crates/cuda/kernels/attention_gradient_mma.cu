// The gradient of attention on tensor cores: of a tile of queries, from the keys that they see, or, if FOR_KEYS, of a tile of
// keys and their values, from the queries that see them, of one head after another. Rows are queries and their gradients, or
// keys and values; columns are the others. So what a product gives is the left operand of the next as it lies.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_gradient_mma(const q_t *q, const k_t *k, const v_t *v, const g_t *g, const float *log_sum, const float *delta, joint_t *joint) {
    extern __shared__ __align__(128) u8 shared[];
    // Two tiles of rows, then for each of two stages two tiles of columns, then for each stage two statistics of columns.
    number_t *const rows = (number_t *)shared, *const partners = rows + ROWS * LINE, *const stages = partners + ROWS * LINE;
    float *const statistics = (float *)(stages + 4 * COLUMNS * LINE);
    const auto columns_at = [&](int turn) { return stages + turn % 2 * 2 * COLUMNS * LINE; };
    const auto statistics_at = [&](int turn) { return statistics + turn % 2 * 2 * COLUMNS; };

    const Block at = block_of<ROWS>(PLACES, FOR_KEYS ? KEY_HEADS : HEADS);
    const Range range = FOR_KEYS ? queries_of(at.first, ROWS) : keys_of(at.first, ROWS);
    const int begin = range.begin / COLUMNS, tiles = max((range.end + COLUMNS - 1) / COLUMNS - begin, 0);
    const int turns = FOR_KEYS ? tiles * GROUP : tiles;
    const auto first_at = [&](int turn) { return (begin + (FOR_KEYS && GROUP > 1 ? turn % tiles : turn)) * COLUMNS; };
    const auto query_head = [&](int turn) { return FOR_KEYS ? at.head * GROUP + (GROUP > 1 ? turn / tiles : 0) : at.head; };
    const index_t key_head = FOR_KEYS ? at.head : at.head / GROUP;
    const auto begin_queries = [&](number_t *to, number_t *partner, int first, index_t head) {
        constexpr int COUNT = FOR_KEYS ? COLUMNS : ROWS;
        begin_rows<COUNT>(to, q + q_row(at.batch, head, first), Q_PLACE, QUERIES - first);
        begin_rows<COUNT>(partner, g + g_row(at.batch, head, first), G_PLACE, QUERIES - first);
    };
    const auto begin_keys = [&](number_t *to, number_t *partner, int first) {
        constexpr int COUNT = FOR_KEYS ? ROWS : COLUMNS;
        begin_rows<COUNT>(to, k + k_row(at.batch, key_head, first), K_PLACE, KEYS - first);
        begin_rows<COUNT>(partner, v + v_row(at.batch, key_head, first), V_PLACE, KEYS - first);
    };
    const auto begin_turn = [&](int turn) {
        number_t *columns = columns_at(turn);
        const int first = first_at(turn);
        if (!FOR_KEYS) return begin_keys(columns, columns + COLUMNS * LINE, first);
        const index_t head = query_head(turn);
        begin_queries(columns, columns + COLUMNS * LINE, first, head);
        for (int i = threadIdx.x; i < COLUMNS; i += THREADS) {
            const bool there = first + i < QUERIES;
            const index_t from = (at.batch * HEADS + head) * QUERIES + (there ? first + i : 0);
            begin_copy<4>(statistics_at(turn) + i, log_sum + from, there);
            begin_copy<4>(statistics_at(turn) + COLUMNS + i, delta + from, there);
        }
    };

    float results[FRAGMENTS][PARTS][4] = {}, values[FOR_KEYS ? FRAGMENTS : 1][PARTS][4] = {};
    u32 left_rows[FRAGMENTS][KEPT ? STEPS : 1][4], left_partners[FRAGMENTS][KEPT ? STEPS : 1][4];
    float row_logs[FRAGMENTS][2] = {}, row_deltas[FRAGMENTS][2] = {};
    const auto load_left = [&](int step, int to) {
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
            left(left_rows[f][to], rows, warp_row() + f * 16, step * 16);
            left(left_partners[f][to], partners, warp_row() + f * 16, step * 16);
        }
    };
    if (turns > 0) {
        if (FOR_KEYS) begin_keys(rows, partners, at.first);
        else begin_queries(rows, partners, at.first, at.head);
        begin_turn(0);
    }
    if (!FOR_KEYS) {
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int query = at.first + warp_row() + f * 16 + half * 8 + lane_row();
                if (query >= QUERIES) continue;
                const index_t from = (at.batch * HEADS + at.head) * QUERIES + query;
                row_logs[f][half] = log_sum[from], row_deltas[f][half] = delta[from];
            }
    }

    for (int turn = 0; turn < turns; turn++) {
        // After the barrier this tile is there, and what was computed with the one before is done.
        finish_copies();
        __syncthreads();
        if (turn + 1 < turns) begin_turn(turn + 1);
        if (KEPT && turn == 0) {
#pragma unroll
            for (int step = 0; step < STEPS; step++) load_left(step, KEPT ? step : 0);
        }
        const number_t *columns = columns_at(turn), *column_partners = columns + COLUMNS * LINE;
        const float *column_logs = statistics_at(turn), *column_deltas = column_logs + COLUMNS;
#pragma unroll 1
        for (int part = 0; part < COLUMNS; part += PART) {
            const int row = at.first + warp_row(), column = first_at(turn) + part;
            const int query = FOR_KEYS ? column : row, key = FOR_KEYS ? row : column;
            constexpr int QUERY_COUNT = FOR_KEYS ? PART : WARP_ROWS, KEY_COUNT = FOR_KEYS ? WARP_ROWS : PART;
            if (!some_seen(query, QUERY_COUNT, key, KEY_COUNT)) continue;

            float scores[FRAGMENTS][PART / 8][4] = {}, slopes[FRAGMENTS][PART / 8][4] = {};
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                if (!KEPT) load_left(step, 0);
#pragma unroll
                for (int c = 0; c < PART / 16; c++) {
                    u32 right[4], right_partner[4];
                    right_rows(right, columns, part + c * 16, step * 16);
                    right_rows(right_partner, column_partners, part + c * 16, step * 16);
#pragma unroll
                    for (int f = 0; f < FRAGMENTS; f++) {
                        multiply_add(number_t(), scores[f][c * 2], left_rows[f][KEPT ? step : 0], right[0], right[1]);
                        multiply_add(number_t(), scores[f][c * 2 + 1], left_rows[f][KEPT ? step : 0], right[2], right[3]);
                        multiply_add(number_t(), slopes[f][c * 2], left_partners[f][KEPT ? step : 0], right_partner[0], right_partner[1]);
                        multiply_add(number_t(), slopes[f][c * 2 + 1], left_partners[f][KEPT ? step : 0], right_partner[2], right_partner[3]);
                    }
                }
            }

            const bool all = all_seen(query, QUERY_COUNT, key, KEY_COUNT);
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
                for (int c = 0; c < PART / 8; c++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int i = f * 16 + e / 2 * 8 + lane_row(), j = c * 8 + lane_column() + e % 2;
                        const float log = FOR_KEYS ? column_logs[part + j] : row_logs[f][e / 2];
                        const float subtracted = FOR_KEYS ? column_deltas[part + j] : row_deltas[f][e / 2];
                        float probability = power_of_two(fmaf(scores[f][c][e], BINARY_SCALE, -log));
                        if (!all && !sees(query + (FOR_KEYS ? j : i), key + (FOR_KEYS ? i : j))) probability = 0;
                        scores[f][c][e] = probability;
                        slopes[f][c][e] = probability * (slopes[f][c][e] - subtracted);
                    }

#pragma unroll
            for (int c = 0; c < PART / 16; c++) {
                u32 weights[FRAGMENTS][4], probabilities[FRAGMENTS][4];
#pragma unroll
                for (int f = 0; f < FRAGMENTS; f++) {
                    as_left(weights[f], slopes[f][c * 2], slopes[f][c * 2 + 1]);
                    if (FOR_KEYS) as_left(probabilities[f], scores[f][c * 2], scores[f][c * 2 + 1]);
                }
#pragma unroll
                for (int p = 0; p < PARTS; p += 2) {
                    u32 right[4], right_partner[4];
                    right_columns(right, columns, part + c * 16, p * 8);
                    if (FOR_KEYS) right_columns(right_partner, column_partners, part + c * 16, p * 8);
#pragma unroll
                    for (int f = 0; f < FRAGMENTS; f++) {
                        multiply_add(number_t(), results[f][p], weights[f], right[0], right[1]);
                        multiply_add(number_t(), results[f][p + 1], weights[f], right[2], right[3]);
                        if (!FOR_KEYS) continue;
                        multiply_add(number_t(), values[FOR_KEYS ? f : 0][p], probabilities[f], right_partner[0], right_partner[1]);
                        multiply_add(number_t(), values[FOR_KEYS ? f : 0][p + 1], probabilities[f], right_partner[2], right_partner[3]);
                    }
                }
            }
        }
    }

    // Only this warp has read its rows, and it is done with them.
    float factors[FRAGMENTS][2];
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) factors[f][0] = factors[f][1] = SCALE;
    put_rows(rows, results, factors);
    joint_t *const to = joint + (at.batch * PLACES + at.first) * (HEADS + 2 * KEY_HEADS) * DEPTH + at.head * DEPTH;
    const index_t stride = (index_t)(HEADS + 2 * KEY_HEADS) * DEPTH;
    store_rows(to + (FOR_KEYS ? HEADS * DEPTH : 0), stride, PLACES - at.first, rows);
#if FOR_KEYS
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) factors[f][0] = factors[f][1] = 1;
    put_rows(partners, values, factors);
    store_rows(to + (HEADS + KEY_HEADS) * DEPTH, stride, PLACES - at.first, partners);
#endif
}
