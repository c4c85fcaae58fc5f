// Attention on tensor cores: a block has ROWS rows, each of its WARPS some of them, FRAGMENTS times 16; these walk past the
// columns, COLUMNS at a time, which are copied while those before are computed with. Depths are multiples of 16.
typedef q_t number_t;
constexpr int THREADS = WARPS * WARP, WARP_ROWS = FRAGMENTS * 16, ROWS = WARPS * WARP_ROWS;
// Of the depth, how many multiples of 16 a product sums over, and of 8 it gives; and how many copies of 16 bytes a row takes.
constexpr int STEPS = DEPTH / 16, PARTS = DEPTH / 8;
// Rows in shared memory are 16 bytes longer than they must be, so that eight in a column lie in different banks.
constexpr int LINE = DEPTH + 8;

__device__ __forceinline__ int lane() { return threadIdx.x % WARP; }
// The first row of this warp in its block.
__device__ __forceinline__ int warp_row() { return threadIdx.x / WARP * WARP_ROWS; }
// Where the numbers of this lane lie in a fragment of 16 by 8 sums: in this row and 8 after it, this column and the next.
__device__ __forceinline__ int lane_row() { return lane() / 4; }
__device__ __forceinline__ int lane_column() { return lane() % 4 * 2; }

// Begins to copy COUNT rows that lie `stride` apart; those beyond the first `there` are zero. There is at least one.
template <int COUNT> __device__ __forceinline__ void begin_rows(number_t *to, const number_t *rows, index_t stride, int there) {
    constexpr int COPIES = COUNT * PARTS;
#pragma unroll
    for (int n = 0; n < (COPIES + THREADS - 1) / THREADS; n++) {
        const int i = n * THREADS + threadIdx.x, row = i / PARTS, column = i % PARTS * 8;
        if (COPIES % THREADS != 0 && i >= COPIES) break;
        begin_copy<16>(to + row * LINE + column, rows + (row < there ? row : 0) * stride + column, row < there);
    }
}

// The fragment [16, 16] of rows of `tile`, as the left operand of a product.
__device__ __forceinline__ void left(u32 (&to)[4], const number_t *tile, int row, int column) {
    load_matrices(to, tile + (row + lane() % 16) * LINE + column + lane() / 16 * 8);
}

// Two fragments, the right operands of products with the rows `row` and 8 more of `tile` as columns.
__device__ __forceinline__ void right_rows(u32 (&to)[4], const number_t *tile, int row, int column) {
    load_matrices(to, tile + (row + lane() % 8 + lane() / 16 * 8) * LINE + column + lane() / 8 % 2 * 8);
}

// Two fragments, the right operands of products with the columns `column` and 8 more of `tile` as columns.
__device__ __forceinline__ void right_columns(u32 (&to)[4], const number_t *tile, int row, int column) {
    load_transposed(to, tile + (row + lane() % 16) * LINE + column + lane() / 16 * 8);
}

// Sums of 16 by 16 as the left operand of the next product: they lie as that wants them.
__device__ __forceinline__ void as_left(u32 (&to)[4], const float (&sums)[4], const float (&next)[4]) {
    to[0] = pack(number_t(), sums[0], sums[1]);
    to[1] = pack(number_t(), sums[2], sums[3]);
    to[2] = pack(number_t(), next[0], next[1]);
    to[3] = pack(number_t(), next[2], next[3]);
}

// Puts sums into this warp's rows of `tile`, each row times a factor.
__device__ __forceinline__ void put_rows(number_t *tile, const float (&sums)[FRAGMENTS][PARTS][4], const float (&factors)[FRAGMENTS][2]) {
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
        for (int part = 0; part < PARTS; part++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = warp_row() + f * 16 + half * 8 + lane_row();
                const float *pair = &sums[f][part][half * 2], factor = factors[f][half];
                *(u32 *)(tile + row * LINE + part * 8 + lane_column()) = pack(number_t(), pair[0] * factor, pair[1] * factor);
            }
}

// Stores this warp's rows of `tile`, as far as there are such: `there` counts from the block's first row.
__device__ __forceinline__ void store_rows(number_t *to, index_t stride, int there, const number_t *tile) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < WARP_ROWS * PARTS / WARP; n++) {
        const int i = n * WARP + lane(), row = warp_row() + i / PARTS, column = i % PARTS * 8;
        typedef Vector<number_t, 8> Piece;
        if (row < there) *(Piece *)(to + row * stride + column) = *(const Piece *)(tile + row * LINE + column);
    }
}
