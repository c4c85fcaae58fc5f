// The gradient of attention in one walk, for a depth of 64, as many keys as queries, and no groups of heads. A block has one
// head after another; of each it walks past its keys, BLOCK_KEYS at a time, and for these past the tiles of queries that see
// them. Two warpgroups have 64 of the keys each, whose gradients, and those of their values, stay in registers. A third copies
// what they need and sums the gradient of the queries, from the slopes that they leave in shared memory, over the keys' turns
// in order: in shared memory for the last KEPT tiles and in `sums` for the others, each of its threads where only it reads. So
// bits are the same every time, and the two wait for nothing but copies: one multiplies while the other takes exponentials.
constexpr int BLOCK_KEYS = GROUPS * 64, TILES = (QUERIES + 63) / 64, ALL_THREADS = THREADS + GROUP_THREADS;
// Queries and their gradients, for this step and the next two; keys and values, for this turn and the next; slopes, two times.
constexpr int STAGES = 3, SLOPES = 2;
// Registers of a thread: those of the third warpgroup hold one sum, those of the others four. All three have what they began with,
// 168 each, and no more: one that asks for what nobody gives up waits forever.
#define OWN_REGISTERS "200"
#define THIRD_REGISTERS "104"

// What a block does at a time: a tile of queries with some keys. Steps and turns of keys are counted.
struct Step { index_t head; int key, query, number, turn; };

__device__ __forceinline__ int first_query(int key) { return queries_of(key, BLOCK_KEYS).begin / 64 * 64; }
__device__ __forceinline__ Step first_step() { return {blockIdx.x, 0, first_query(0), 0, 0}; }
__device__ __forceinline__ bool is_there(const Step &step) { return step.head < ALL_HEADS; }
__device__ __forceinline__ Step after(Step step) {
    step.number++, step.query += 64;
    if (step.query < queries_of(step.key, BLOCK_KEYS).end) return step;
    step.turn++, step.key += BLOCK_KEYS;
    if (step.key >= KEYS) step.key = 0, step.head += BLOCKS;
    step.query = first_query(step.key);
    return step;
}

// One of several barriers in turn: those of the steps of a number, by the number of times they were used. Every thread comes for
// itself: of one that comes for its warp, compute-sanitizer's racecheck does not see that the others' copies are ordered too.
template <int COUNT> __device__ __forceinline__ void come(u64 *barriers, int number) { arrive_alone(barriers + number % COUNT); }
template <int COUNT> __device__ __forceinline__ void meet(u64 *barriers, int number) { await(barriers + number % COUNT, number / COUNT % 2); }

// What the warpgroups share.
struct Shared {
    number_t *queries, *keys, *slopes;
    float *kept, *statistics;
    // The tiles of a step are there; all are done with its queries; its slopes are there; the queries' gradient has them.
    u64 *filled, *emptied, *sloped, *summed;
    __device__ __forceinline__ Shared(u8 *memory) {
        queries = (number_t *)memory, keys = queries + STAGES * 2 * TILE, slopes = keys + 2 * 2 * GROUPS * TILE;
        kept = (float *)(slopes + SLOPES * GROUPS * TILE), statistics = kept + KEPT * TILE;
        filled = (u64 *)(statistics + STAGES * 2 * 64), emptied = filled + STAGES, sloped = emptied + STAGES, summed = sloped + SLOPES;
    }
    __device__ __forceinline__ number_t *queries_at(const Step &step) const { return queries + step.number % STAGES * 2 * TILE; }
    __device__ __forceinline__ float *statistics_at(const Step &step) const { return statistics + step.number % STAGES * 2 * 64; }
    __device__ __forceinline__ number_t *keys_at(const Step &step) const { return keys + step.turn % 2 * 2 * GROUPS * TILE; }
    __device__ __forceinline__ number_t *slopes_at(const Step &step) const { return slopes + step.number % SLOPES * GROUPS * TILE; }
};

// Where the gradient of a step's head begins.
__device__ __forceinline__ index_t joint_stride() { return (index_t)(HEADS + 2 * KEY_HEADS) * DEPTH; }
__device__ __forceinline__ joint_t *joint_at(joint_t *joint, const Step &step) {
    return joint + step.head / HEADS * PLACES * joint_stride() + step.head % HEADS * DEPTH;
}

