// Cross-entropy of rows of CLASSES logits, one block a row. Rows lie STRIDE apart; WIDTH logits are read at once.

// What stands at a row's target: whether it counts, and whether it is a class at all.
struct Target {
    u32 number;
    bool counts;
    __device__ __forceinline__ Target(const u32 *targets, index_t row, u64 *fault) : number(targets[row]), counts(true) {
#ifdef IGNORED
        if (number == (u32)(IGNORED)) counts = false;
#endif
        if (counts && number >= CLASSES) {
            if (threadIdx.x == 0) raise_fault(fault, FAULT_STEP, number);
            counts = false;
        }
    }
};

#if FORWARD
// The largest number so far, and the sum of the exponentials of the differences from it.
struct Sum {
    float highest, sum;
    __device__ __forceinline__ void add(float x) {
        if (x > highest) {
            sum = sum * expf(highest - x) + 1.0f;
            highest = x;
        } else {
            sum += expf(x - highest);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy(const x_t *x, const u32 *targets, float *loss, float *total, u64 *fault) {
    __shared__ float shared[32];
    const index_t row = blockIdx.x;
    const Target target(targets, row, fault);
    const x_t *logits = x + row * STRIDE;
    Sum own = {-__int_as_float(0x7f800000), 0.0f};
    for (index_t c = threadIdx.x * WIDTH; c + WIDTH <= CLASSES; c += THREADS * WIDTH) {
        const Vector<x_t, WIDTH> numbers = *(const Vector<x_t, WIDTH> *)(logits + c);
        float highest = own.highest;
#pragma unroll
        for (int v = 0; v < WIDTH; v++) highest = Max()(to_float(numbers.at[v]), highest);
        if (highest > own.highest) own = {highest, own.sum * expf(own.highest - highest)};
#pragma unroll
        for (int v = 0; v < WIDTH; v++) own.sum += expf(to_float(numbers.at[v]) - own.highest);
    }
    for (index_t c = CLASSES / WIDTH * WIDTH + threadIdx.x; c < CLASSES; c += THREADS) own.add(to_float(logits[c]));
    const float highest = block_all<THREADS>(own.highest, Max(), shared);
    const float part = own.sum == 0.0f ? 0.0f : own.sum * expf(own.highest - highest);
    const float sum = block_all<THREADS>(part, Add(), shared);
    if (threadIdx.x == 0) {
        const float all = highest + logf(sum);
        total[row] = all;
        loss[row] = target.counts ? all - to_float(logits[target.number]) : 0.0f;
    }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy_gradient(const x_t *x, const u32 *targets, const float *total, const float *row_gradient, y_t *y, u64 *fault) {
    const index_t row = blockIdx.x;
    const Target target(targets, row, fault);
    const x_t *logits = x + row * STRIDE;
    y_t *gradient = y + row * STRIDE;
    const float all = total[row], scale = target.counts ? row_gradient[row] : 0.0f;
    auto of = [&](float logit, index_t c) {
        return target.counts ? (expf(logit - all) - (c == target.number ? 1.0f : 0.0f)) * scale : 0.0f;
    };
    for (index_t c = threadIdx.x * WIDTH; c + WIDTH <= CLASSES; c += THREADS * WIDTH) {
        const Vector<x_t, WIDTH> numbers = *(const Vector<x_t, WIDTH> *)(logits + c);
        Vector<y_t, WIDTH> results;
#pragma unroll
        for (int v = 0; v < WIDTH; v++) results.at[v] = from_float<y_t>(of(to_float(numbers.at[v]), c + v));
        *(Vector<y_t, WIDTH> *)(gradient + c) = results;
    }
    for (index_t c = CLASSES / WIDTH * WIDTH + threadIdx.x; c < CLASSES; c += THREADS)
        gradient[c] = from_float<y_t>(of(to_float(logits[c]), c));
}
#endif
