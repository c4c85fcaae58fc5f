// A product of few rows, on tensor cores: d = a b + bias + added, or GELU of that. A block has a tile of TILE_ROWS by
// TILE_COLUMNS and a share of the depth, which it walks down STEP at a time, the next STAGES - 1 steps on their way meanwhile.
// The SHARES blocks of a cluster have a tile's depth between them. Each adds up what all have of some of its rows, in order.
constexpr int WARPS = 4, THREADS = WARPS * WARP, STEP = 64, STEPS = (DEPTH + STEP - 1) / STEP;
// Two by two warps have the tile, each so many fragments of 16 rows, and so many times 16 columns.
constexpr int FRAGMENTS = TILE_ROWS / 32, PARTS = TILE_COLUMNS / 32;
// Rows in shared memory are 16 bytes longer than they must be, so that eight in a column lie in different banks.
constexpr int A_LINE = STEP + 8, B_LINE = (B_TRANSPOSED ? STEP : TILE_COLUMNS) + 8;
constexpr int A_TILE = TILE_ROWS * A_LINE, B_LINES = B_TRANSPOSED ? TILE_COLUMNS : STEP, STAGE = A_TILE + B_LINES * B_LINE;
constexpr int SUM_LINE = TILE_COLUMNS + 8;
// What this block gives: rows of its tile, VECTOR numbers at a time.
constexpr int GIVEN_ROWS = TILE_ROWS / SHARES, PIECES = TILE_COLUMNS / VECTOR, ITEMS = (GIVEN_ROWS * PIECES + THREADS - 1) / THREADS;

typedef Vector<float, VECTOR> Numbers;

#if SHARES > 1
#define IN_CLUSTER __cluster_dims__(SHARES, 1, 1)
// Until all blocks of the cluster have come; what they wrote to shared memory is there.
__device__ __forceinline__ void all_blocks() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Numbers that lie here in the shared memory of another block of the cluster.
__device__ __forceinline__ Numbers numbers_of(const float *here, u32 block) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(here)), "r"(block));
    Numbers x;
#if VECTOR == 4
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.at[0]), "=f"(x.at[1]), "=f"(x.at[2]), "=f"(x.at[3]) : "r"(there) : "memory");
#else
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x.at[0]) : "r"(there) : "memory");
#endif
    return x;
}
#else
#define IN_CLUSTER
__device__ __forceinline__ void all_blocks() { __syncthreads(); }
__device__ __forceinline__ Numbers numbers_of(const float *here, u32) { return *(const Numbers *)here; }
#endif

// Begins to copy LINES lines of LENGTH numbers that lie `stride` apart. Of lines beyond `lines`, and of numbers beyond `numbers`,
// which is a multiple of 8, there are zeros instead.
template <int LINES, int LENGTH, int LINE>
__device__ __forceinline__ void begin_lines(number_t *to, const number_t *from, index_t stride, int lines, int numbers) {
    constexpr int COPIES = LINES * LENGTH / 8;
#pragma unroll
    for (int n = 0; n < (COPIES + THREADS - 1) / THREADS; n++) {
        const int i = n * THREADS + threadIdx.x, line = i / (LENGTH / 8), number = i % (LENGTH / 8) * 8;
        if (COPIES % THREADS != 0 && i >= COPIES) break;
        const bool there = line < lines && number < numbers;
        begin_copy<16>(to + line * LINE + number, there ? from + line * stride + number : from, there);
    }
}