// The gradients of keys and values, and the slopes.
__device__ __forceinline__ void walk(const Shared &shared, int group, joint_t *joint) {
    const int member = threadIdx.x % GROUP_THREADS, lane = threadIdx.x % WARP;
    const int lane_row = member / WARP * 16 + lane / 4, lane_column = lane % 4 * 2;
    float scores[32], slopes[32], key_sums[32] = {}, value_sums[32] = {};
    // A group of products: of keys with queries, or of values with gradients.
    const auto begin_scores = [&](float (&to)[32], const number_t *left_tile, const number_t *right_tile) {
        const u64 left = describe(left_tile + group * TILE), right = describe(right_tile);
        open_products();
#pragma unroll
        for (int i = 0; i < 4; i++) multiply_tiles<false>(number_t(), to, left + i * COLUMNS_16, right + i * COLUMNS_16, i > 0);
        close_products();
    };
    Step now = first_step();
    meet<STAGES>(shared.filled, now.number);
    begin_scores(scores, shared.keys_at(now), shared.queries_at(now));
    bool first_of_keys = true;
    while (true) {
        const number_t *const query_tile = shared.queries_at(now), *const gradient_tile = query_tile + TILE;
        const float *const logs = shared.statistics_at(now), *const deltas = logs + 64;
        const int key = now.key + group * 64;
        wait_products<0>();
        settle(scores);
        begin_scores(slopes, shared.keys_at(now) + GROUPS * TILE, gradient_tile);
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
        // The slopes take the place of those of two steps before.
        if (now.number >= SLOPES) meet<SLOPES>(shared.summed, now.number - SLOPES);
        number_t *const own_slopes = shared.slopes_at(now) + group * TILE;
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
        publish();
        come<SLOPES>(shared.sloped, now.number);
        open_products();
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply_left<true>(number_t(), key_sums, left_slopes[i], describe(query_tile) + i * ROWS_16, i > 0 || !first_of_keys);
        close_products();

        const Step next = after(now);
        // After the last step its scores are begun again, for nothing, so that the same products run beside what follows.
        const bool more = is_there(next);
        const Step begun = more ? next : now;
        meet<STAGES>(shared.filled, begun.number);
        begin_scores(scores, shared.keys_at(begun), shared.queries_at(begun));
        wait_products<1>();
        if (more) come<STAGES>(shared.emptied, now.number);
        first_of_keys = !more || next.turn != now.turn;
        if (first_of_keys) {
            settle(key_sums);
            settle(value_sums);
            joint_t *const to = joint_at(joint, now) + key * joint_stride();
            store_sums(to + HEADS * DEPTH, joint_stride(), KEYS - key, key_sums, SCALE);
            store_sums(to + (HEADS + KEY_HEADS) * DEPTH, joint_stride(), KEYS - key, value_sums, 1);
        }
        if (!more) break;
        now = next;
    }
    wait_products<0>();
}

// The copies, and the gradient of the queries.
struct Third {
    const q_t *q;
    const k_t *k;
    const v_t *v;
    const g_t *g;
    const float *log_sum, *delta;
    joint_t *joint;
    float *sums;

    __device__ __forceinline__ void begin_step(const Shared &shared, const Step &step, bool with_keys) const {
        const int member = threadIdx.x % GROUP_THREADS;
        const index_t batch = step.head / HEADS, head = step.head % HEADS;
        const auto begin = [&](number_t *tile, const number_t *rows, index_t stride, int there) {
            begin_tile<GROUP_THREADS>(tile, rows, stride, there, member);
        };
        begin(shared.queries_at(step), q + q_row(batch, head, step.query), Q_PLACE, QUERIES - step.query);
        begin(shared.queries_at(step) + TILE, g + g_row(batch, head, step.query), G_PLACE, QUERIES - step.query);
        const int query = step.query + member % 64;
        const float *from = (member < 64 ? log_sum : delta) + step.head * QUERIES;
        begin_copy<4>(shared.statistics_at(step) + member, from + (query < QUERIES ? query : 0), query < QUERIES);
        for (int i = 0; with_keys && i < GROUPS; i++) {
            // A tile beyond the last key is zero.
            const int key = step.key + i * 64, row = key < KEYS ? key : 0, there = KEYS - key;
            begin(shared.keys_at(step) + i * TILE, k + k_row(batch, head, row), K_PLACE, there);
            begin(shared.keys_at(step) + (GROUPS + i) * TILE, v + v_row(batch, head, row), V_PLACE, there);
        }
    }

