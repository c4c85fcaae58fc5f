// The gradient of attention in one walk, for a depth of 64, as many keys as queries, and no groups of heads. A block has one
// head after another; of each it walks past its keys, BLOCK_KEYS at a time, and for these past the tiles of queries that see
// them. Each of its two warpgroups has 64 of the keys, whose gradients, and those of their values, stay in registers. The
// gradient of a tile of queries is summed over the keys' turns, in order, in shared memory for the last KEPT tiles and in
// `sums` for the others, always by the same warpgroup, each of its threads where only it reads: so nothing waits for it, and
// bits are the same every time.
constexpr int BLOCK_KEYS = GROUPS * 64, TILES = (QUERIES + 63) / 64;
// Queries and their gradients, for this step and the next two; keys and values, for this turn and the next; slopes, two times.
constexpr int STAGES = 3;

// What a block does at a time: a tile of queries with some keys. Steps and turns of keys are counted.
struct Step { index_t head; int key, query, number, turn; };

__device__ __forceinline__ int first_query(int key) { return queries_of(key, BLOCK_KEYS).begin / 64 * 64; }
__device__ __forceinline__ bool is_there(const Step &step) { return step.head < ALL_HEADS; }
__device__ __forceinline__ Step after(Step step) {
    step.number++, step.query += 64;
    if (step.query < queries_of(step.key, BLOCK_KEYS).end) return step;
    step.turn++, step.key += BLOCK_KEYS;
    if (step.key >= KEYS) step.key = 0, step.head += BLOCKS;
    step.query = first_query(step.key);
    return step;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_gradient_wgmma(const q_t *q, const k_t *k, const v_t *v, const g_t *g, const float *log_sum, const float *delta, joint_t *joint, float *sums) {
    extern __shared__ __align__(1024) u8 shared[];
    number_t *const queries = (number_t *)shared, *const keys = queries + STAGES * 2 * TILE, *const slope_tiles = keys + 2 * 2 * GROUPS * TILE;
    float *const kept = (float *)(slope_tiles + 2 * GROUPS * TILE), *const statistics = kept + KEPT * TILE;
    const auto queries_at = [&](const Step &step) { return queries + step.number % STAGES * 2 * TILE; };
    const auto statistics_at = [&](const Step &step) { return statistics + step.number % STAGES * 2 * 64; };
    const auto keys_at = [&](const Step &step) { return keys + step.turn % 2 * 2 * GROUPS * TILE; };
    const auto slopes_at = [&](const Step &step) { return slope_tiles + step.number % 2 * GROUPS * TILE; };

    const int group = threadIdx.x / GROUP_THREADS, member = threadIdx.x % GROUP_THREADS, lane = threadIdx.x % WARP;
    const int lane_row = member / WARP * 16 + lane / 4, lane_column = lane % 4 * 2;
    const auto begin_step = [&](const Step &step, bool with_keys) {
        const index_t batch = step.head / HEADS, head = step.head % HEADS;
        begin_tile(queries_at(step), q + q_row(batch, head, step.query), Q_PLACE, QUERIES - step.query);
        begin_tile(queries_at(step) + TILE, g + g_row(batch, head, step.query), G_PLACE, QUERIES - step.query);
        if (threadIdx.x < 2 * 64) {
            const int query = step.query + threadIdx.x % 64;
            const float *from = (threadIdx.x < 64 ? log_sum : delta) + step.head * QUERIES;
            begin_copy<4>(statistics_at(step) + threadIdx.x, from + (query < QUERIES ? query : 0), query < QUERIES);
        }
        if (!with_keys) return;
        for (int i = 0; i < GROUPS; i++) {
            // A tile beyond the last key is zero.
            const int key = step.key + i * 64, from = key < KEYS ? key : 0, there = KEYS - key;
            begin_tile(keys_at(step) + i * TILE, k + k_row(batch, head, from), K_PLACE, there);
            begin_tile(keys_at(step) + (GROUPS + i) * TILE, v + v_row(batch, head, from), V_PLACE, there);
        }
    };

    float scores[32], slopes[32], query_sums[32] = {}, key_sums[32] = {}, value_sums[32] = {};
    // A group of products: of keys with queries, or of values with gradients.
    const auto begin_scores = [&](float (&to)[32], const number_t *left_tile, const number_t *right_tile) {
        const u64 left = describe(left_tile + group * TILE), right = describe(right_tile);
        open_products();
#pragma unroll
        for (int i = 0; i < 4; i++) multiply_tiles<false>(number_t(), to, left + i * COLUMNS_16, right + i * COLUMNS_16, i > 0);
        close_products();
    };

    Step now = {blockIdx.x, 0, first_query(0), 0, 0}, next = after(now);
    begin_step(now, true);
    finish_copies();
    publish();
    __syncthreads();
    begin_scores(scores, keys_at(now), queries_at(now));
    if (is_there(next)) begin_step(next, next.turn != now.turn);
    bool first_of_keys = true;
    while (true) {
        const number_t *const query_tile = queries_at(now), *const gradient_tile = query_tile + TILE;
        const float *const logs = statistics_at(now), *const deltas = logs + 64;
        const int key = now.key + group * 64;
        wait_products<0>();
        settle(scores);
        begin_scores(slopes, keys_at(now) + GROUPS * TILE, gradient_tile);
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const Vector<float, 2> log = *(const Vector<float, 2> *)(logs + c * 8 + lane_column);
#pragma unroll
            for (int e = 0; e < 4; e++) scores[c * 4 + e] = power_of_two(fmaf(scores[c * 4 + e], BINARY_SCALE, -log.at[e % 2]));
        }
        if (!all_seen(now.query, 64, key, 64)) {
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (!sees(now.query + i / 4 * 8 + lane_column + i % 2, key + lane_row + i / 2 % 2 * 8)) scores[i] = 0;
        }
        u32 left[4][4];
#pragma unroll
        for (int i = 0; i < 16; i++) left[i / 4][i % 4] = pack(number_t(), scores[i * 2], scores[i * 2 + 1]);
        open_products();
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply_left<true>(number_t(), value_sums, left[i], describe(gradient_tile) + i * ROWS_16, i > 0 || !first_of_keys);
        close_products();

        wait_products<1>();
        settle(slopes);
        number_t *const own_slopes = slopes_at(now) + group * TILE;
        u32 left_slopes[4][4];
#pragma unroll
        for (int c = 0; c < 8; c++) {
            const Vector<float, 2> subtracted = *(const Vector<float, 2> *)(deltas + c * 8 + lane_column);
            float slope[4];
#pragma unroll
            for (int e = 0; e < 4; e++) slope[e] = scores[c * 4 + e] * (slopes[c * 4 + e] - subtracted.at[e % 2]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 pair = pack(number_t(), slope[half * 2], slope[half * 2 + 1]);
                left_slopes[c / 2][c % 2 * 2 + half] = pair;
                *(u32 *)(own_slopes + tile_at(lane_row + half * 8, c * 8 + lane_column)) = pair;
            }
        }
        open_products();
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply_left<true>(number_t(), key_sums, left_slopes[i], describe(query_tile) + i * ROWS_16, i > 0 || !first_of_keys);
        close_products();

        // After the barrier all slopes of this step are there, and what the next step needs; the step before is done.
        finish_copies();
        publish();
        __syncthreads();
        const bool own_queries = now.query / 64 % GROUPS == group;
        if (own_queries) {
            const u64 left = describe(slopes_at(now)), right = describe(keys_at(now));
            open_products();
#pragma unroll
            for (int i = 0; i < 4 * GROUPS; i++) multiply_tiles<true>(number_t(), query_sums, left + i * ROWS_16, right + i * ROWS_16, i > 0);
            close_products();
        }
        // After the last step its scores are begun again, for nothing, so that the same products run beside what follows.
        const bool more = is_there(next);
        const Step &begun = more ? next : now;
        begin_scores(scores, keys_at(begun), queries_at(begun));
        wait_products<1>();
        const Step later = after(next);
        if (more && is_there(later)) {
            // Its keys may take the place of this step's, which all must be done with.
            if (later.turn == now.turn + 2) __syncthreads();
            begin_step(later, later.turn != next.turn);
        }

        const index_t batch = now.head / HEADS, head = now.head % HEADS, stride = (index_t)(HEADS + 2 * KEY_HEADS) * DEPTH;
        joint_t *const to = joint + (index_t)batch * PLACES * stride + head * DEPTH;
        if (own_queries) {
            settle(query_sums);
            float totals[32];
#pragma unroll
            for (int i = 0; i < 32; i++) totals[i] = query_sums[i];
            const Range seen = keys_of(now.query, 64);
            const int tile = now.query / 64, begin = TILES - KEPT;
            float *place = tile >= begin ? kept + (tile - begin) * TILE : sums + ((index_t)blockIdx.x * begin + tile) * TILE;
            place += member * 4;
            typedef Vector<float, 4> Piece;
            if (now.key > seen.begin) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    const Piece before = *(const Piece *)(place + i * GROUP_THREADS * 4);
#pragma unroll
                    for (int e = 0; e < 4; e++) totals[i * 4 + e] += before.at[e];
                }
            }
            if (now.key + BLOCK_KEYS >= seen.end) {
                store_sums(to + now.query * stride, stride, QUERIES - now.query, totals, SCALE);
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++)
                    *(Piece *)(place + i * GROUP_THREADS * 4) = {totals[i * 4], totals[i * 4 + 1], totals[i * 4 + 2], totals[i * 4 + 3]};
            }
        }
        first_of_keys = !more || next.turn != now.turn;
        if (first_of_keys) {
            settle(key_sums);
            settle(value_sums);
            store_sums(to + key * stride + HEADS * DEPTH, stride, KEYS - key, key_sums, SCALE);
            store_sums(to + key * stride + (HEADS + KEY_HEADS) * DEPTH, stride, KEYS - key, value_sums, 1);
        }
        if (!more) break;
        now = next, next = later;
    }
    wait_products<0>();
}
