// Reductions over the REDUCED places of x for each of its KEPT ones. `kept_at` and `reduced_at` say where they lie, and the
// sum of both is the element. A block takes PART of the reduced places; VECTOR elements are read at once.
#if MAXIMUM
typedef Max Join;
constexpr u32 START_BITS = 0xff800000;
#else
typedef Add Join;
constexpr u32 START_BITS = 0;
#endif

typedef Vector<x_t, VECTOR> Elements;

__device__ __forceinline__ float term(x_t x) {
    const float number = to_float(x);
    if (SQUARES) return number * number;
    if (ABSOLUTE) return fabsf(number);
    if (ZEROS) return number == 0.0f ? 1.0f : 0.0f;
    return number;
}

// Where kept elements lie together: each thread has VECTOR of them, and ROWS threads share the reduced places.
extern "C" __global__ void __launch_bounds__(LANES * ROWS) reduce_columns(const x_t *x, y_t *y) {
    __shared__ float shared[ROWS][VECTOR][LANES];
    const u32 lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const index_t kept = ((index_t)blockIdx.x * LANES + lane) * VECTOR;
    const index_t begin = blockIdx.y * PART, end = REDUCED - begin < PART ? REDUCED : begin + PART;
    y_t *results = y + blockIdx.y * KEPT + kept;
    float joined[VECTOR];
    for (int v = 0; v < VECTOR; v++) joined[v] = __int_as_float(START_BITS);
    if (kept < KEPT) {
        for (int v = 0; ACCUMULATES && row == 0 && v < VECTOR; v++) joined[v] = to_float(results[v]);
        const x_t *column = x + kept_at(kept);
#pragma unroll 4
        for (index_t reduced = begin + row; reduced < end; reduced += ROWS) {
            const Elements elements = *(const Elements *)(column + reduced_at(reduced));
#pragma unroll
            for (int v = 0; v < VECTOR; v++) joined[v] = Join()(joined[v], term(elements.at[v]));
        }
    }
    if (ROWS > 1) {
#pragma unroll
        for (int v = 0; v < VECTOR; v++) shared[row][v][lane] = joined[v];
        __syncthreads();
        for (int other = 1; row == 0 && other < ROWS; other++)
#pragma unroll
            for (int v = 0; v < VECTOR; v++) joined[v] = Join()(joined[v], shared[other][v][lane]);
    }
    for (int v = 0; row == 0 && kept < KEPT && v < VECTOR; v++) results[v] = from_float<y_t>(joined[v]);
}

// Where reduced elements lie together: LANES threads share those of one kept place, a warp or a block.
extern "C" __global__ void __launch_bounds__(LANES * ROWS) reduce_rows(const x_t *x, y_t *y) {
    __shared__ float shared[32];
    const u32 lane = threadIdx.x % LANES;
    const index_t kept = (index_t)blockIdx.x * ROWS + threadIdx.x / LANES;
    const index_t begin = blockIdx.y * PART, end = REDUCED - begin < PART ? REDUCED : begin + PART;
    float joined = __int_as_float(START_BITS);
    if (kept < KEPT) {
        const x_t *row = x + kept_at(kept);
#pragma unroll 4
        for (index_t reduced = begin + lane * VECTOR; reduced < end; reduced += LANES * VECTOR) {
            const Elements elements = *(const Elements *)(row + reduced_at(reduced));
#pragma unroll
            for (int v = 0; v < VECTOR; v++) joined = Join()(joined, term(elements.at[v]));
        }
    }
    joined = block_all<LANES>(joined, Join(), shared);
    if (lane == 0 && kept < KEPT) {
        y_t *result = y + kept * gridDim.y + blockIdx.y;
        *result = from_float<y_t>(ACCUMULATES ? Join()(to_float(*result), joined) : joined);
    }
}
