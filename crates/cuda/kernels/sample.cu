// A token of each row of logits: a block has a row. Tokens are ordered by their ranks, and weigh integers, so that sums are
// exact in whatever order they are made. Of the order, no more is found than where it ends: all above a rank are considered,
// and of those at it so many, the first ones. A rank of 0 is a token that is not allowed; no finite number has that.
constexpr u32 WARPS = THREADS / WARP, ALL_LANES = 0xffffffffu;
static_assert(WARPS == WARP, "a warp has a lane for every warp");
constexpr u32 DIGIT_BITS = 10, BINS = THREADS;
static_assert(1 << DIGIT_BITS == BINS, "a thread has a bin");

struct Considered { u32 rank, ties; };

// What is chosen from so far: what the tokens above the rank weigh together, and how many are at it.
struct Load { u64 above; u32 ties; };

__shared__ u32 bins_low[BINS], bins_high[BINS];
__shared__ u64 shared_sums[WARPS];
__shared__ u32 shared_counts[WARPS], shared_largest[WARPS], shared_smallest[WARPS];

__device__ __forceinline__ u32 lane_of() { return threadIdx.x % WARP; }
__device__ __forceinline__ u32 warp_of() { return threadIdx.x / WARP; }

template <class T, class Join> __device__ __forceinline__ T all_lanes(T x, Join join) {
    for (u32 offset = WARP / 2; offset > 0; offset /= 2) x = join(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}

struct Sum { template <class T> __device__ __forceinline__ T operator()(T a, T b) const { return a + b; } };
struct Largest { __device__ __forceinline__ u32 operator()(u32 a, u32 b) const { return a > b ? a : b; } };
struct Smallest { __device__ __forceinline__ u32 operator()(u32 a, u32 b) const { return a < b ? a : b; } };

// The sum of all lanes up to this one.
template <class T> __device__ __forceinline__ T up_to_lane(T x) {
    for (u32 offset = 1; offset < WARP; offset *= 2) {
        const T other = __shfl_up_sync(ALL_LANES, x, offset);
        if (lane_of() >= offset) x += other;
    }
    return x;
}

// The first lane at which the sum of numbers reaches what is wanted, of which what is before that lane is taken away.
__device__ __forceinline__ u32 reaching(u64 x, u64 &wanted) {
    const u64 up_to = up_to_lane(x);
    const u32 enough = __ballot_sync(ALL_LANES, up_to >= wanted);
    const u32 lane = enough == 0 ? WARP - 1 : __ffs(enough) - 1;
    wanted -= __shfl_sync(ALL_LANES, up_to - x, lane);
    return lane;
}

struct Row {
    const x_t *logits;
    const u32 *allowed;
#if HELD
    u32 *held;
#endif

    __device__ __forceinline__ u32 computed(index_t token) const {
        return allowed[token / 32] >> token % 32 & 1u ? rising(to_float(logits[token])) : 0;
    }

    __device__ __forceinline__ u32 rank(index_t token) const {
#if HELD
        return held[token];
#else
        return computed(token);
#endif
    }
};

// Tokens of this warp, of those from `first` up to `end` that all warps share: `visit(token, rank)`.
template <class Rank, class Visit>
__device__ __forceinline__ void each_token(index_t first, index_t end, Rank rank, Visit visit) {
    constexpr u32 AT_ONCE = 8;
    const index_t part = (end - first + WARPS - 1) / WARPS, begin = first + warp_of() * part;
    const index_t stop = begin + part < end ? begin + part : end;
    index_t start = begin;
    // Whole chunks need not be looked at for their end.
    for (; start + AT_ONCE * WARP <= stop; start += AT_ONCE * WARP) {
        u32 ranks[AT_ONCE];
#pragma unroll
        for (u32 each = 0; each < AT_ONCE; each++) ranks[each] = rank(start + each * WARP + lane_of());
#pragma unroll
        for (u32 each = 0; each < AT_ONCE; each++) visit(start + each * WARP + lane_of(), ranks[each]);
    }
    for (index_t token = start + lane_of(); token < stop; token += WARP) visit(token, rank(token));
}

// What tokens weigh: their share of the likeliest one's probability, in integers.
struct Shares {
    float largest, scale;

    __device__ __forceinline__ u32 operator()(u32 rank) const {
        const float share = exp2f(__fmul_rn(number_of(rank) - largest, scale));
        return __float2uint_rn(__fmul_rn(share, (float)(1u << 30)));
    }
};

struct Ones { __device__ __forceinline__ u32 operator()(u32) const { return 1; } };

// The tokens that come first in order, the largest rank first, and together weigh what is wanted: so much must be there among
// those of rank `lowest` and above.
template <class Weight>
__device__ Considered descend(const Row &row, u32 largest, u32 lowest, u64 wanted, Weight weight) {
    // How far below the largest the rank is at least. Bins are so many ranks wide, from there on.
    u32 distance = 0, shift = 32 - __clz(largest - lowest);
    do {
        shift = shift > DIGIT_BITS ? shift - DIGIT_BITS : 0;
        bins_low[threadIdx.x] = bins_high[threadIdx.x] = 0;
        __syncthreads();
        each_token(0, COLUMNS, [&](index_t token) { return row.rank(token); }, [&](index_t, u32 rank) {
            const u32 digit = (largest - rank - distance) >> shift;
            if (rank < lowest || digit >= BINS) return;
            const u32 added = weight(rank);
            if (added == 0) return;
            const u32 before = atomicAdd(bins_low + digit, added);
            if (before + added < before) atomicAdd(bins_high + digit, 1u);
        });
        __syncthreads();
        const auto bin = [](u32 digit) { return (u64)bins_high[digit] << 32 | bins_low[digit]; };
        const u64 warp_sum = all_lanes(bin(threadIdx.x), Sum());
        if (lane_of() == 0) shared_sums[warp_of()] = warp_sum;
        __syncthreads();
        // Every warp looks for itself.
        const u32 part = reaching(shared_sums[lane_of()], wanted);
        const u32 digit = part * WARP + reaching(bin(part * WARP + lane_of()), wanted);
        distance += digit << shift;
        __syncthreads();
    } while (shift > 0);
    const u32 rank = largest - distance, one = weight(rank);
    return {rank, (u32)((wanted + one - 1) / one)};
}

// What each warp's part of the tokens from `first` up to `end` comes to, in the lane of its number.
__device__ Load load_of(const Row &row, index_t first, index_t end, Considered considered, Shares shares) {
    u64 above = 0;
    u32 ties = 0;
    each_token(first, end, [&](index_t token) { return row.rank(token); }, [&](index_t, u32 rank) {
        if (rank > considered.rank) above += shares(rank);
        else if (rank == considered.rank) ties++;
    });
    above = all_lanes(above, Sum());
    ties = all_lanes(ties, Sum());
    __syncthreads();
    if (lane_of() == 0) {
        shared_sums[warp_of()] = above;
        shared_counts[warp_of()] = ties;
    }
    __syncthreads();
    return {shared_sums[lane_of()], shared_counts[lane_of()]};
}

// How much of a lane's load is considered, where those of lower lanes come first.
__device__ __forceinline__ u64 weight_of(Load load, Considered considered, Shares shares) {
    const u32 earlier = up_to_lane(load.ties) - load.ties;
    const u32 left = earlier < considered.ties ? considered.ties - earlier : 0;
    const u32 taken = load.ties < left ? load.ties : left;
    return taken == 0 ? load.above : load.above + (u64)taken * shares(considered.rank);
}

// The lane whose load holds what is wanted; what comes before it is taken away from what is wanted and considered.
__device__ __forceinline__ u32 lane_with(Load load, Considered &considered, Shares shares, u64 &wanted) {
    const u32 lane = reaching(weight_of(load, considered, shares), wanted);
    const u32 earlier = __shfl_sync(ALL_LANES, up_to_lane(load.ties) - load.ties, lane);
    considered.ties = earlier < considered.ties ? considered.ties - earlier : 0;
    return lane;
}

extern "C" __global__ void __launch_bounds__(THREADS) sample(
    const x_t *logits, i32 *tokens, const u32 *allowed, const float *uniform, const float *temperature, const i32 *top_k,
    const float *top_p) {
    await_earlier();
#if HELD
    extern __shared__ u32 held[];
    const Row row = {logits + blockIdx.x * COLUMNS, allowed, held};
#else
    const Row row = {logits + blockIdx.x * COLUMNS, allowed};
#endif
    u32 largest = 0, smallest = 0xffffffffu, count = 0;
    each_token(0, COLUMNS, [&](index_t token) { return row.computed(token); }, [&](index_t token, u32 rank) {
#if HELD
        held[token] = rank;
#endif
        if (rank == 0) return;
        largest = rank > largest ? rank : largest;
        smallest = rank < smallest ? rank : smallest;
        count++;
    });
    largest = all_lanes(largest, Largest());
    smallest = all_lanes(smallest, Smallest());
    count = all_lanes(count, Sum());
    if (lane_of() == 0) {
        shared_largest[warp_of()] = largest;
        shared_smallest[warp_of()] = smallest;
        shared_counts[warp_of()] = count;
    }
    __syncthreads();
    largest = all_lanes(shared_largest[lane_of()], Largest());
    smallest = all_lanes(shared_smallest[lane_of()], Smallest());
    count = all_lanes(shared_counts[lane_of()], Sum());
    const float infinity = __uint_as_float(0x7f800000u);
    if (count == 0 || smallest <= rising(-infinity) || largest >= rising(infinity)) {
        if (threadIdx.x == 0) tokens[blockIdx.x] = -1;
        return;
    }

    const float warmth = *temperature;
    const u32 most = warmth > 0.0f && *top_k > 1 ? *top_k : 1;
    // At the coldest, only equals of the largest have a share; of less, 0 times the inverse would be no number.
    constexpr float LOG2_E = 1.44269504f, COLDEST = 1e-37f;
    const Shares shares = {number_of(largest), LOG2_E / (warmth > COLDEST ? warmth : COLDEST)};
    Considered considered = {0, 0};
    if (most == 1) considered = {largest, 1};
    else if (most < count) considered = descend(row, largest, smallest, most, Ones());
    Load load = load_of(row, 0, COLUMNS, considered, shares);
    if (most > 1 && *top_p < 1.0f) {
        const u64 total = all_lanes(weight_of(load, considered, shares), Sum());
        const u64 wanted = *top_p > 0.0f ? (u64)ceil(*top_p * (double)total) : 1;
        considered = descend(row, largest, considered.rank > smallest ? considered.rank : smallest, wanted, shares);
        load = load_of(row, 0, COLUMNS, considered, shares);
    }

    // The first token whose sum of weights, with all before it, is more than this share of them.
    const u64 total = all_lanes(weight_of(load, considered, shares), Sum());
    const u64 passed = uniform[blockIdx.x] > 0.0f ? (u64)(uniform[blockIdx.x] * (double)total) : 0;
    u64 wanted = (passed < total ? passed : total - 1) + 1;
    index_t first = 0, end = COLUMNS;
    for (;;) {
        const index_t part = (end - first + WARPS - 1) / WARPS;
        first += lane_with(load, considered, shares, wanted) * part;
        end = first + part < end ? first + part : end;
        if (end - first <= WARP) break;
        load = load_of(row, first, end, considered, shares);
    }
    const u32 rank = first + lane_of() < end ? row.rank(first + lane_of()) : 0;
    load = {rank > considered.rank ? shares(rank) : 0, rank == considered.rank};
    const u32 lane = lane_with(load, considered, shares, wanted);
    if (threadIdx.x == lane) tokens[blockIdx.x] = (i32)(first + lane);
}
