// One pass of a stable sort of keys, with a position beside each: by the eight bits from SHIFT on. Tiles of 1024 keys count
// how many have each digit; sums over all smaller digits, and over the tiles before, say where a tile's keys go.
constexpr int TILE = 1024, DIGITS = 256;
__device__ __forceinline__ u32 digit_of(word_t key) { return (u32)(key >> SHIFT) % DIGITS; }

// [DIGITS, TILES]
extern "C" __global__ void __launch_bounds__(TILE) sort_count(const word_t *keys, word_t *totals) {
    __shared__ u32 counts[DIGITS];
    const index_t i = (index_t)blockIdx.x * TILE + threadIdx.x;
    if (threadIdx.x < DIGITS) counts[threadIdx.x] = 0;
    __syncthreads();
    if (i < COUNT) atomicAdd(counts + digit_of(keys[i]), 1u);
    __syncthreads();
    if (threadIdx.x < DIGITS) totals[threadIdx.x * TILES + blockIdx.x] = counts[threadIdx.x];
}

// Each number becomes the sum of all before it. One block, eight numbers a thread.
extern "C" __global__ void __launch_bounds__(TILE) sort_scan(word_t *totals) {
    constexpr int EACH = 8;
    __shared__ word_t warps[32];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    word_t before = 0;
    for (index_t start = 0; start < DIGITS * TILES; start += TILE * EACH) {
        const index_t first = start + threadIdx.x * EACH;
        const bool inside = first < DIGITS * TILES;
        word_t numbers[EACH], sum = 0;
        for (int each = 0; each < EACH; each++) {
            const word_t number = inside ? totals[first + each] : 0;
            numbers[each] = sum;
            sum += number;
        }
        word_t up_to = sum;
        for (u32 offset = 1; offset < WARP; offset *= 2) {
            const word_t other = __shfl_up_sync(0xffffffffu, up_to, offset);
            if (lane >= offset) up_to += other;
        }
        if (lane == WARP - 1) warps[warp] = up_to;
        __syncthreads();
        word_t earlier = before + up_to - sum;
        for (u32 other = 0; other < 32; other++) {
            if (other < warp) earlier += warps[other];
            before += warps[other];
        }
        for (int each = 0; inside && each < EACH; each++) totals[first + each] = earlier + numbers[each];
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(TILE) sort_move(
    const word_t *keys, const word_t *positions, const word_t *totals, word_t *sorted_keys, word_t *sorted_positions) {
    // How many keys of each digit every warp has.
    __shared__ u32 counts[TILE / WARP][DIGITS];
    const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (int i = threadIdx.x; i < TILE / WARP * DIGITS; i += TILE) counts[i / DIGITS][i % DIGITS] = 0;
    __syncthreads();
    const index_t i = (index_t)blockIdx.x * TILE + threadIdx.x;
    const bool inside = i < COUNT;
    const word_t key = inside ? keys[i] : 0;
    const u32 digit = inside ? digit_of(key) : DIGITS;
    const u32 alike = __match_any_sync(0xffffffffu, digit);
    const u32 earlier = __popc(alike & ((1u << lane) - 1));
    if (inside && earlier == 0) counts[warp][digit] = __popc(alike);
    __syncthreads();
    if (!inside) return;
    word_t target = totals[digit * TILES + blockIdx.x] + earlier;
    for (u32 other = 0; other < warp; other++) target += counts[other][digit];
    sorted_keys[target] = key;
    sorted_positions[target] = positions[i];
}