    // Adds a step's slopes with its keys to the gradient of its queries.
    __device__ __forceinline__ void add_queries(const Shared &shared, const Step &now) const {
        const int member = threadIdx.x % GROUP_THREADS, tile = now.query / 64, begin = TILES - KEPT;
        const Range seen = keys_of(now.query, 64);
        float *place = tile >= begin ? shared.kept + (tile - begin) * TILE : sums + ((index_t)blockIdx.x * begin + tile) * TILE;
        place += member * 4;
        typedef Vector<float, 4> Piece;
        // Asked for before there is something to add.
        Piece before[8] = {};
        if (now.key > seen.begin) {
#pragma unroll
            for (int i = 0; i < 8; i++) before[i] = *(const Piece *)(place + i * GROUP_THREADS * 4);
        }
        meet<SLOPES>(shared.sloped, now.number);
        float added[32];
        const u64 left = describe(shared.slopes_at(now)), right = describe(shared.keys_at(now));
        open_products();
#pragma unroll
        for (int i = 0; i < 4 * GROUPS; i++) multiply_tiles<true>(number_t(), added, left + i * ROWS_16, right + i * ROWS_16, i > 0);
        close_products();
        wait_products<0>();
        settle(added);
        come<SLOPES>(shared.summed, now.number);
#pragma unroll
        for (int i = 0; i < 32; i++) added[i] += before[i / 4].at[i % 4];
        if (now.key + BLOCK_KEYS >= seen.end) {
            store_sums(joint_at(joint, now) + now.query * joint_stride(), joint_stride(), QUERIES - now.query, added, SCALE);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                *(Piece *)(place + i * GROUP_THREADS * 4) = {added[i * 4], added[i * 4 + 1], added[i * 4 + 2], added[i * 4 + 3]};
        }
    }

    __device__ __forceinline__ void run(const Shared &shared) const {
        Step now = first_step(), next = after(now);
        begin_step(shared, now, true);
        close_copies();
        if (is_there(next)) begin_step(shared, next, next.turn != now.turn);
        close_copies();
        wait_copies<1>();
        publish();
        come<STAGES>(shared.filled, now.number);
        while (is_there(now)) {
            const Step later = after(next);
            const bool more = is_there(next) && is_there(later);
            if (is_there(next)) {
                finish_copies();
                publish();
                come<STAGES>(shared.filled, next.number);
            }
            // Its keys may take the place of this step's, which all must be done with first.
            const bool in_place = later.turn == now.turn + 2;
            const auto begin_later = [&] {
                if (later.number >= STAGES) meet<STAGES>(shared.emptied, later.number - STAGES);
                begin_step(shared, later, later.turn != next.turn);
            };
            if (more && !in_place) begin_later();
            meet<STAGES>(shared.filled, now.number);
            add_queries(shared, now);
            if (more && in_place) {
                meet<STAGES>(shared.emptied, now.number);
                begin_later();
            }
            now = next, next = later;
        }
    }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
attention_gradient_wgmma(const q_t *q, const k_t *k, const v_t *v, const g_t *g, const float *log_sum, const float *delta, joint_t *joint, float *sums) {
    extern __shared__ __align__(1024) u8 memory[];
    const Shared shared(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) start_barrier(shared.filled + i, GROUP_THREADS), start_barrier(shared.emptied + i, THREADS);
        for (int i = 0; i < SLOPES; i++) start_barrier(shared.sloped + i, THREADS), start_barrier(shared.summed + i, GROUP_THREADS);
    }
    __syncthreads();
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / GROUP_THREADS, 0);
    if (group < GROUPS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 " OWN_REGISTERS ";");
        walk(shared, group, joint);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 " THIRD_REGISTERS ";");
        Third{q, k, v, g, log_sum, delta, joint, sums}.run(shared);
    }
}
