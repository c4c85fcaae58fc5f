// Attention of 64 queries of one head for each warpgroup of a block, for depths of 64 and 128: scores with a tile of 64 keys
// after another, a large score of each row and its sum of exponentials carried along. Probabilities are rounded for the product
// with the values, and not for the sum. The product with the values runs beside the next tile's exponentials, and products of
// one warpgroup beside the exponentials of another: so these meet at a barrier where none waits before it has computed its
// exponentials.
constexpr int ROWS = GROUPS * 64, PARTS = DEPTH / 64;
// Of the STAGES, tiles of keys and values that there is room for, a step reads two; those after are being copied.
constexpr int AHEAD = STAGES - 2;

// Exponentials are relative to the largest score so far, or to one whose exponential is up to 2 to the SLACK smaller: so most
// tiles leave what was summed before as it is.
constexpr float SLACK = 8;

// The tiles of the keys that some of these queries see.
__device__ __forceinline__ Range tiles_of(int first, int count) {
    const Range keys = keys_of(first, count);
    return {keys.begin / 64, (keys.end + 63) / 64};
}

extern "C" __global__ void __launch_bounds__(THREADS, DEPTH == 64 ? 2 : 1)
attention_wgmma(const q_t *q, const k_t *k, const v_t *v, o_t *o, float *log_sum) {
    extern __shared__ __align__(1024) u8 shared[];
    number_t *const queries = (number_t *)shared, *const stages = queries + GROUPS * PARTS * TILE;
    u64 *const barrier = (u64 *)(stages + STAGES * 2 * PARTS * TILE);
    const auto keys_at = [&](int tile) { return stages + tile % STAGES * 2 * PARTS * TILE; };
    const auto values_at = [&](int tile) { return keys_at(tile) + PARTS * TILE; };

    const Block at = block_of<ROWS>(QUERIES, HEADS);
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / GROUP_THREADS, 0), lane = threadIdx.x % WARP, query = at.first + group * 64;
    const int warp_row = threadIdx.x % GROUP_THREADS / WARP * 16, lane_row = warp_row + lane / 4, lane_column = lane % 4 * 2;
    const Range all = tiles_of(at.first, ROWS), own = tiles_of(query, 64);
    const auto begin_stage = [&](int tile) {
        const int first = tile * 64;
        const index_t key_head = at.head / GROUP;
        for (int part = 0; part < PARTS; part++) {
            begin_tile(keys_at(tile) + part * TILE, k + k_row(at.batch, key_head, first) + part * 64, K_PLACE, KEYS - first);
            begin_tile(values_at(tile) + part * TILE, v + v_row(at.batch, key_head, first) + part * 64, V_PLACE, KEYS - first);
        }
    };
    // This warp is done with the tile before the last, and its share of the next one is there.
    const auto come = [&] {
        wait_copies<AHEAD - 2>();
        publish();
        arrive(barrier);
    };
    // All have come: the next tile is there, and one more may take the place of the tile before the last.
    const auto go_on = [&](int tile) {
        await(barrier, (tile - all.begin) % 2);
        if (tile + AHEAD < all.end) begin_stage(tile + AHEAD);
        close_copies();
    };

    if (threadIdx.x == 0) start_barrier(barrier, THREADS / WARP);
    for (int i = 0; i < GROUPS; i++) {
        // A tile beyond the last query is zero.
        const int first = at.first + i * 64, from = first < QUERIES ? first : 0;
        for (int part = 0; part < PARTS; part++)
            begin_tile(queries + (i * PARTS + part) * TILE, q + q_row(at.batch, at.head, from) + part * 64, Q_PLACE, QUERIES - first);
    }
    for (int i = 0; i < AHEAD; i++) {
        if (all.begin + i < all.end) begin_stage(all.begin + i);
        close_copies();
    }
    wait_copies<AHEAD - 1>();
    publish();
    __syncthreads();

    u32 left[PARTS * 4][4];
