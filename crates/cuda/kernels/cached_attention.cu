// Attention of few queries over the filled places of a cache, which are those before and of the queries' own tokens; the rows of
// these are put into the cache by this kernel if it APPENDS, and were before if not. A row is a query of one of the heads that share keys, and a
// block has ROWS of them, so that a key is read once for all. LANES lanes have a key, each WIDTH neighboring numbers of it
// ITEMS times, and carry every row's largest score and sum of exponentials along over the keys that they have had. A block
// has TEAMS of such lanes, and each of them UNROLLED keys in a step, which are all asked for before any is used. Of the steps
// a block takes every SHARES-th.
constexpr int TEAMS = THREADS / LANES, STEP = TEAMS * UNROLLED, WARPS = THREADS / WARP;

#define INFINITE __int_as_float(0x7f800000)

// What scores are taken relative to: the largest, if anything was seen.
__device__ __forceinline__ float base_of(float most) { return most == -INFINITE ? 0.0f : most; }

struct Row { index_t head, query; bool there; };
__device__ __forceinline__ Row row_of(index_t key_head, index_t row) {
    return {key_head * GROUP + row / QUERIES, row % QUERIES, row < GROUP * QUERIES};
}

// Two blocks a multiprocessor are few enough for registers that hold all that was asked for. Where that is little, eight have
// room, so that all blocks of 64 texts run at once beside those of the product before.
constexpr int BLOCKS = ROWS * ITEMS * WIDTH <= 8 ? 8 : 2;
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) cached_attention(
    const q_t *q, k_t *k, v_t *v, const i32 *position, o_t *o
#if APPENDS
    , const k_t *new_k, const v_t *new_v
#endif
#if SHARES > 1
    , float *parts, float *statistics
#endif
) {
    extern __shared__ float joined[];
    const int first_place = *position, filled = min(max(first_place, 0), PLACES - QUERIES) + QUERIES;
    await_earlier();
    const index_t share = blockIdx.x % SHARES, rest = blockIdx.x / SHARES;
    const index_t first_row = rest % TILES * ROWS, batch = rest / TILES / KEY_HEADS, key_head = rest / TILES % KEY_HEADS;
    const int team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    k += (batch * KEY_HEADS + key_head) * PLACES * DEPTH;
    v += (batch * KEY_HEADS + key_head) * PLACES * DEPTH;

#if APPENDS
    const index_t first_new = (batch * KEY_HEADS + key_head) * QUERIES;
#endif
    // The keys that each row sees, and those that some row does.
    int begins[ROWS], ends[ROWS], begin = PLACES, end = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const Row row = row_of(key_head, first_row + r);
        ends[r] = row.there ? filled - QUERIES + (int)row.query + 1 : 0;
        begins[r] = max(ends[r] - WINDOW, 0);
        if (ends[r] > 0) begin = min(begin, begins[r]), end = max(end, ends[r]);
    }

#if SHARES > 1
    if (begin + (int)share * STEP >= end) {
        const Row row = row_of(key_head, first_row + threadIdx.x);
        const index_t at = (batch * QUERIES + row.query) * HEADS + row.head;
        if (threadIdx.x < ROWS && row.there) *(Vector<float, 2> *)(statistics + (share * RESULTS + at) * 2) = {-INFINITE, 0.0f};
        return;
    }
