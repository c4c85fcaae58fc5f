// Attention in f32, for any depth: tiles of TILE rows by TILE columns, and of rows a CHUNK of the depth at a time. Threads are
// a square of SIDE by SIDE; each has EACH rows and EACH columns, SIDE apart.
constexpr int TILE = 64, SIDE = 16, EACH = TILE / SIDE, THREADS = SIDE * SIDE;
constexpr int CHUNK = DEPTH < TILE ? DEPTH : TILE, CHUNKS = (DEPTH + CHUNK - 1) / CHUNK;
// Numbers of a chunk that a thread has, SIDE apart; what is beyond the chunk is zero.
constexpr int PART = (CHUNK + SIDE - 1) / SIDE;

// Rows are one number longer than they must be, so that neighbors in a column lie in different banks.
struct Tile { float at[TILE][TILE + 1]; };

__device__ __forceinline__ int thread_row(int i) { return threadIdx.x / SIDE + i * SIDE; }
__device__ __forceinline__ int thread_column(int j) { return threadIdx.x % SIDE + j * SIDE; }

// A chunk of rows that lie `stride` apart, zero beyond the first `count` rows.
template <class T> __device__ void load(Tile &tile, const T *rows, index_t stride, int count, int chunk) {
    constexpr int WIDTH = PART * SIDE;
    for (int i = threadIdx.x; i < TILE * WIDTH; i += THREADS) {
        const int row = i / WIDTH, column = i % WIDTH, depth = chunk * CHUNK + column;
        const bool there = row < count && column < CHUNK && depth < DEPTH;
        tile.at[row][column] = there ? to_float(rows[row * stride + depth]) : 0.0f;
    }
}

// sums += a b^T.
__device__ __forceinline__ void multiply(float (&sums)[EACH][EACH], const Tile &a, const Tile &b) {
#pragma unroll 4
    for (int d = 0; d < CHUNK; d++) {
        float x[EACH], y[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) x[i] = a.at[thread_row(i)][d], y[i] = b.at[thread_column(i)][d];
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int j = 0; j < EACH; j++) sums[i][j] += x[i] * y[j];
    }
}

// sums += weights x.
__device__ __forceinline__ void weigh(float (&sums)[EACH][PART], const Tile &weights, const Tile &x) {
#pragma unroll 4
    for (int c = 0; c < TILE; c++) {
        float w[EACH], y[PART];
#pragma unroll
        for (int i = 0; i < EACH; i++) w[i] = weights.at[thread_row(i)][c];
#pragma unroll
        for (int p = 0; p < PART; p++) y[p] = x.at[c][thread_column(p)];
#pragma unroll
        for (int i = 0; i < EACH; i++)
#pragma unroll
            for (int p = 0; p < PART; p++) sums[i][p] += w[i] * y[p];
    }
}

// Stores a thread's part of a chunk of a row.
template <class T> __device__ __forceinline__ void store(T *row, int chunk, const float (&numbers)[PART], float factor) {
#pragma unroll
    for (int p = 0; p < PART; p++) {
        const int column = thread_column(p), depth = chunk * CHUNK + column;
        if (column < CHUNK && depth < DEPTH) row[depth] = from_float<T>(numbers[p] * factor);
    }
}

// Joins what the threads of a row have.
template <class Join> __device__ __forceinline__ float row_all(float x, Join join) {
#pragma unroll
    for (int offset = SIDE / 2; offset > 0; offset /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
