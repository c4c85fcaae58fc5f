// Cross-entropy of rows of CLASSES logits, one block a row. Rows lie STRIDE apart; WIDTH logits are read at once.

// What stands at a row's target: whether it counts, whether it is a class at all, and its logit, read before anything is
// written over it.
struct Target {
    u32 number;
    bool counts;
    float logit;
    __device__ __forceinline__ Target(const u32 *targets, index_t row, const x_t *logits, u64 *fault)
        : number(targets[row]), counts(true), logit(0.0f) {
#ifdef IGNORED
        if (number == (u32)(IGNORED)) counts = false;
#endif
        if (counts && number >= CLASSES) {
            if (threadIdx.x == 0) raise_fault(fault, FAULT_STEP, number);
            counts = false;
        }
        if (counts) logit = to_float(logits[number]);
    }
};

#if LOSS
// The largest number so far, and the sum of the exponentials of the differences from it.
struct Sum {
    float highest, sum;
    // What is subtracted: from minus infinity, minus infinity would give NaN instead of nothing.
    __device__ __forceinline__ float shift() const { return highest == -__int_as_float(0x7f800000) ? 0.0f : highest; }
    __device__ __forceinline__ void raise(float x) {
        if (x > highest) {
            sum *= power_of_two((highest - x) * LOG2_E);
            highest = x;
        }
    }
    __device__ __forceinline__ void add(float x) { sum += power_of_two(fmaf(x, LOG2_E, -shift() * LOG2_E)); }
};

#if HELD
// The row, in shared memory: what is read again need not come from further away.
extern __shared__ __align__(16) u8 dynamic_memory[];
#endif

// Adds WIDTH logits. A NaN is not the largest; it gets into the sum.
__device__ __forceinline__ void add_vector(Sum &sum, const Vector<x_t, WIDTH> &numbers) {
    float highest = sum.highest;
#pragma unroll
    for (int v = 0; v < WIDTH; v++) highest = fmaxf(highest, to_float(numbers.at[v]));
    sum.raise(highest);
#pragma unroll
    for (int v = 0; v < WIDTH; v++) sum.add(to_float(numbers.at[v]));
}

#if COPIED
constexpr int VECTORS = (CLASSES / WIDTH + THREADS - 1) / THREADS, HALF = (VECTORS + 1) / 2;

// Visits where some of a thread's vectors begin.
template <int FIRST, int END, class Visit> __device__ __forceinline__ void each_vector(Visit visit) {
#pragma unroll
    for (int n = FIRST; n < END; n++) {
        const index_t c = ((index_t)n * THREADS + threadIdx.x) * WIDTH;
        if (c + WIDTH <= CLASSES) visit(c);
    }
}

// Adds the vectors of a thread, all of which are on their way to shared memory at once: half of them are added while the others
// still come.
__device__ __forceinline__ void add_copied(Sum &sum, const x_t *logits) {
    const auto copy = [&](index_t c) { begin_copy<16>((x_t *)dynamic_memory + c, logits + c, true); };
    const auto add = [&](index_t c) { add_vector(sum, *(const Vector<x_t, WIDTH> *)((x_t *)dynamic_memory + c)); };
    each_vector<0, HALF>(copy);
    close_copies();
    each_vector<HALF, VECTORS>(copy);
    close_copies();
    wait_copies<1>();
    each_vector<0, HALF>(add);
    wait_copies<0>();
    each_vector<HALF, VECTORS>(add);
}
#endif