#endif

    float queries[ROWS][ITEMS][WIDTH], results[ROWS][ITEMS][WIDTH] = {}, highest[ROWS], sums[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const Row row = row_of(key_head, first_row + r);
        highest[r] = -INFINITE;
#pragma unroll
        for (int item = 0; item < ITEMS; item++)
#pragma unroll
            for (int w = 0; w < WIDTH; w++) {
                const int column = (item * LANES + lane) * WIDTH + w;
                const index_t at = ((batch * HEADS + row.head) * QUERIES + row.query) * DEPTH + column;
                queries[r][item][w] = row.there && column < DEPTH ? to_float(q[q_at(at)]) * BINARY_SCALE : 0.0f;
            }
    }

    for (int first = begin + (int)share * STEP; first < end; first += SHARES * STEP) {
        // What nobody sees is not read, for it may be anything: the last key instead, and of lanes beyond the depth the first.
        Vector<k_t, WIDTH> keys[UNROLLED][ITEMS];
        Vector<v_t, WIDTH> values[UNROLLED][ITEMS];
#pragma unroll
        for (int u = 0; u < UNROLLED; u++)
#pragma unroll
            for (int item = 0; item < ITEMS; item++) {
                const int key = min(first + u * TEAMS + team, end - 1), own = (item * LANES + lane) * WIDTH;
                const int column = own < DEPTH ? own : 0;
                const index_t at = (index_t)key * DEPTH + column;
                const k_t *from_k = k + at;
                const v_t *from_v = v + at;
#if APPENDS
                const u32 row = (u32)key - (u32)first_place;
                const bool is_new = row < QUERIES;
                const index_t new_at = (first_new + (is_new ? row : 0)) * DEPTH + column;
                if (is_new) from_k = new_k + new_k_at(new_at), from_v = new_v + new_v_at(new_at);
#endif
                keys[u][item] = *(const Vector<k_t, WIDTH> *)from_k;
                values[u][item] = *(const Vector<v_t, WIDTH> *)from_v;
            }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float scores[UNROLLED], most = highest[r];
#pragma unroll
            for (int u = 0; u < UNROLLED; u++) {
                const int key = first + u * TEAMS + team;
                float score = 0;
#pragma unroll
                for (int item = 0; item < ITEMS; item++)
#pragma unroll
                    for (int w = 0; w < WIDTH; w++) score += queries[r][item][w] * to_float(keys[u][item].at[w]);
#pragma unroll
                for (int offset = LANES / 2; offset > 0; offset /= 2) score += __shfl_xor_sync(0xffffffffu, score, offset);
                scores[u] = key >= begins[r] && key < ends[r] ? score : -INFINITE;
                most = fmaxf(most, scores[u]);
            }
            const float base = base_of(most), factor = exp2f(highest[r] - base);
            highest[r] = most;
            sums[r] *= factor;
#pragma unroll
            for (int item = 0; item < ITEMS; item++)
#pragma unroll
                for (int w = 0; w < WIDTH; w++) results[r][item][w] *= factor;
#pragma unroll
            for (int u = 0; u < UNROLLED; u++) {
                const float weight = exp2f(scores[u] - base);
                sums[r] += weight;
#pragma unroll
                for (int item = 0; item < ITEMS; item++)
#pragma unroll
                    for (int w = 0; w < WIDTH; w++) results[r][item][w] += weight * to_float(values[u][item].at[w]);
            }
        }
    }

#if APPENDS
    // One of the blocks that see the new rows writes them, after it has read what it needs, so that no read waits for a write. All
    // read them where they come from.
    if (share == 0 && rest % TILES == 0)
        for (int i = threadIdx.x; i < QUERIES * (DEPTH / WIDTH); i += THREADS) {
            const int row = i / (DEPTH / WIDTH), column = i % (DEPTH / WIDTH) * WIDTH;
            const long long place = (long long)first_place + row;
            if (place < 0 || place >= PLACES) continue;
            const index_t from = (first_new + row) * DEPTH + column, to = (index_t)place * DEPTH + column;
            *(Vector<k_t, WIDTH> *)(k + to) = *(const Vector<k_t, WIDTH> *)(new_k + new_k_at(from));
            *(Vector<v_t, WIDTH> *)(v + to) = *(const Vector<v_t, WIDTH> *)(new_v + new_v_at(from));
        }
#endif

    // What the teams of a warp have, joined, and then what the warps have, in order: of each, a row's numbers, its largest
    // score and its sum.
    constexpr int LINE = DEPTH + 2;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float most = highest[r];
#pragma unroll
        for (int offset = WARP / 2; offset >= LANES; offset /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
        const float factor = exp2f(highest[r] - base_of(most));
        const auto join = [&](float x) {
            x *= factor;
#pragma unroll
            for (int offset = WARP / 2; offset >= LANES; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
            return x;
        };
        float *line = joined + (threadIdx.x / WARP * ROWS + r) * LINE;
        const bool writes = threadIdx.x % WARP < LANES;
        const float sum = join(sums[r]);
        if (writes && lane == 0) line[DEPTH] = most, line[DEPTH + 1] = sum;
#pragma unroll
        for (int item = 0; item < ITEMS; item++)
#pragma unroll
            for (int w = 0; w < WIDTH; w++) {
                const int column = (item * LANES + lane) * WIDTH + w;
                const float x = join(results[r][item][w]);
                if (writes && column < DEPTH) line[column] = x;
            }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * DEPTH; i += THREADS) {
        const int r = i / DEPTH, column = i % DEPTH;
        const Row row = row_of(key_head, first_row + r);
        if (!row.there) continue;
        float most = -INFINITE, sum = 0, x = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) most = fmaxf(most, joined[(warp * ROWS + r) * LINE + DEPTH]);
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) {
            const float *line = joined + (warp * ROWS + r) * LINE, factor = exp2f(line[DEPTH] - base_of(most));
            sum += line[DEPTH + 1] * factor;
            x += line[column] * factor;
        }
        const index_t at = (batch * QUERIES + row.query) * HEADS + row.head;
#if SHARES > 1
        // Nobody asks for the numbers of a sum of nothing.
        if (sum != 0) parts[(share * RESULTS + at) * DEPTH + column] = x;
        if (column == 0) *(Vector<float, 2> *)(statistics + (share * RESULTS + at) * 2) = {most, sum};
#else
        o[at * DEPTH + column] = from_float<o_t>(sum == 0 ? 0.0f : x / sum);
#endif
    }
}