extern "C" __global__ void IN_CLUSTER __launch_bounds__(THREADS)
rows_product(const number_t *a, const number_t *b, d_t *d, const bias_t *bias, const d_t *added) {
    extern __shared__ __align__(128) u8 shared[];
    number_t *const stages = (number_t *)shared;
    const int share = blockIdx.x % SHARES;
    const int first_column = blockIdx.x / SHARES * TILE_COLUMNS, first_row = blockIdx.y * TILE_ROWS;
    const int begin = STEPS * share / SHARES, end = STEPS * (share + 1) / SHARES;
    const auto stage_of = [&](int step) { return stages + (step - begin) % STAGES * STAGE; };
    const auto begin_a = [&](int step) {
        const number_t *from = a + (index_t)first_row * A_STRIDE + step * STEP;
        begin_lines<TILE_ROWS, STEP, A_LINE>(stage_of(step), from, A_STRIDE, ROWS - first_row, DEPTH - step * STEP);
    };
    const auto begin_b = [&](int step) {
#if B_TRANSPOSED
        const number_t *from = b + (index_t)first_column * B_STRIDE + step * STEP;
        const int lines = COLUMNS - first_column, numbers = DEPTH - step * STEP;
        begin_lines<TILE_COLUMNS, STEP, B_LINE>(stage_of(step) + A_TILE, from, B_STRIDE, lines, numbers);
#else
        const number_t *from = b + (index_t)(step * STEP) * B_STRIDE + first_column;
        const int lines = DEPTH - step * STEP, numbers = COLUMNS - first_column;
        begin_lines<STEP, TILE_COLUMNS, B_LINE>(stage_of(step) + A_TILE, from, B_STRIDE, lines, numbers);
#endif
    };

    // The second operand is there before the kernel before this one is through.
#pragma unroll
    for (int n = 0; n < STAGES - 1; n++)
        if (begin + n < end) begin_b(begin + n);
    await_earlier();
#pragma unroll
    for (int n = 0; n < STAGES - 1; n++) {
        if (begin + n < end) begin_a(begin + n);
        close_copies();
    }

    // What is added to the sums is asked for early: it is there when they are.
    float offsets[ITEMS][VECTOR] = {};
    const auto place_of = [&](int item, int &row, int &column) {
        const int i = item * THREADS + threadIdx.x;
        row = share * GIVEN_ROWS + i / PIECES, column = i % PIECES * VECTOR;
        return i < GIVEN_ROWS * PIECES && first_row + row < ROWS && first_column + column < COLUMNS;
    };
#if HAS_BIAS || ADDS
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        int row, column;
        if (!place_of(item, row, column)) continue;
#if ADDS
        const index_t at = (index_t)(first_row + row) * ADDED_STRIDE + first_column + column;
        const Vector<d_t, VECTOR> others = *(const Vector<d_t, VECTOR> *)(added + at);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) offsets[item][v] = to_float(others.at[v]);
#endif
#if HAS_BIAS
#pragma unroll
        for (int v = 0; v < VECTOR; v++) offsets[item][v] += to_float(bias[first_column + column + v]);
#endif
    }
#endif

    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int warp_row = warp / 2 * (TILE_ROWS / 2), warp_column = warp % 2 * (TILE_COLUMNS / 2);
    float sums[FRAGMENTS][PARTS * 2][4] = {};
    for (int step = begin; step < end; step++) {
        // After the barrier this step's numbers are there, and what was computed with those before is done.
        wait_copies<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < end) begin_a(step + STAGES - 1), begin_b(step + STAGES - 1);
        close_copies();
        const number_t *a_tile = stage_of(step), *b_tile = a_tile + A_TILE;
#pragma unroll
        for (int depth = 0; depth < STEP; depth += 16) {
            u32 left[FRAGMENTS][4];
#pragma unroll
            for (int f = 0; f < FRAGMENTS; f++)
                load_matrices(left[f], a_tile + (warp_row + f * 16 + lane % 16) * A_LINE + depth + lane / 16 * 8);
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const int column = warp_column + part * 16;
                u32 right[4];
#if B_TRANSPOSED
                load_matrices(right, b_tile + (column + lane % 8 + lane / 16 * 8) * B_LINE + depth + lane / 8 % 2 * 8);
#else
                load_transposed(right, b_tile + (depth + lane % 16) * B_LINE + column + lane / 16 * 8);
#endif
#pragma unroll
                for (int f = 0; f < FRAGMENTS; f++) {
                    multiply_add(number_t(), sums[f][part * 2], left[f], right[0], right[1]);
                    multiply_add(number_t(), sums[f][part * 2 + 1], left[f], right[2], right[3]);
                }
            }
        }
    }

    // The sums take the place of the operands.
    float *const block_sums = (float *)shared;
    wait_copies<0>();
    __syncthreads();
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
        for (int part = 0; part < PARTS * 2; part++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = warp_row + f * 16 + half * 8 + lane / 4, column = warp_column + part * 8 + lane % 4 * 2;
                *(Vector<float, 2> *)(block_sums + row * SUM_LINE + column) = {sums[f][part][half * 2], sums[f][part][half * 2 + 1]};
            }
    all_blocks();
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        int row, column;
        if (!place_of(item, row, column)) continue;
        const float *here = block_sums + row * SUM_LINE + column;
        Numbers sum = numbers_of(here, 0);
#pragma unroll
        for (int other = 1; other < SHARES; other++) {
            const Numbers more = numbers_of(here, other);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) sum.at[v] += more.at[v];
        }
        Vector<d_t, VECTOR> results;
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            const float x = sum.at[v] + offsets[item][v];
            results.at[v] = from_float<d_t>(GELU ? gelu_tanh(x) : x);
        }
        *(Vector<d_t, VECTOR> *)(d + (index_t)(first_row + row) * D_STRIDE + first_column + column) = results;
    }
#if SHARES > 1
    // No block ends while others read what it has.
    all_blocks();
#endif
}