// The log-sum-exp of a row, which every thread gets.
__device__ __forceinline__ float log_sum_exp(const x_t *logits, float *shared) {
    Sum own = {-__int_as_float(0x7f800000), 0.0f};
#if COPIED
    add_copied(own, logits);
#else
    for (index_t c = threadIdx.x * WIDTH; c + WIDTH <= CLASSES; c += THREADS * WIDTH) {
        const Vector<x_t, WIDTH> numbers = *(const Vector<x_t, WIDTH> *)(logits + c);
#if HELD
        *(Vector<x_t, WIDTH> *)((x_t *)dynamic_memory + c) = numbers;
#endif
        add_vector(own, numbers);
    }
#endif
    for (index_t c = CLASSES / WIDTH * WIDTH + threadIdx.x; c < CLASSES; c += THREADS) {
#if HELD
        ((x_t *)dynamic_memory)[c] = logits[c];
#endif
        own.raise(to_float(logits[c]));
        own.add(to_float(logits[c]));
    }
    const float highest = block_all<THREADS>(own.highest, Max(), shared);
    const float part = own.sum == 0.0f ? 0.0f : own.sum * power_of_two((own.highest - highest) * LOG2_E);
    return highest + logf(block_all<THREADS>(part, Add(), shared));
}
#endif

#if GRADIENT
// What a row's loss gives for its logits, written where they are or elsewhere; `logits` may be in shared memory. One is taken
// off at the target by one thread at the end: to compare every class with it would cost as much as the exponential.
__device__ __forceinline__ void give_gradient(
    const x_t *logits, y_t *gradient, const Target &target, float all, float row_gradient) {
    const float shift = all * LOG2_E;
    auto share = [&](float logit) { return power_of_two(fmaf(logit, LOG2_E, -shift)); };
    auto of = [&](float logit) { return from_float<y_t>(target.counts ? share(logit) * row_gradient : 0.0f); };
    // Every thread has read the target's logit.
    __syncthreads();
    for (index_t c = threadIdx.x * WIDTH; c + WIDTH <= CLASSES; c += THREADS * WIDTH) {
        const Vector<x_t, WIDTH> numbers = *(const Vector<x_t, WIDTH> *)(logits + c);
        Vector<y_t, WIDTH> results;
#pragma unroll
        for (int v = 0; v < WIDTH; v++) results.at[v] = of(to_float(numbers.at[v]));
        *(Vector<y_t, WIDTH> *)(gradient + c) = results;
    }
    for (index_t c = CLASSES / WIDTH * WIDTH + threadIdx.x; c < CLASSES; c += THREADS)
        gradient[c] = of(to_float(logits[c]));
    // What lies between rows takes part in products.
    for (index_t c = CLASSES + threadIdx.x; c < STRIDE; c += THREADS) gradient[c] = from_float<y_t>(0.0f);
    __syncthreads();
    if (threadIdx.x == 0 && target.counts)
        gradient[target.number] = from_float<y_t>((share(target.logit) - 1.0f) * row_gradient);
}
#endif

#if LOSS && GRADIENT
// Each thread reads in shared memory what it wrote there itself, so there is no need to wait for others.
extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_with_gradient(
    x_t *x, const u32 *targets, float *loss, float *total, const float *row_gradient, u64 *fault) {
    __shared__ float shared[32];
    const index_t row = blockIdx.x;
    x_t *logits = x + row * STRIDE;
    const Target target(targets, row, logits, fault);
    const float all = log_sum_exp(logits, shared);
    if (threadIdx.x == 0) {
        total[row] = all;
        loss[row] = target.counts ? all - target.logit : 0.0f;
    }
#if HELD
    give_gradient((const x_t *)dynamic_memory, logits, target, all, row_gradient[row]);
#else
    give_gradient(logits, logits, target, all, row_gradient[row]);
#endif
}
#elif LOSS
extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy(const x_t *x, const u32 *targets, float *loss, float *total, u64 *fault) {
    __shared__ float shared[32];
    const index_t row = blockIdx.x;
    const x_t *logits = x + row * STRIDE;
    const Target target(targets, row, logits, fault);
    const float all = log_sum_exp(logits, shared);
    if (threadIdx.x == 0) {
        total[row] = all;
        loss[row] = target.counts ? all - target.logit : 0.0f;
    }
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_gradient(
    const x_t *x, const u32 *targets, const float *total, const float *row_gradient, y_t *y, u64 *fault) {
    const index_t row = blockIdx.x;
    const x_t *logits = x + row * STRIDE;
    const Target target(targets, row, logits, fault);
    give_gradient(logits, y + row * STRIDE, target, total[row], row_gradient[row]);
}
#endif
