// Layer norm, or RMS norm where rows are not CENTERED, of COUNT rows of COLUMNS numbers. LANES threads share a row, a warp or
// a block, and each holds ITEMS times VECTOR of its numbers.
typedef Vector<x_t, VECTOR> Elements;
constexpr int UNROLLED = ITEMS <= 16 ? ITEMS : 1;

#if FORWARD
// A row is held before any of it is written, so that y may lie over x. Where rows are few, HOLDS, gain and bias are asked for
// while the kernel before still runs.
extern "C" __global__ void __launch_bounds__(LANES * ROWS) norm_rows(
    const x_t *x, const x_t *gain, y_t *y, float *inverses
#if CENTERED
    , const x_t *bias, float *means
#endif
) {
    __shared__ float shared[32];
    const u32 lane = threadIdx.x % LANES;
#if HOLDS
    Elements held_gains[ITEMS], held_biases[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const index_t column = (item * LANES + lane) * VECTOR;
        if (column >= COLUMNS) continue;
        held_gains[item] = *(const Elements *)(gain + column);
#if CENTERED
        held_biases[item] = *(const Elements *)(bias + column);
#endif
    }
#endif
    await_earlier();
    const index_t row = (index_t)blockIdx.x * ROWS + threadIdx.x / LANES;
    // All threads that share a row leave together.
    if (row >= COUNT) return;
    float numbers[ITEMS][VECTOR], sum = 0, squares = 0, mean = 0;
#pragma unroll UNROLLED
    for (int item = 0; item < ITEMS; item++) {
        const index_t column = (item * LANES + lane) * VECTOR;
        if (column >= COLUMNS) continue;
        const Elements elements = *(const Elements *)(x + row * COLUMNS + column);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            numbers[item][v] = to_float(elements.at[v]);
            sum += numbers[item][v];
        }
    }
    if (CENTERED) mean = block_all<LANES>(sum, Add(), shared) / (float)COLUMNS;
#pragma unroll UNROLLED
    for (int item = 0; item < ITEMS; item++) {
        const index_t column = (item * LANES + lane) * VECTOR;
        if (column >= COLUMNS) continue;
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            numbers[item][v] -= mean;
            squares += numbers[item][v] * numbers[item][v];
        }
    }
    const float variance = block_all<LANES>(squares, Add(), shared) / (float)COLUMNS;
    const float inverse = 1.0f / sqrtf(variance + EPSILON);