#pragma unroll
    for (int step = 0; step < PARTS * 4; step++)
        load_matrices(left[step], queries + (group * PARTS + step / 4) * TILE + tile_at(warp_row + lane % 16, step % 4 * 16 + lane / 16 * 8));
    float scores[32], results[PARTS][32] = {}, highest[2] = {-INFINITE, -INFINITE}, sums[2] = {}, factors[2];
    u32 weights[4][4];
    const auto begin_scores = [&](int tile) {
#pragma unroll
        for (int step = 0; step < PARTS * 4; step++)
            multiply_left<false>(number_t(), scores, left[step], describe(keys_at(tile) + step / 4 * TILE) + step % 4 * COLUMNS_16, step > 0);
        close_products();
    };
    const auto begin_results = [&](int tile) {
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                multiply_left<true>(number_t(), results[part], weights[i], describe(values_at(tile) + part * TILE) + i * ROWS_16, true);
        close_products();
    };
    // Makes exponentials of the scores with a tile, and finds what all that was summed before is to be multiplied by.
    const auto exponentiate = [&](int tile) {
        if (!all_seen(query, 64, tile * 64, 64)) {
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (!sees(query + lane_row + i / 2 % 2 * 8, tile * 64 + i / 4 * 8 + lane_column + i % 2)) scores[i] = -INFINITE;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = highest[half];
#pragma unroll
            for (int c = 0; c < 8; c++) most = fmaxf(most, fmaxf(scores[c * 4 + half * 2], scores[c * 4 + half * 2 + 1]));
            most = row_all(most, Most());
            if ((most - highest[half]) * BINARY_SCALE <= SLACK) most = highest[half];
            // A row that has seen nothing yet has nothing to scale.
            const float base = most == -INFINITE ? 0.0f : most * BINARY_SCALE;
            factors[half] = power_of_two(fmaf(highest[half], BINARY_SCALE, -base));
            highest[half] = most;
            float sum = sums[half] * factors[half];
#pragma unroll
            for (int c = 0; c < 8; c++)
#pragma unroll
                for (int i = c * 4 + half * 2; i < c * 4 + half * 2 + 2; i++) {
                    scores[i] = power_of_two(fmaf(scores[i], BINARY_SCALE, -base));
                    sum += scores[i];
                }
            sums[half] = sum;
        }
    };
    const auto scale_results = [&] {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            settle(results[part]);
#pragma unroll
            for (int i = 0; i < 32; i++) results[part][i] *= factors[i / 2 % 2];
        }
    };
    const auto round_weights = [&] {
#pragma unroll
        for (int i = 0; i < 16; i++) weights[i / 4][i % 4] = pack(number_t(), scores[i * 2], scores[i * 2 + 1]);
    };

    int tile = all.begin;
    for (; tile < own.begin; tile++) come(), go_on(tile);
    if (tile < own.end) {
        open_products();
        begin_scores(tile);
        wait_products<0>();
        settle(scores);
        come();
        exponentiate(tile);
        round_weights();
        go_on(tile);
        for (; tile + 1 < own.end; tile++) {
            open_products();
            begin_scores(tile + 1);
            begin_results(tile);
            // The scores are there; the product with the values may still run, and exponentials are computed meanwhile.
            wait_products<1>();
            settle(scores);
            come();
            exponentiate(tile + 1);
            settle(scores);
            go_on(tile + 1);
            wait_products<0>();
            if (__any_sync(0xffffffffu, factors[0] != 1 || factors[1] != 1)) scale_results();
            round_weights();
        }
        open_products();
        begin_results(tile);
        wait_products<0>();
        tile++;
    }
    for (; tile < all.end; tile++) come(), go_on(tile);

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = query + lane_row + half * 8;
        const float sum = row_all(sums[half], Add());
        factors[half] = 1.0f / sum;
        if (row < QUERIES && lane % 4 == 0)
            log_sum[(at.batch * HEADS + at.head) * QUERIES + row] = fmaf(highest[half], BINARY_SCALE, log2f(sum));
    }
    scale_results();
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        store_sums(o + o_row(at.batch, at.head, query) + part * 64, O_PLACE, QUERIES - query, results[part], 1);
}