#pragma unroll UNROLLED
    for (int item = 0; item < ITEMS; item++) {
        const index_t column = (item * LANES + lane) * VECTOR;
        if (column >= COLUMNS) continue;
#if HOLDS
        const Elements gains = held_gains[item], biases = held_biases[item];
#else
        const Elements gains = *(const Elements *)(gain + column);
#if CENTERED
        const Elements biases = *(const Elements *)(bias + column);
#endif
#endif
        Vector<y_t, VECTOR> results;
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            float result = numbers[item][v] * inverse * to_float(gains.at[v]);
#if CENTERED
            result += to_float(biases.at[v]);
#endif
            results.at[v] = from_float<y_t>(result);
        }
        *(Vector<y_t, VECTOR> *)(y + row * COLUMNS + column) = results;
    }
    if (lane == 0) {
        inverses[row] = inverse;
#if CENTERED
        means[row] = mean;
#endif
    }
}
#else
// The gradient of each row, which may lie over x, g or what is added; and of gain and bias, SUMS of them, each block's share of the sums
// over the rows: [blocks, SUMS, COLUMNS].
extern "C" __global__ void __launch_bounds__(LANES * ROWS) norm_gradient(
    const x_t *x, const x_t *gain, const float *inverses, const g_t *g, x_t *dx, float *shares
#if CENTERED
    , const float *means
#endif
#if ADDS
    , const x_t *added
#endif
#if COPIES
    , copy_t *copy
#endif
) {
    // Of gain, of bias, of the copy.
    constexpr int SUMS = 1 + CENTERED + SUMS_COPY;
    __shared__ float shared[32];
    await_earlier();
    const u32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    float sums[SUMS][ITEMS][VECTOR] = {};
    for (index_t row = (index_t)blockIdx.x * ROWS + group; row < COUNT; row += gridDim.x * ROWS) {
        const float inverse = inverses[row];
        float mean = 0, shift = 0, stretch = 0;
#if CENTERED
        mean = means[row];
#endif
        Elements xs[ITEMS];
        Vector<g_t, VECTOR> gs[ITEMS];
#if ADDS
        Elements others[ITEMS];
#endif
#pragma unroll UNROLLED
        for (int item = 0; item < ITEMS; item++) {
            const index_t column = (item * LANES + lane) * VECTOR;
            if (column >= COLUMNS) continue;
            xs[item] = *(const Elements *)(x + row * COLUMNS + column);
            gs[item] = *(const Vector<g_t, VECTOR> *)(g + row * COLUMNS + column);
#if ADDS
            // Asked for with the rest, so that it is there when the sums over the row are.
            others[item] = *(const Elements *)(added + row * COLUMNS + column);
#endif
            const Elements gains = *(const Elements *)(gain + column);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                const float normalized = (to_float(xs[item].at[v]) - mean) * inverse;
                const float gradient = to_float(gs[item].at[v]), weighted = gradient * to_float(gains.at[v]);
                shift += weighted;
                stretch += weighted * normalized;
                sums[0][item][v] += gradient * normalized;
                if (CENTERED) sums[CENTERED][item][v] += gradient;
            }
        }
        shift = CENTERED ? block_all<LANES>(shift, Add(), shared) / (float)COLUMNS : 0.0f;
        stretch = block_all<LANES>(stretch, Add(), shared) / (float)COLUMNS;
#pragma unroll UNROLLED
        for (int item = 0; item < ITEMS; item++) {
            const index_t column = (item * LANES + lane) * VECTOR;
            if (column >= COLUMNS) continue;
            const Elements gains = *(const Elements *)(gain + column);
            Elements results;
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                const float normalized = (to_float(xs[item].at[v]) - mean) * inverse;
                const float weighted = to_float(gs[item].at[v]) * to_float(gains.at[v]);
                results.at[v] = from_float<x_t>(inverse * (weighted - shift - normalized * stretch));
#if ADDS
                results.at[v] = from_float<x_t>(to_float(results.at[v]) + to_float(others[item].at[v]));
#endif
            }
            *(Elements *)(dx + row * COLUMNS + column) = results;
#if COPIES
            Vector<copy_t, VECTOR> copies;
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                copies.at[v] = from_float<copy_t>(to_float(results.at[v]));
                if (SUMS_COPY) sums[SUMS - 1][item][v] += to_float(copies.at[v]);
            }
            *(Vector<copy_t, VECTOR> *)(copy + row * COLUMNS + column) = copies;
#endif
        }
    }
    shares += (index_t)blockIdx.x * SUMS * COLUMNS;
#if ROWS > 1
    // The groups of threads one after another.
    __shared__ float joined[SUMS * COLUMNS];
    for (u32 turn = 0; turn < ROWS; turn++) {
        if (group == turn)
#pragma unroll UNROLLED
            for (int item = 0; item < ITEMS; item++) {
                const index_t column = (item * LANES + lane) * VECTOR;
                if (column >= COLUMNS) continue;
                for (int s = 0; s < SUMS; s++)
#pragma unroll
                    for (int v = 0; v < VECTOR; v++) {
                        float *sum = joined + s * COLUMNS + column + v;
                        *sum = turn == 0 ? sums[s][item][v] : *sum + sums[s][item][v];
                    }
            }
        __syncthreads();
    }
    for (index_t i = threadIdx.x; i < SUMS * COLUMNS; i += LANES * ROWS) shares[i] = joined[i];
#else
#pragma unroll UNROLLED
    for (int item = 0; item < ITEMS; item++) {
        const index_t column = (item * LANES + lane) * VECTOR;
        if (column >= COLUMNS) continue;
        for (int s = 0; s < SUMS; s++)
#pragma unroll
            for (int v = 0; v < VECTOR; v++) shares[s * COLUMNS + column + v] = sums[s][item][v];
    }
#endif
}
#endif
